"""`mixwise evaluate`: how good is a model on labelled pictures?"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from pydantic_core import to_jsonable_python
from torch import Tensor

from mixwise.data import Catalog, ImageDataset, Items, discover, evaluation_transform, loader
from mixwise.errors import MixwiseError, UsageError, unknown
from mixwise.prediction import Predictor
from mixwise.tasks import Scores, calibration_error
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
    predictor: Predictor
    """Who answered, and how answers were read."""
    probabilities: Tensor
    """(n, classes), at the stored temperature."""
    uncalibrated: float
    """The calibration error that it would be without the temperature."""
    notes: tuple[str, ...]
    """What was noticed about the data: classes that do not occur, files passed over."""

    @property
    def target(self) -> Tensor:
        """The true labels, as `Items.labels` has them."""
        return torch.as_tensor(self.items.labels)

    def to_json(self) -> str:
        """The scores as JSON text; what is not defined is null."""
        about = {"model": self.predictor.id, "source": self.source, "split": self.split, "notes": self.notes}
        decision = self.predictor.decision.model_dump() | {"calibration_error_before": self.uncalibrated}
        found = about | vars(self.scores) | {"decision": decision}
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
        progress: called with (images done, images in all).
    """
    predictor = Predictor(model, device=device, reject=reject)
    catalog = _catalog(Run(resolve(model).parent), data, predictor.classes)
    if catalog.task != predictor.task.name:
        kinds = {"classify": "one label", "multilabel": "any number of labels"}
        has, wants = kinds[catalog.task], kinds[predictor.task.name]
        raise UsageError(f"{data} has {has} per picture, and {predictor.file} was trained for {wants}")
    if split is None:
        split = next(name for name in ("test", "val", "train") if name in catalog.splits)
    if split not in catalog.splits:
        raise unknown("split", split, catalog.splits, str(data))
    items = catalog.splits[split]
    if not len(items):
        raise MixwiseError(f"{data}: the {split} split is empty")
    logits = outputs(predictor, items, batch_size=batch_size, workers=workers, progress=progress)
    return judge(predictor, logits, items, str(data), split, catalog.notes, topk=topk)


def judge(
    predictor: Predictor,
    logits: Tensor,
    items: Items,
    source: str,
    split: str,
    notes: tuple[str, ...] = (),
    *,
    topk: int | None = None,
) -> Evaluation:
    """The evaluation that outputs (n, classes) for these pictures come to."""
    task, target = predictor.task, torch.as_tensor(items.labels)
    probabilities = predictor.calibrated(logits)
    scores = task.score(probabilities, target, predictor.classes, predictor.decision, topk=topk)
    uncalibrated = calibration_error(task.reliability(task.probabilities(logits), target))
    return Evaluation(scores, source, split, items, predictor, probabilities, uncalibrated, notes)


def _catalog(run: Run, data: str | Path, classes: tuple[str, ...]) -> Catalog:
    """The pictures; on the folder that a run was trained on, in the run's own split, or it would flatter itself."""
    config = run.read_config() if run.config_file.is_file() else None
    if config is None or Path(config.data.source).resolve() != Path(data).resolve():
        return discover(data, classes=classes, split_single=False)
    return discover(data, classes=classes, val_split=config.data.val_split, seed=config.data.split_seed)


def outputs(
    predictor: Predictor,
    items: Items,
    *,
    batch_size: int = 64,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """Outputs (n, classes) for all items, in their order, before temperature and thresholds."""
    transform = evaluation_transform(predictor.preprocess)
    dataset = ImageDataset(items, predictor.preprocess, transform, seed=0, train=False)
    rows = []
    done = 0
    for images, _, _ in loader(dataset, batch_size, train=False, workers=workers, seed=0):
        rows.append(predictor.logits(images))
        done += len(images)
        if progress is not None:
            progress(done, len(items))
    return torch.cat(rows)
