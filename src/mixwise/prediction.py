"""`mixwise predict`: names and probabilities for pictures."""

import csv
import functools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TextIO

import torch
from torch import Tensor

from mixwise.config import MAX_PIXELS, PURPOSE, Decision
from mixwise.data import BadImage, Stored, decode, evaluation_transform, unlabelled
from mixwise.data.layout import images_below
from mixwise.device import choose_device
from mixwise.errors import MixwiseError, UsageError, printable
from mixwise.tasks import TASKS, task
from mixwise.tasks.calibration import FEW
from mixwise.weights import load_file, resolve, weights_hash


@dataclass(frozen=True)
class Prediction:
    """The answer for one picture, or why there is none."""

    image: str
    """Its path, or its place in the list."""
    label: str
    """The most probable class of the answer. "unknown": withheld. Empty: no label applies, or there is an error."""
    probability: float
    """Of the most probable class, answered or not."""
    index: int
    """Index of the label in `Predictor.classes`; -1 without an answer."""
    labels: tuple[tuple[str, float], ...]
    """The answer: one class, or with several labels a picture every label over its threshold, best first."""
    top: tuple[tuple[str, float], ...]
    """The best classes with their probabilities, best first, whatever the answer."""
    error: str = ""


class Predictor:
    """A trained model with its preprocessing and its class names: pictures in, names out.

    Args:
        path: a run folder or a `.safetensors` file.
        device: auto, cpu, cuda or mps.
        max_pixels: larger pictures, height · width, are not read.
        reject: withhold answers less probable than this, from 0 to 1; "stored": than the threshold that was chosen
            on the validation pictures; None: answer always. `UsageError` for a model of several labels a picture.

    >>> predictor = mixwise.Predictor("runs/digits")          # doctest: +SKIP
    >>> predictor(["seven.png", array, pil_image])[0].label   # doctest: +SKIP
    '7'
    """

    def __init__(
        self,
        path: str | Path,
        *,
        device: str = "auto",
        max_pixels: int = MAX_PIXELS,
        reject: float | Literal["stored"] | None = None,
    ) -> None:
        self.file = resolve(path)
        self.model, self.header = load_file(self.file)
        if self.header.task not in TASKS:
            name = self.header.config.name
            what = PURPOSE[self.header.task]
            raise UsageError(f"{self.file} holds {name}, a model to {what}, and this is for classifiers of images")
        if self.header.preprocess is None or not self.header.classes:
            raise MixwiseError(f"{self.file} carries no preprocessing and class names, so it cannot read pictures")
        self.task = task(self.header.task)
        self.preprocess = self.header.preprocess
        self.classes = self.header.classes
        self.max_pixels = max_pixels
        self.decision = self.header.decision.model_copy(update={"reject": self._reject(reject)})
        self.device = torch.device(choose_device(device))
        self.model.to(self.device)
        self.transform = evaluation_transform(self.preprocess)

    def _reject(self, wanted: float | Literal["stored"] | None) -> float | None:
        """The least probability of an answer."""
        if wanted is None:
            return None
        word = self.task.withheld
        if not word:
            raise UsageError(
                f"{self.file}: a model with several labels per picture withholds nothing; a picture under all "
                "thresholds simply gets no label"
            )
        if word in self.classes:
            raise UsageError(
                f"{self.file} has a class named {word!r}, the word that stands for a withheld answer: it cannot be "
                "asked to withhold; rename the class and train again, or filter by the probabilities"
            )
        least = self.header.decision.reject if wanted == "stored" else wanted
        if least is None:
            raise UsageError(
                f"{self.file} stores no reject threshold (it is chosen at the end of a training with at least {FEW} "
                "validation pictures); name the least probability of an answer, for example --reject 0.7"
            )
        if not 0 <= least <= 1:
            raise UsageError(f"the least probability of an answer must be from 0 to 1, got {least}")
        return least

    @functools.cached_property
    def id(self) -> str:
        """Which model answers: its name and the beginning of the SHA-256 of its weights."""
        return f"{self.header.config.name}@{weights_hash(self.model.state_dict())[:12]}"

    def adopt(self, decision: Decision) -> None:
        """Answer by this decision from now on, without withholding; the header says so too."""
        self.header = self.header.model_copy(update={"decision": decision})
        self.decision = decision.model_copy(update={"reject": None})

    def __call__(self, images: Any, *, topk: int = 5, batch_size: int = 32) -> list[Prediction]:
        """Predict one picture or a list of them: paths, bytes, PIL images, arrays (h, w[, c]), tensors (c, h, w).

        A picture that cannot be read becomes a `Prediction` with its reason in `error`; the others go on.
        """
        several = images if isinstance(images, list | tuple) else [images]
        return list(self.stream(several, topk=topk, batch_size=batch_size))

    def stream(self, images: Iterable[Any], *, topk: int = 5, batch_size: int = 32) -> Iterator[Prediction]:
        """As `__call__`, one batch at a time, in order."""
        if topk < 1 or batch_size < 1:
            raise UsageError(f"topk and batch_size must be at least 1, got {topk} and {batch_size}")
        waiting: list[tuple[str, Tensor | str]] = []
        for number, source in enumerate(images):
            name = printable(str(source)) if isinstance(source, str | Path | Stored) else f"image {number}"
            waiting.append((name, self._read(source)))
            if len(waiting) == batch_size:
                yield from self._answer(waiting, topk)
                waiting = []
        yield from self._answer(waiting, topk)

    def _read(self, source: Any) -> Tensor | str:
        pre = self.preprocess
        try:
            image = decode(source, channels=pre.channels, background=pre.background, max_pixels=self.max_pixels)
        except BadImage as error:
            return str(error)
        return self.transform(image)

    def logits(self, batch: Tensor) -> Tensor:
        """Normalised images (b, c, h, w) → outputs (b, classes) in float32, before temperature and all.

        Raises `MixwiseError` where they are not finite: the largest of them would be a class by chance.
        """
        with torch.inference_mode():
            found = self.model(batch.to(self.device)).float().cpu()
        if not found.isfinite().all():
            raise MixwiseError(
                f"{self.file} gives outputs that are not finite (NaN or infinite): its weights are damaged, or too "
                "large for their precision"
            )
        return found

    def calibrated(self, logits: Tensor) -> Tensor:
        """Outputs (b, classes) → probabilities (b, classes) in float32, at the stored temperature."""
        return self.task.probabilities(logits / self.decision.temperature)

    def probabilities(self, batch: Tensor) -> Tensor:
        """Normalised images (b, c, h, w) → probabilities (b, classes) in float32."""
        return self.calibrated(self.logits(batch))

    def _answer(self, waiting: list[tuple[str, Tensor | str]], topk: int) -> Iterator[Prediction]:
        good = [item for _, item in waiting if isinstance(item, Tensor)]
        rows = iter(self.probabilities(torch.stack(good))) if good else iter(())
        for name, item in waiting:
            if isinstance(item, str):
                yield Prediction(name, "", float("nan"), -1, (), (), item)
            else:
                yield self.prediction(name, next(rows), topk)

    def prediction(self, image: str, probabilities: Tensor, topk: int = 5) -> Prediction:
        """The answer that probabilities (classes,) make for the picture of this name."""
        values, indices = probabilities.topk(min(topk, len(self.classes)))
        top = tuple((self.classes[i], float(v)) for v, i in zip(values, indices.tolist(), strict=True))
        chosen = self.task.chosen(probabilities, self.decision)
        labels = tuple((self.classes[i], float(probabilities[i])) for i in chosen)
        label, index = (labels[0][0], chosen[0]) if chosen else (self.task.withheld, -1)
        return Prediction(image, label, top[0][1], index, labels, top)


def find_images(paths: Sequence[str | Path]) -> list[str | Stored]:
    """What to predict on: files as given, and the pictures that folders, tables, lists, tars and arrays hold.

    Folders give the image files below them, sorted; tables and lists a picture for each of their rows. A path that does
    not exist stays, to become a row with its reason.
    """
    found: list[str | Stored] = []
    for path in map(Path, paths):
        inside = images_below(path) if path.is_dir() else []
        found += inside or unlabelled(path) or ([] if path.is_dir() else [str(path)])
    if not found:
        raise MixwiseError(f"no image files under {', '.join(map(str, paths))}")
    return found


def write_csv(predictions: Iterable[Prediction], out: TextIO, topk: int, classes: Sequence[str] = ()) -> int:
    """A row for each prediction under `columns`; returns the number of errors."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns(topk, classes))
    errors = 0
    for p in predictions:
        writer.writerow(cells(p, topk, classes))
        errors += bool(p.error)
    return errors


def columns(topk: int, classes: Sequence[str] = ()) -> list[str]:
    """image, label, probability, index, error, label_1, probability_1, …, labels, then one column for each class.

    `labels` is the whole answer, joined by semicolons.

    Args:
        topk: how many of the best classes have columns of their own.
        classes: those that get a column `probability:<class>`.
    """
    ranks = [f"{what}_{rank}" for rank in range(1, topk + 1) for what in ("label", "probability")]
    every = [f"probability:{name}" for name in classes]
    return ["image", "label", "probability", "index", "error", *ranks, "labels", *every]


def cells(p: Prediction, topk: int, classes: Sequence[str] = ()) -> list[Any]:
    """One row under `columns`. Of the classes those in `p.top` are known."""
    row: list[Any] = [p.image, p.label, "" if p.error else f"{p.probability:.6f}", p.index, p.error]
    for rank in range(topk):
        row += [p.top[rank][0], f"{p.top[rank][1]:.6f}"] if rank < len(p.top) else ["", ""]
    known = dict(p.top)
    every = [f"{known[name]:.6f}" if name in known else "" for name in classes]
    return [*row, ";".join(label for label, _ in p.labels), *every]


def to_json(p: Prediction, model: str, topk: int, classes: Sequence[str] = ()) -> str:
    """One prediction as a JSON object on one line.

    Args:
        model: which one answered, `Predictor.id`.
        topk: how many of the best classes `top` has.
        classes: those whose probabilities are all given.
    """
    known = dict(p.top)
    record: dict[str, Any] = {
        "image": p.image,
        "label": p.label,
        "probability": None if p.error else round(p.probability, 6),
        "index": p.index,
        "labels": _pairs(p.labels),
        "top": _pairs(p.top[:topk]),
        "error": p.error or None,
        "model": model,
    }
    if classes:
        record["probabilities"] = {name: round(known[name], 6) for name in classes if name in known}
    return json.dumps(record, ensure_ascii=False)


def _pairs(pairs: Iterable[tuple[str, float]]) -> list[dict[str, Any]]:
    return [{"label": label, "probability": round(value, 6)} for label, value in pairs]
