"""The contract of a task: what the training loop, the evaluation, the predictor and the reports ask of it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from torch import Tensor
from torchmetrics import Metric

from mixwise.config import Decision
from mixwise.tasks.calibration import Bin


@dataclass(frozen=True)
class Table:
    """Rows for people and for CSV files; the first column names the row, the last one says how good it is."""

    columns: tuple[str, ...]
    formats: tuple[str, ...]
    """Of each column, as `format` takes them."""
    rows: tuple[tuple[Any, ...], ...]
    """NaN: not defined, as the recall of a class without pictures."""

    def cells(self) -> list[list[str]]:
        """The rows as text."""
        return [[text(value, form) for value, form in zip(row, self.formats, strict=True)] for row in self.rows]

    def weakest_first(self) -> "Table":
        """Sorted by the last column; rows where it is not defined come last."""
        rows = sorted(self.rows, key=lambda row: (row[-1] != row[-1], row[-1], row[0]))
        return Table(self.columns, self.formats, tuple(rows))


def text(value: Any, form: str = ".2%") -> str:
    """A number for people; NaN is a dash.

    >>> text(0.5), text(float("nan"))
    ('50.00%', '–')
    """
    return "–" if value != value else format(value, form)


@dataclass(frozen=True)
class Mistake:
    """A picture that was answered wrongly."""

    index: int
    """Of the picture."""
    said: str
    """What was taken for what, with which probability."""


class Scores(Protocol):
    """What every evaluation has, whatever the task."""

    @property
    def images(self) -> int:
        """Pictures scored."""

    @property
    def loss(self) -> float:
        """Mean loss."""

    @property
    def value(self) -> float:
        """The task's `metric`, a share of 1."""

    @property
    def interval(self) -> tuple[float, float]:
        """95 % bootstrap interval of `value`."""

    @property
    def reliability(self) -> tuple[Bin, ...]:
        """Probabilities beside how often they were right."""

    @property
    def calibration_error(self) -> float:
        """Mean gap between the two."""

    @property
    def confusion(self) -> np.ndarray | None:
        """(classes, classes): row = truth, column = answer; None where a picture may have several labels."""

    def summary(self) -> list[tuple[str, str, str]]:
        """The numbers that people read first: what, how much, and a remark or nothing."""

    def table(self) -> Table:
        """A row for each class."""

    @property
    def baseline(self) -> float:
        """What `value` is without looking at the pictures: the number to beat."""

    @property
    def parts(self) -> tuple[tuple[str, int, float], ...]:
        """(name, pictures, the task's `part_metric`) of each class."""

    @property
    def constant(self) -> str:
        """The one class that every picture got, where there are pictures of several; empty otherwise."""


class Task(ABC):
    """What is asked of the outputs (b, classes) of a model: loss, probabilities, answers, and the number that decides.

    Labels are as `Items.labels` has them.
    """

    name: ClassVar[str]
    """As it stands in a model's header and in config.toml."""
    metric: ClassVar[str]
    """What best weights are chosen by; larger is better. In the header and in metrics.csv it is val_<metric>."""
    withheld: ClassVar[str]
    """The word for a withheld answer; empty: the task withholds none."""
    part_metric: ClassVar[str]
    """What is told of each class."""
    guess: ClassVar[str]
    """The way to answer without looking at the pictures whose `metric` is `Scores.baseline`."""

    @abstractmethod
    def loss(self, logits: Tensor, target: Tensor, *, smoothing: float = 0.0, weight: Tensor | None = None) -> Tensor:
        """Mean loss of outputs (b, classes) against labels, or against what mixup makes of them.

        Args:
            weight: (classes,) as `balance` makes it; None: all classes alike.
        """

    @abstractmethod
    def balance(self, counts: np.ndarray, images: int) -> Tensor:
        """Weights (classes,) under which every class counts the same, from the pictures of each and of all."""

    @abstractmethod
    def probabilities(self, logits: Tensor) -> Tensor:
        """Outputs (b, classes) to probabilities (b, classes) in float32."""

    @abstractmethod
    def truth(self, target: Tensor) -> Tensor:
        """Targets that mixup made back to labels: what a meter counts a mixed picture as."""

    @abstractmethod
    def meter(self, classes: int) -> Metric:
        """A running `metric` of outputs and labels."""

    @abstractmethod
    def reliability(self, probabilities: Tensor, target: Tensor) -> tuple[Bin, ...]:
        """Probabilities (n, classes) beside how often they were right."""

    @abstractmethod
    def cutoffs(self, probabilities: Tensor, target: Tensor, names: Sequence[str]) -> tuple[Decision, list[str]]:
        """Thresholds chosen on pictures that were not trained on, and sentences about them."""

    @abstractmethod
    def chosen(self, probabilities: Tensor, decision: Decision) -> list[int]:
        """The answer for one picture (classes,), the most probable first; empty: none."""

    @abstractmethod
    def score(
        self,
        probabilities: Tensor,
        target: Tensor,
        names: tuple[str, ...],
        decision: Decision,
        *,
        topk: int | None = None,
    ) -> Scores:
        """Everything that an evaluation tells, from probabilities (n, classes) and labels.

        Args:
            topk: k of the top-k accuracy, clamped to the number of classes; None: 5. `UsageError` where there is none.
        """

    @abstractmethod
    def labels(self, target: Tensor, names: Sequence[str]) -> list[str]:
        """The true label or labels of every picture as text."""

    @abstractmethod
    def mistakes(
        self, probabilities: Tensor, target: Tensor, names: Sequence[str], decision: Decision
    ) -> list[Mistake]:
        """All pictures that were answered wrongly, the worst first."""
