"""The contract of a task: what the training loop, the evaluation and the predictor ask of it."""

from abc import ABC, abstractmethod
from typing import ClassVar, Protocol

import numpy as np
from torch import Tensor
from torchmetrics import Metric


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
    def baseline(self) -> float:
        """What `value` is without looking at the pictures: the number to beat."""

    @property
    def parts(self) -> tuple[tuple[str, int, float], ...]:
        """(name, pictures, the task's `part_metric`) of each class."""

    @property
    def constant(self) -> str:
        """The one class that every picture got, where there are pictures of several; empty otherwise."""


class Task(ABC):
    """What is asked of the outputs (b, classes) of a model: loss, probabilities, and the number that decides."""

    name: ClassVar[str]
    """As it stands in a model's header and in config.toml."""
    metric: ClassVar[str]
    """What best weights are chosen by; larger is better. In the header and in metrics.csv it is val_<metric>."""

    part_metric: ClassVar[str]
    """What is told of each class."""
    guess: ClassVar[str]
    """The way to answer without looking at the pictures whose `metric` is `Scores.baseline`."""

    @abstractmethod
    def loss(self, logits: Tensor, target: Tensor, *, smoothing: float = 0.0, weight: Tensor | None = None) -> Tensor:
        """Mean loss of outputs (b, classes) against targets as `Items.labels` has them, or as mixup makes them.

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
    def score(self, probabilities: Tensor, target: Tensor, names: tuple[str, ...], *, topk: int = 5) -> Scores:
        """Everything that an evaluation tells, from probabilities (n, classes) and labels."""
