"""Any number of labels per picture: every label has its own yes or no."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import MultilabelAveragePrecision
from torchmetrics.functional.classification import binary_average_precision
from torchmetrics.utilities.data import dim_zero_cat

from mixwise.tasks.base import Task


class MultiLabel(Task):
    """Several labels per picture, or none: a sigmoid a label, targets (b, classes) of 0 and 1."""

    name = "multilabel"
    metric = "mAP"
    part_metric = "average precision"
    guess = "any order"

    def loss(self, logits: Tensor, target: Tensor, *, smoothing: float = 0.0, weight: Tensor | None = None) -> Tensor:
        """Binary cross-entropy, a mean over pictures and labels; `weight` is that of each label's yes."""
        soft = target * (1 - smoothing) + smoothing / 2
        return F.binary_cross_entropy_with_logits(logits.float(), soft, pos_weight=weight)

    def balance(self, counts: np.ndarray, images: int) -> Tensor:
        """Pictures without / with each label, at most 100; a label that never occurs counts as 1."""
        weights = np.where(counts > 0, (images - counts) / counts.clip(min=1), 1.0).clip(0.01, 100)
        return torch.as_tensor(weights, dtype=torch.float32)

    def probabilities(self, logits: Tensor) -> Tensor:
        return logits.float().sigmoid()

    def truth(self, target: Tensor) -> Tensor:
        return (target > 0.5).long()

    def meter(self, classes: int) -> Metric:
        return MeanAveragePrecision(classes, average="none", validate_args=False)

    def score(self, probabilities: Tensor, target: Tensor, names: tuple[str, ...], *, topk: int = 5) -> "LabelScores":
        return score(probabilities, target, names)


class MeanAveragePrecision(MultilabelAveragePrecision):
    """The mean over the labels that occur: one that never does has no precision to speak of."""

    def compute(self) -> Tensor:  # type: ignore[override]
        each: Any = super().compute()
        present = dim_zero_cat(self.target).sum(dim=0) > 0
        return each[present].mean()


@dataclass(frozen=True)
class LabelScore:
    """How well one label is told."""

    name: str
    support: int
    average_precision: float
    """NaN for a label that does not occur."""


@dataclass(frozen=True)
class LabelScores:
    """All numbers of an evaluation; shares of 1."""

    images: int
    loss: float
    mean_average_precision: float
    """Over the labels that occur."""
    labels: tuple[LabelScore, ...]

    @property
    def value(self) -> float:
        """Mean average precision."""
        return self.mean_average_precision

    @property
    def baseline(self) -> float:
        """Mean share of the pictures that have a label: the precision of any order that knows nothing."""
        known = [label.support / self.images for label in self.labels if label.support]
        return sum(known) / len(known) if known else float("nan")

    @property
    def parts(self) -> tuple[tuple[str, int, float], ...]:
        """Average precision of each label."""
        return tuple((label.name, label.support, label.average_precision) for label in self.labels)

    @property
    def constant(self) -> str:
        """Nothing: labels are ranked, and a threshold is what makes answers of them."""
        return ""


def score(probabilities: Tensor, target: Tensor, names: tuple[str, ...]) -> LabelScores:
    """All scores of probabilities (n, labels) against 0 and 1 (n, labels)."""
    truth = target.long()
    labels = []
    for i, name in enumerate(names):
        support = int(truth[:, i].sum())
        precision = float(binary_average_precision(probabilities[:, i], truth[:, i])) if support else float("nan")
        labels.append(LabelScore(name, support, precision))
    known = [label.average_precision for label in labels if label.support]
    return LabelScores(
        images=len(truth),
        loss=float(F.binary_cross_entropy(probabilities, truth.float())),
        mean_average_precision=sum(known) / len(known) if known else float("nan"),
        labels=tuple(labels),
    )
