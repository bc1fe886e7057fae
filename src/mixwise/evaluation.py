"""`mixwise evaluate`: how good is a model on labelled pictures?"""

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from mixwise.config import Data
from mixwise.data import Catalog, ImageDataset, Items, discover, evaluation_transform, loader, located
from mixwise.errors import MixwiseError, unknown
from mixwise.labels import difference, read_labels
from mixwise.prediction import Predictor
from mixwise.tasks.classify import Scores, score
from mixwise.training.run import Run
from mixwise.weights import resolve


@dataclass(frozen=True)
class Evaluation:
    """Scores of a model on one split, and the answers they come from."""

    scores: Scores
    split: str
    items: Items
    probabilities: Tensor
    """(n, classes)."""
    notes: tuple[str, ...]
    """What was noticed about the data: classes that do not occur, files passed over."""

    def to_json(self) -> str:
        """The scores as JSON text."""
        data = asdict(self.scores)
        data["confusion"] = self.scores.confusion.tolist()
        return json.dumps({"split": self.split, "notes": list(self.notes), **data}, ensure_ascii=False, indent=2)


def evaluate(
    model: str | Path,
    data: str | Path,
    *,
    split: str | None = None,
    topk: int = 5,
    batch_size: int = 64,
    device: str = "auto",
    workers: int | None = None,
    labels: str | Path | None = None,
    unknown_classes: Literal["error", "drop"] = "error",
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Score a trained model on labelled pictures; classes are matched by name, never by position.

    Args:
        model: a run folder or a `.safetensors` file.
        data: a folder of classes, a folder of splits, or any other layout of docs/data.md.
        split: train, val or test; None: test where there is one, else val. A folder without splits is used whole,
            except by a run that was trained on it: that one is scored on its own validation pictures.
        topk: k of the top-k accuracy; clamped to the number of classes.
        labels: a file of class names that says what other names in the data mean, such as WordNet or class numbers.
        unknown_classes: what a class does that the model does not know: "error", or "drop" its pictures and count them.
        progress: called with (images done, images in all).
    """
    predictor = Predictor(model, device=device)
    catalog = _catalog(Run(resolve(model).parent), data, predictor, labels, unknown_classes)
    if split is None:
        split = next(name for name in ("test", "val", "train") if name in catalog.splits)
    if split not in catalog.splits:
        raise unknown("split", split, catalog.splits, str(data))
    items = catalog.splits[split]
    if not len(items):
        raise MixwiseError(f"{data}: the {split} split is empty")
    probabilities = answer(predictor, items, batch_size=batch_size, workers=workers, progress=progress)
    target = torch.as_tensor(items.labels)
    scores = score(probabilities, target, predictor.classes, topk=topk)
    return Evaluation(scores, split, items, probabilities, catalog.notes)


def _catalog(
    run: Run, data: str | Path, predictor: Predictor, labels: str | Path | None, unknown_classes: str
) -> Catalog:
    """The pictures; on the data that a run was trained on, in the run's own split, or it would flatter itself."""
    config = run.read_config() if run.config_file.is_file() else None
    own = config is not None and os.path.realpath(config.data.source) == os.path.realpath(located(data))
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
    return replace(catalog, notes=(*notes, *catalog.notes))


def answer(
    predictor: Predictor,
    items: Items,
    *,
    batch_size: int = 64,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """Probabilities (n, classes) for all items, in their order."""
    transform = evaluation_transform(predictor.preprocess)
    dataset = ImageDataset(items, predictor.preprocess, transform, seed=0, train=False)
    rows = []
    done = 0
    for images, _, _ in loader(dataset, batch_size, train=False, workers=workers, seed=0):
        rows.append(predictor.probabilities(images))
        done += len(images)
        if progress is not None:
            progress(done, len(items))
    return torch.cat(rows)
