"""The contract of a task: what the training loop, the evaluation and the predictor ask of it."""

from abc import ABC, abstractmethod
from typing import ClassVar, Protocol

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


class Task(ABC):
    """What is asked of the outputs (b, classes) of a model: loss, probabilities, and the number that decides."""

    name: ClassVar[str]
    """As it stands in a model's header and in config.toml."""
    metric: ClassVar[str]
    """What best weights are chosen by; larger is better. In the header and in metrics.csv it is val_<metric>."""

    @abstractmethod
    def loss(self, logits: Tensor, target: Tensor, *, smoothing: float = 0.0) -> Tensor:
        """Mean loss of outputs (b, classes) against targets as `Items.labels` has them, or as mixup makes them."""

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
