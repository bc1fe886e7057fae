"""`mixwise predict`: names and probabilities for pictures."""

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor

from mixwise.config import MAX_PIXELS, PURPOSE
from mixwise.data import IMAGE_EXTENSIONS, BadImage, Stored, decode, evaluation_transform, unlabelled
from mixwise.device import choose_device
from mixwise.errors import MixwiseError, UsageError, printable
from mixwise.tasks import TASKS, task
from mixwise.weights import load_file, resolve


@dataclass(frozen=True)
class Prediction:
    """The answer for one picture, or why there is none."""

    image: str
    """Its path, or its place in the list."""
    label: str
    """The most probable class; empty for a picture that could not be read."""
    probability: float
    index: int
    """Index of the label in `Predictor.classes`; -1 without an answer."""
    top: tuple[tuple[str, float], ...]
    """The best classes with their probabilities, best first."""
    error: str = ""


class Predictor:
    """A trained model with its preprocessing and its class names: pictures in, names out.

    Args:
        path: a run folder or a `.safetensors` file.
        device: auto, cpu, cuda or mps.
        max_pixels: larger pictures, height · width, are not read.

    >>> predictor = mixwise.Predictor("runs/digits")          # doctest: +SKIP
    >>> predictor(["seven.png", array, pil_image])[0].label   # doctest: +SKIP
    '7'
    """

    def __init__(self, path: str | Path, *, device: str = "auto", max_pixels: int = MAX_PIXELS) -> None:
        file = resolve(path)
        self.model, self.header = load_file(file)
        if self.header.task not in TASKS:
            name = self.header.config.name
            what = PURPOSE[self.header.task]
            raise UsageError(f"{file} holds {name}, a model to {what}, and this is for classifiers of images")
        if self.header.preprocess is None or not self.header.classes:
            raise MixwiseError(f"{file} carries no preprocessing and class names, so it cannot read pictures")
        self.task = task(self.header.task)
        self.preprocess = self.header.preprocess
        self.classes = self.header.classes
        self.max_pixels = max_pixels
        self.device = torch.device(choose_device(device))
        self.model.to(self.device)
        self.transform = evaluation_transform(self.preprocess)

    def __call__(self, images: Any, *, topk: int = 5, batch_size: int = 32) -> list[Prediction]:
        """Predict one picture or a list of them: paths, bytes, PIL images, arrays (h, w[, c]), tensors (c, h, w).

        A picture that cannot be read becomes a `Prediction` with its reason in `error`; the others go on.
        """
        several = images if isinstance(images, list | tuple) else [images]
        return list(self.stream(several, topk=topk, batch_size=batch_size))

    def stream(self, images: Iterable[Any], *, topk: int = 5, batch_size: int = 32) -> Iterator[Prediction]:
        """As `__call__`, one batch at a time, in order."""
        if topk < 1:
            raise UsageError(f"topk must be at least 1, got {topk}")
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

    def probabilities(self, batch: Tensor) -> Tensor:
        """Normalised images (b, c, h, w) → probabilities (b, classes) in float32."""
        with torch.inference_mode():
            return self.task.probabilities(self.model(batch.to(self.device))).cpu()

    def _answer(self, waiting: list[tuple[str, Tensor | str]], topk: int) -> Iterator[Prediction]:
        good = [item for _, item in waiting if isinstance(item, Tensor)]
        rows = iter(self.probabilities(torch.stack(good))) if good else iter(())
        for name, item in waiting:
            if isinstance(item, str):
                yield Prediction(name, "", float("nan"), -1, (), item)
                continue
            values, indices = next(rows).topk(min(topk, len(self.classes)))
            top = tuple((self.classes[i], float(v)) for v, i in zip(values, indices.tolist(), strict=True))
            yield Prediction(name, top[0][0], top[0][1], int(indices[0]), top)


def find_images(paths: Sequence[str | Path]) -> list[str | Stored]:
    """What to predict on: files as given, and the pictures that folders, tables, lists, tars and arrays hold.

    Folders give the image files below them, sorted. A path that does not exist stays, to become a row with its reason.
    """
    found: list[str | Stored] = []
    for path in map(Path, paths):
        inside = _images_below(path) if path.is_dir() else []
        found += inside or unlabelled(path) or ([] if path.is_dir() else [str(path)])
    if not found:
        raise MixwiseError(f"no image files under {', '.join(map(str, paths))}")
    return found


def _images_below(folder: Path) -> list[str]:
    inside = (p for p in folder.rglob("*") if p.suffix.lower() in IMAGE_EXTENSIONS and p.is_file())
    shown = (p for p in inside if not any(part.startswith(".") for part in p.relative_to(folder).parts))
    return sorted(map(str, shown))


def write_csv(predictions: Iterable[Prediction], out: TextIO, topk: int) -> int:
    """Rows image, label, probability, index, error, label_1, probability_1, …; returns the number of errors."""
    ranks = range(1, topk + 1)
    columns = ["image", "label", "probability", "index", "error"]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns + [f"{what}_{r}" for r in ranks for what in ("label", "probability")])
    errors = 0
    for p in predictions:
        cells: list[Any] = [p.image, p.label, "" if p.error else f"{p.probability:.6f}", p.index, p.error]
        for r in ranks:
            cells += [p.top[r - 1][0], f"{p.top[r - 1][1]:.6f}"] if r <= len(p.top) else ["", ""]
        writer.writerow(cells)
        errors += bool(p.error)
    return errors


def to_json(p: Prediction) -> str:
    """One prediction as a JSON object on one line."""
    record = {
        "image": p.image,
        "label": p.label,
        "probability": None if p.error else round(p.probability, 6),
        "index": p.index,
        "top": [{"label": label, "probability": round(value, 6)} for label, value in p.top],
        "error": p.error or None,
    }
    return json.dumps(record, ensure_ascii=False)
