"""One label per picture: loss, running metrics, answers, and the full evaluation."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import MulticlassAccuracy
from torchmetrics.functional import classification as metrics

from mixwise.config import Decision
from mixwise.tasks.base import Mistake, Table, Task, text
from mixwise.tasks.calibration import Bin, bins, calibration_error
from mixwise.tasks.intervals import share_interval

KEPT = 0.95
"""The share of the right answers that the chosen reject threshold lets through."""


class Classify(Task):
    """One label per picture: targets (b,) of class indices."""

    name = "classify"
    metric = "accuracy"
    withheld = "unknown"
    part_metric = "recall"
    guess = "always the commonest class"

    def loss(self, logits: Tensor, target: Tensor, *, smoothing: float = 0.0, weight: Tensor | None = None) -> Tensor:
        """Cross-entropy against class indices (b,) or class probabilities (b, classes), as mixup makes them.

        A weighted one is divided by the number of pictures and not by their weights: a batch of a rare class counts
        more.
        """
        if weight is None:
            return F.cross_entropy(logits.float(), target, label_smoothing=smoothing)
        total = F.cross_entropy(logits.float(), target, weight, label_smoothing=smoothing, reduction="sum")
        return total / len(target)

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

    def reliability(self, probabilities: Tensor, target: Tensor) -> tuple[Bin, ...]:
        confidence, answer = probabilities.max(dim=1)
        return bins(confidence, answer == target)

    def cutoffs(self, probabilities: Tensor, target: Tensor, names: Sequence[str]) -> tuple[Decision, list[str]]:
        """The least probability that 95 % of the right answers reach: what lies below it may be withheld."""
        confidence, answer = probabilities.max(dim=1)
        right = confidence[answer == target]
        if len(right) < 20:
            return Decision(), [f"no reject threshold: {len(right)} right answers are too few to choose it by"]
        # Rounded down, so that rounding withholds none of those that it was chosen by.
        least = math.floor(float(right.quantile(1 - KEPT, interpolation="lower")) * 1e4) / 1e4
        wrong = confidence[answer != target]
        said = f"reject threshold {least:.1%}: keeps {KEPT:.0%} of the right answers"
        if len(wrong):
            said += f", withholds {int((wrong < least).sum())} of the {len(wrong)} wrong ones"
        return Decision(reject=least), [said]

    def chosen(self, probabilities: Tensor, decision: Decision) -> list[int]:
        best = int(probabilities.argmax())
        return [best] if decision.reject is None or float(probabilities[best]) >= decision.reject else []

    def score(
        self,
        probabilities: Tensor,
        target: Tensor,
        names: tuple[str, ...],
        decision: Decision,
        *,
        topk: int | None = None,
    ) -> "ClassScores":
        """An absent class has support 0. With `decision.reject`, the scores of the answers given are there too."""
        count = len(names)
        k = min(topk or 5, count)
        confidence, answer = probabilities.max(dim=1)
        right = answer == target
        hits = right.numpy().astype(float)
        answered = confidence >= (decision.reject or 0.0)
        reliability = self.reliability(probabilities, target)
        confusion = torch.tensor([[len(target)]])
        if count > 1:
            confusion = metrics.multiclass_confusion_matrix(answer, target, num_classes=count)
        classes = class_scores(confusion, names)
        return ClassScores(
            images=len(target),
            loss=float(F.nll_loss(probabilities.clamp(min=1e-12).log(), target)),
            top1=float(hits.mean()),
            interval=share_interval(hits),
            topk=float((probabilities.topk(k, dim=1).indices == target[:, None]).any(dim=1).float().mean()),
            k=k,
            majority=float(confusion.sum(dim=1).max()) / len(target),
            balanced=float(np.mean([c.recall for c in classes if c.support])),
            calibration_error=calibration_error(reliability),
            reliability=reliability,
            classes=classes,
            confusion=confusion.numpy(),
            reject=decision.reject,
            coverage=float(answered.float().mean()),
            answered_top1=float(right[answered].float().mean()),
        )

    def labels(self, target: Tensor, names: Sequence[str]) -> list[str]:
        return [names[i] for i in target.tolist()]

    def mistakes(
        self, probabilities: Tensor, target: Tensor, names: Sequence[str], decision: Decision
    ) -> list[Mistake]:
        """By the least probability of the truth first. A withheld answer is no mistake."""
        belief = probabilities.gather(1, target[:, None]).squeeze(1)
        found = []
        for i in belief.argsort(stable=True).tolist():
            for answer in self.chosen(probabilities[i], decision):
                if answer != target[i]:
                    share = float(probabilities[i, answer])
                    found.append(Mistake(i, f"{names[int(target[i])]} taken for {names[answer]} ({share:.0%})"))
        return found


@dataclass(frozen=True)
class ClassScore:
    """How well one class is recognised. NaN where a share is not defined: of no pictures, or of no answers."""

    name: str
    support: int
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class ClassScores:
    """All numbers of an evaluation; shares of 1."""

    images: int
    loss: float
    top1: float
    interval: tuple[float, float]
    topk: float
    k: int
    """5, or fewer where there are fewer classes."""
    majority: float
    """Top-1 of always answering the commonest class: the number to beat."""
    balanced: float
    """Mean recall of the classes that occur: each counts the same, however many pictures it has."""
    calibration_error: float
    reliability: tuple[Bin, ...]
    """The probability of the answer beside how often it is right."""
    classes: tuple[ClassScore, ...]
    confusion: np.ndarray
    reject: float | None
    """Answers less probable than this were withheld; None: all were given. The scores above count all of them."""
    coverage: float
    """The share of the pictures that were answered."""
    answered_top1: float
    """Top-1 among these; NaN where there are none."""

    @property
    def value(self) -> float:
        """Top-1 accuracy."""
        return self.top1

    def summary(self) -> list[tuple[str, str, str]]:
        """The numbers that people read first."""
        low, high = self.interval
        rows = [("accuracy", text(self.top1), f"95% interval {low:.1%} to {high:.1%}")]
        if 1 < self.k < len(self.classes):
            rows.append((f"top-{self.k} accuracy", text(self.topk), ""))
        rows += [
            ("mean recall of the classes", text(self.balanced), ""),
            ("always the commonest class", text(self.majority), ""),
        ]
        if self.reject is not None:
            rows += [
                ("answered", text(self.coverage), f"with at least {self.reject:.1%}"),
                ("accuracy of the answered", text(self.answered_top1), ""),
            ]
        return rows

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

    def table(self) -> Table:
        """A row for each class."""
        rows = tuple((c.name, c.support, c.precision, c.recall, c.f1) for c in self.classes)
        return Table(("class", "pictures", "precision", "recall", "F1"), ("", "d", ".1%", ".1%", ".1%"), rows)


def class_scores(confusion: Tensor, names: Sequence[str]) -> tuple[ClassScore, ...]:
    """Precision, recall and F1 of each class from a confusion matrix."""
    hits = confusion.diagonal().double()
    support, answered = confusion.sum(dim=1), confusion.sum(dim=0)
    precision, recall, f1 = hits / answered, hits / support, 2 * hits / (answered + support)
    return tuple(
        ClassScore(name, int(support[i]), float(precision[i]), float(recall[i]), float(f1[i]))
        for i, name in enumerate(names)
    )
