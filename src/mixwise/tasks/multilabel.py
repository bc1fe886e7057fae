"""Any number of labels per picture: every label has its own yes or no."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import MultilabelAveragePrecision
from torchmetrics.utilities import dim_zero_cat

from mixwise.config import Decision
from mixwise.errors import UsageError
from mixwise.tasks.base import Mistake, Table, Task, text
from mixwise.tasks.calibration import Bin, bins, calibration_error
from mixwise.tasks.intervals import bootstrap
from mixwise.tasks.ranking import Ranking, best_threshold

SEEN = 5
"""A label's threshold is chosen where at least so many validation pictures have it, and as many do not."""


class MultiLabel(Task):
    """Several labels per picture, or none: a sigmoid a label, targets (b, classes) of 0 and 1."""

    name = "multilabel"
    metric = "mAP"
    withheld = ""
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

    def reliability(self, probabilities: Tensor, target: Tensor) -> tuple[Bin, ...]:
        """Over all pairs of a picture and a label: its probability beside how often the picture has it."""
        return bins(probabilities.flatten(), target.flatten() > 0.5)

    def cutoffs(self, probabilities: Tensor, target: Tensor, names: Sequence[str]) -> tuple[Decision, list[str]]:
        """Of each label the threshold with the best F1; 0.5 for a label that too few pictures have, or lack."""
        truth, count = target.numpy() > 0.5, len(target)
        known = [SEEN <= column.sum() <= count - SEEN for column in truth.T]
        thresholds = tuple(
            best_threshold(probabilities[:, i].numpy(), truth[:, i]) if known[i] else 0.5 for i in range(len(names))
        )
        notes = [f"thresholds of best F1: {min(thresholds):.1%} to {max(thresholds):.1%}"]
        rare = [name for name, enough in zip(names, known, strict=True) if not enough]
        if rare:
            shown = ", ".join(rare[:10]) + (f" and {len(rare) - 10} more" if len(rare) > 10 else "")
            notes.append(f"fewer than {SEEN} validation pictures with or without a label leave it at 50%: {shown}")
        return Decision(thresholds=thresholds), notes

    def chosen(self, probabilities: Tensor, decision: Decision) -> list[int]:
        over = probabilities.numpy() >= thresholds(decision, len(probabilities))
        return [i for i in probabilities.argsort(descending=True, stable=True).tolist() if over[i]]

    def score(
        self,
        probabilities: Tensor,
        target: Tensor,
        names: tuple[str, ...],
        decision: Decision,
        *,
        topk: int | None = None,
    ) -> "LabelScores":
        if topk is not None:
            raise UsageError("top-k accuracy is for models with one label per picture; this one has several")
        truth = target.numpy() > 0.5
        cut = thresholds(decision, len(names))
        said = probabilities.numpy() >= cut
        ranking = Ranking(probabilities.numpy(), truth)
        average = ranking(np.ones(len(truth)))
        hits, answered, support = (truth & said).sum(0), said.sum(0), truth.sum(0)
        with np.errstate(invalid="ignore"):
            f1 = 2 * hits / (answered + support)
            shares = zip(hits / answered, hits / support, f1, strict=True)
            micro = float(2 * hits.sum() / (answered.sum() + support.sum()))
        reliability = self.reliability(probabilities, target)
        return LabelScores(
            images=len(truth),
            loss=float(F.binary_cross_entropy(probabilities, target.float())),
            mean_average_precision=mean(average),
            interval=bootstrap(len(truth), lambda counts: mean(ranking(counts))),
            micro_f1=micro,
            macro_f1=mean(np.where(support, f1, np.nan)),
            exact=float((truth == said).all(axis=1).mean()),
            none=float((~said.any(axis=1)).mean()),
            calibration_error=calibration_error(reliability),
            reliability=reliability,
            labels=tuple(
                LabelScore(name, int(support[i]), float(cut[i]), float(average[i]), *map(float, each))
                for i, (name, each) in enumerate(zip(names, shares, strict=True))
            ),
        )

    def labels(self, target: Tensor, names: Sequence[str]) -> list[str]:
        return [";".join(names[i] for i in row.nonzero()[:, 0].tolist()) for row in target > 0.5]

    def mistakes(
        self, probabilities: Tensor, target: Tensor, names: Sequence[str], decision: Decision
    ) -> list[Mistake]:
        """By the label that is furthest from the truth first; of a picture's wrong labels the four worst are named."""
        truth = target.numpy() > 0.5
        p = probabilities.numpy()
        gap = np.where(truth != (p >= thresholds(decision, len(names))), np.abs(truth - p), 0)
        found = []
        for i in np.argsort(-gap.max(axis=1), kind="stable").tolist():
            wrong = [k for k in np.argsort(-gap[i], kind="stable").tolist() if gap[i, k]]
            said = [f"{'missed' if truth[i, k] else 'added'} {names[k]} ({p[i, k]:.0%})" for k in wrong[:4]]
            if wrong:
                found.append(Mistake(i, ", ".join(said) + (f", {len(wrong) - 4} more" if len(wrong) > 4 else "")))
        return found


def thresholds(decision: Decision, labels: int) -> np.ndarray:
    """The threshold of each label, in float32 as the probabilities are."""
    return np.array(decision.thresholds or (0.5,) * labels, np.float32)


def mean(values: np.ndarray) -> float:
    """The mean over the labels that occur; NaN where none does."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


class MeanAveragePrecision(MultilabelAveragePrecision):
    """The mean over the labels that occur: one that never does has no precision to speak of. 0 where none does."""

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Outputs and labels of a batch."""
        # As probabilities, since torchmetrics takes a batch of outputs that all lie in 0 to 1 for such.
        super().update(preds.float().sigmoid(), target)

    def sync(
        self,
        dist_sync_fn: Callable[..., Any] | None = None,
        process_group: Any = None,
        should_sync: bool = True,
        distributed_available: Callable[..., Any] | None = None,
    ) -> None:
        """Gather the pictures of all processes; one that had none takes part with none, in the shape of the others."""
        if not self.update_called:
            nothing = torch.empty(0, self.num_labels, device=self.device)
            self.update(nothing, nothing.long())
        super().sync(dist_sync_fn, process_group, should_sync, distributed_available)

    def compute(self) -> Tensor:  # type: ignore[override]
        ranking = Ranking(*(dim_zero_cat(each).cpu().numpy() for each in (self.preds, self.target)))
        return torch.tensor(mean(ranking(np.ones(ranking.order.shape[1])))).nan_to_num()


@dataclass(frozen=True)
class LabelScore:
    """How well one label is told. NaN where a share is not defined: of no pictures, or of no answers."""

    name: str
    support: int
    threshold: float
    average_precision: float
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class LabelScores:
    """All numbers of an evaluation; shares of 1."""

    images: int
    loss: float
    mean_average_precision: float
    """Over the labels that occur."""
    interval: tuple[float, float]
    micro_f1: float
    """F1 over all pairs of a picture and a label."""
    macro_f1: float
    """Mean F1 of the labels that occur."""
    exact: float
    """The share of the pictures with every label right."""
    none: float
    """The share of the pictures for which no label was given."""
    calibration_error: float
    reliability: tuple[Bin, ...]
    labels: tuple[LabelScore, ...]
    confusion: None = None

    @property
    def value(self) -> float:
        """Mean average precision."""
        return self.mean_average_precision

    def summary(self) -> list[tuple[str, str, str]]:
        """The numbers that people read first."""
        low, high = self.interval
        return [
            ("mean average precision", text(self.value), f"95% interval {text(low, '.1%')} to {text(high, '.1%')}"),
            ("F1 of all labels together (micro)", text(self.micro_f1), ""),
            ("mean F1 of the labels (macro)", text(self.macro_f1), ""),
            ("every label right", text(self.exact), ""),
            ("no label given", text(self.none), ""),
        ]

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

    def table(self) -> Table:
        """A row for each label."""
        columns = ("label", "pictures", "threshold", "average precision", "precision", "recall", "F1")
        rows = tuple(
            (x.name, x.support, x.threshold, x.average_precision, x.precision, x.recall, x.f1) for x in self.labels
        )
        return Table(columns, ("", "d", *[".1%"] * 5), rows)
