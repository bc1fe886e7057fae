"""`mixwise evaluate`: how good is a model on labelled pictures?"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from mixwise.data import Catalog, ImageDataset, Items, discover, evaluation_transform, loader
from mixwise.errors import MixwiseError, unknown
from mixwise.prediction import Predictor
from mixwise.tasks.classify import Scores, score
from mixwise.training.folds import folded
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
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Score a trained model on labelled pictures; classes are matched by name, never by position.

    Args:
        model: a run folder or a `.safetensors` file.
        data: a folder of classes, a folder of splits, or the name of built-in data.
        split: train, val or test; None: test where there is one, else val. A folder without splits is used whole,
            except by a run that was trained on it: that one is scored on its own validation pictures.
        topk: k of the top-k accuracy; clamped to the number of classes.
        progress: called with (images done, images in all).
    """
    predictor = Predictor(model, device=device)
    catalog = _catalog(Run(resolve(model).parent), data, predictor.classes)
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


def _catalog(run: Run, data: str | Path, classes: tuple[str, ...]) -> Catalog:
    """The pictures; on the folder that a run was trained on, in the run's own split, or it would flatter itself."""
    config = run.read_config() if run.config_file.is_file() else None
    if config is None or Path(config.data.source).resolve() != Path(data).resolve():
        return discover(data, classes=classes, split_single=False)
    own = discover(data, classes=classes, val_split=config.data.val_split, seed=config.data.split_seed)
    return folded(own, config.data)


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
