"""One label per picture: loss, running metrics, and the full evaluation."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import MulticlassAccuracy
from torchmetrics.functional import classification as metrics

from mixwise.tasks.base import Task


class Classify(Task):
    """One label per picture."""

    name = "classify"
    metric = "accuracy"
    part_metric = "recall"
    guess = "always the commonest class"

    def loss(self, logits: Tensor, target: Tensor, *, smoothing: float = 0.0, weight: Tensor | None = None) -> Tensor:
        return loss(logits, target, smoothing=smoothing, weight=weight)

    def balance(self, counts: np.ndarray, images: int) -> Tensor:
        """1 / pictures, such that the mean over all pictures is 1; a class without pictures counts as 1."""
        present = counts > 0
        weights = np.where(present, images / (max(1, int(present.sum())) * counts.clip(min=1)), 1.0)
        return torch.as_tensor(weights, dtype=torch.float32)

    def probabilities(self, logits: Tensor) -> Tensor:
        return logits.float().softmax(dim=1)

    def truth(self, target: Tensor) -> Tensor:
        return target.argmax(dim=1) if target.dim() == 2 else target

    def meter(self, classes: int) -> Metric:
        return MulticlassAccuracy(max(2, classes), average="micro", validate_args=False)

    def score(self, probabilities: Tensor, target: Tensor, names: tuple[str, ...], *, topk: int = 5) -> "Scores":
        return score(probabilities, target, names, topk=topk)


def loss(logits: Tensor, target: Tensor, *, smoothing: float = 0.0, weight: Tensor | None = None) -> Tensor:
    """Cross-entropy against class indices (b,) or class probabilities (b, classes), as mixup makes them.

    A weighted one is divided by the number of pictures and not by their weights: a batch of a rare class counts more.
    """
    if weight is None:
        return F.cross_entropy(logits.float(), target, label_smoothing=smoothing)
    total = F.cross_entropy(logits.float(), target, weight, label_smoothing=smoothing, reduction="sum")
    return total / len(target)


@dataclass(frozen=True)
class ClassScore:
    """How well one class is recognised."""

    name: str
    support: int
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class Scores:
    """All numbers of an evaluation; shares of 1."""

    images: int
    loss: float
    top1: float
    topk: float
    k: int
    """5, or fewer where there are fewer classes."""
    calibration_error: float
    """Expected calibration error over 15 bins: mean gap between confidence and accuracy."""
    majority: float
    """Top-1 of always answering the commonest class: the number to beat."""
    classes: tuple[ClassScore, ...]
    confusion: np.ndarray
    """(classes, classes): row = truth, column = answer."""

    @property
    def value(self) -> float:
        """Top-1 accuracy."""
        return self.top1

    @property
    def baseline(self) -> float:
        """As `majority`."""
        return self.majority

    @property
    def parts(self) -> tuple[tuple[str, int, float], ...]:
        """Recall of each class."""
        return tuple((c.name, c.support, c.recall) for c in self.classes)

    @property
    def constant(self) -> str:
        """The only class that was answered, where the pictures are of several."""
        several = sum(c.support > 0 for c in self.classes) > 1
        answered = np.flatnonzero(self.confusion.sum(axis=0))
        return self.classes[answered[0]].name if several and len(answered) == 1 else ""


def score(probabilities: Tensor, target: Tensor, names: tuple[str, ...], *, topk: int = 5) -> Scores:
    """All scores of probabilities (n, classes) against true indices (n,). An absent class has support 0."""
    count = len(names)
    k = min(topk, count)
    answer = probabilities.argmax(dim=1)
    if count > 1:
        confusion = metrics.multiclass_confusion_matrix(answer, target, num_classes=count)
        calibration = float(metrics.multiclass_calibration_error(probabilities, target, count, n_bins=15))
    else:
        confusion = torch.tensor([[len(target)]])
        calibration = float((1 - probabilities[:, 0]).abs().mean())
    hits = confusion.diagonal().float()
    support, answered = confusion.sum(dim=1), confusion.sum(dim=0)
    precision, recall = hits / answered.clamp(min=1), hits / support.clamp(min=1)
    f1 = 2 * precision * recall / (precision + recall).clamp(min=1e-12)
    return Scores(
        images=len(target),
        loss=float(F.nll_loss(probabilities.clamp(min=1e-12).log(), target)),
        top1=float((answer == target).float().mean()),
        topk=float((probabilities.topk(k, dim=1).indices == target[:, None]).any(dim=1).float().mean()),
        k=k,
        calibration_error=calibration,
        majority=float(support.max() / support.sum()),
        classes=tuple(
            ClassScore(name, int(support[i]), float(precision[i]), float(recall[i]), float(f1[i]))
            for i, name in enumerate(names)
        ),
        confusion=confusion.cpu().numpy(),
    )
