"""`mixwise evaluate`: how good is a model on labelled pictures?"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from pydantic_core import to_jsonable_python
from rich.console import Console
from torch import Tensor

from mixwise.config import MAX_PIXELS, Data
from mixwise.data import (
    BadImage,
    BadImages,
    Catalog,
    ImageDataset,
    Items,
    discover,
    evaluation_transform,
    loader,
    located,
)
from mixwise.errors import MixwiseError, UsageError, printable, unknown
from mixwise.labels import difference, read_labels
from mixwise.prediction import Predictor
from mixwise.screening import screened_before
from mixwise.screening.scan import is_file, read_verdicts
from mixwise.tasks import Scores, calibration_error, decide
from mixwise.training.choose import fingerprint
from mixwise.training.folds import folded
from mixwise.training.memory import Portion
from mixwise.training.run import Run
from mixwise.weights import resolve


@dataclass(frozen=True)
class Evaluation:
    """Scores of a model on one split, and the answers they come from."""

    scores: Scores
    source: str
    """Where the pictures come from."""
    split: str
    items: Items
    """Those that could be read."""
    predictor: Predictor
    """Who answered, and how answers were read."""
    probabilities: Tensor
    """(n, classes), at the stored temperature."""
    uncalibrated: float
    """The calibration error that it would be without the temperature."""
    bad: tuple[BadImage, ...]
    """Pictures of the split that could not be read: they are in no number."""
    notes: tuple[str, ...]
    """What was noticed about the data: classes that do not occur, files passed over."""

    @property
    def target(self) -> Tensor:
        """The true labels, as `Items.labels` has them."""
        return torch.as_tensor(self.items.labels)

    def to_json(self) -> str:
        """The scores as JSON text; what is not defined is null."""
        about = {"model": self.predictor.id, "source": self.source, "split": self.split, "notes": self.notes}
        bad = [{"image": printable(e.path), "reason": e.reason, "detail": e.detail} for e in self.bad]
        decision = self.predictor.decision.model_dump() | {"calibration_error_before": self.uncalibrated}
        found = about | {"bad": bad} | vars(self.scores) | {"decision": decision}
        plain = to_jsonable_python(found, inf_nan_mode="null", fallback=lambda array: array.tolist())
        return json.dumps(plain, ensure_ascii=False, indent=2)


def evaluate(
    model: str | Path,
    data: str | Path,
    *,
    split: str | None = None,
    topk: int | None = None,
    reject: float | Literal["stored"] | None = None,
    batch_size: int = 64,
    device: str = "auto",
    workers: int | None = None,
    on_bad: str = "skip",
    max_pixels: int = MAX_PIXELS,
    labels: str | Path | None = None,
    unknown_classes: Literal["error", "drop"] = "error",
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Score a trained model on labelled pictures; classes are matched by name, never by position.

    Args:
        model: a run folder or a `.safetensors` file.
        data: a folder of classes, a folder of splits, or the name of built-in data.
        split: train, val or test; None: test where there is one, else val. A folder without splits is used whole,
            except by a run that was trained on it: that one is scored on its own validation pictures.
        topk: k of the top-k accuracy; clamped to the number of classes. None: 5.
        reject: as of `Predictor`: tell also how many pictures are answered, and how well those.
        on_bad: "skip" scores the pictures that can be read and lists the others, "error" stops at the first bad one.
        max_pixels: larger pictures, height · width, count as bad.
        labels: a file of class names that says what other names in the data mean, such as WordNet or class numbers.
        unknown_classes: what a class does that the model does not know: "error", or "drop" its pictures and count them.
        progress: called with (images done, images in all).
    """
    if topk is not None and topk < 1:
        raise UsageError(f"topk must be at least 1, got {topk}")
    predictor = Predictor(model, device=device, max_pixels=max_pixels, reject=reject)
    catalog = _catalog(Run(resolve(model).parent), data, predictor, labels, unknown_classes)
    if split is None:
        split = next(name for name in ("test", "val", "train") if name in catalog.splits)
    if split not in catalog.splits:
        raise unknown("split", split, catalog.splits, str(data))
    items = catalog.splits[split]
    if not len(items):
        raise MixwiseError(f"{data}: the {split} split is empty")
    run = Run(predictor.file.parent)
    notes = catalog.notes if split == "test" else (*catalog.notes, *_familiar(run, data, catalog, items))
    bad = BadImages(f"the {split} split", len(items), on_bad=on_bad)
    read, logits = outputs(predictor, items, bad, batch_size=batch_size, workers=workers, progress=progress)
    return judge(predictor, logits, read, str(data), split, bad, notes, topk=topk)


def judge(
    predictor: Predictor,
    logits: Tensor,
    items: Items,
    source: str,
    split: str,
    bad: BadImages,
    notes: tuple[str, ...] = (),
    *,
    topk: int | None = None,
) -> Evaluation:
    """The evaluation that outputs (n, classes) for these pictures come to."""
    task, target = predictor.task, torch.as_tensor(items.labels)
    probabilities = predictor.calibrated(logits)
    scores = task.score(probabilities, target, predictor.classes, predictor.decision, topk=topk)
    uncalibrated = calibration_error(task.reliability(task.probabilities(logits), target))
    unread = tuple(bad.found.values())
    return Evaluation(scores, source, split, items, predictor, probabilities, uncalibrated, unread, notes)


def _catalog(
    run: Run, data: str | Path, predictor: Predictor, labels: str | Path | None, unknown_classes: str
) -> Catalog:
    """The pictures; on the data that a run was trained on, in the run's own split, or it would flatter itself."""
    config = run.read_config() if run.config_file.is_file() else None
    own = config is not None and os.path.realpath(config.data.source) == _real(data)
    settings = config.data if own and config is not None else Data(source=str(data))
    rename = {} if config is None else dict(config.data.rename)
    notes = []
    if labels is not None:
        given = read_labels(labels)
        rename |= given.rename(predictor.classes)
        differs = difference([rename.get(name, name) for name in given.names], predictor.classes)
        notes = [f"{labels} has {differs}; names count, not positions"] if differs else []
    catalog = discover(
        data,
        val_split=settings.val_split,
        seed=settings.split_seed,
        classes=predictor.classes,
        task=predictor.task.name,
        rename=rename,
        unknown_classes="drop" if "drop" in (unknown_classes, settings.unknown) else "error",
        split_single=own,
    )
    catalog = folded(catalog, settings) if own else catalog
    return replace(catalog, notes=(*notes, *catalog.notes))


def _familiar(run: Run, data: str | Path, catalog: Catalog, items: Items) -> tuple[str, ...]:
    """A warning where pictures may be known to a run: of a copy of its data, or of its own after they were changed."""
    config = run.read_config() if run.config_file.is_file() else None
    if config is None or not run.verdicts_file.is_file():
        return ()
    if os.path.realpath(config.data.source) == _real(data):
        before = fingerprint(screened_before(catalog, run.verdicts_file, Console(quiet=True)))
        drawn = config.data.folds or any(note.startswith("val is ") for note in catalog.notes)
        if not drawn or before == config.data.fingerprint:
            return ()
        return (
            f"pictures of {data} were added, removed or renamed since the training, so they are divided otherwise: the "
            "model may know some of those scored here",
        )
    known = {name: verdict.size for name, verdict in read_verdicts(run.verdicts_file).items()}
    files = [(name, str(source)) for name, source in zip(items.names, items.sources, strict=True) if is_file(source)]
    same = sum(os.path.isfile(file) and known.get(name) == os.path.getsize(file) for name, file in files)
    if 2 * same <= len(items):
        return ()
    return (
        f"{same} of these {len(items)} pictures have the names and sizes of pictures that the model was made with: it "
        f"may know them, and the numbers flatter it. `evaluate` on {config.data.source} takes those held out",
    )


def _real(data: str | Path) -> str:
    return os.path.realpath(located(data))


def settle(predictor: Predictor, items: Items, source: str, bad: BadImages) -> tuple[Evaluation, list[str]]:
    """Choose on validation pictures how answers are to be read, and judge the model by them, in fp32.

    Returns: the evaluation, and sentences about what was chosen; the predictor's header has it too.
    """
    read, logits = outputs(predictor, items, bad)
    decision, notes = decide(predictor.task, logits, torch.as_tensor(read.labels), predictor.classes)
    predictor.adopt(decision)
    return judge(predictor, logits, read, source, "val", bad), notes


def outputs(
    predictor: Predictor,
    items: Items,
    bad: BadImages,
    *,
    batch_size: int = 64,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Items, Tensor]:
    """The items that could be read, in their order, and their outputs (n, classes) before temperature and thresholds.

    `bad` gets the others. Where memory runs out, it goes on with half as many pictures at a time.
    """
    pre = predictor.preprocess
    dataset = ImageDataset(items, pre, evaluation_transform(pre), cache=0, max_pixels=predictor.max_pixels)
    portion = Portion("evaluation", lambda line: None)
    rows: list[Tensor] = []
    indices: list[int] = []
    for images, _, positions in loader(dataset, batch_size, train=False, workers=workers, bad=bad):
        rows.append(portion.through(predictor.logits, images))
        indices += positions.tolist()
        if progress is not None and indices:
            progress(indices[-1] + 1, len(items))
    return items.chosen(indices), torch.cat(rows)
