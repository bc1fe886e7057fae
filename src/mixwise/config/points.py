"""What a classifier of point clouds is made of."""

from typing import ClassVar, Literal, Self

from pydantic import Field, PositiveInt
from pydantic import model_validator as check

from mixwise.config.model import ModelConfig, Task


class PCTConfig(ModelConfig):
    """embedding → groups of neighbours → attention layers → fusion of their outputs → pool → head."""

    task: ClassVar[Task] = "points"
    kind: Literal["pct"] = "pct"
    points: int = Field(default=1024, gt=0)
    """Of the clouds in training; the model takes other numbers too."""
    classes: int = Field(default=40, ge=0)
    """0: no head, the model gives the pooled features."""
    width: int = Field(default=64, gt=0)
    """Of the embedding; each grouping doubles it."""
    groups: tuple[tuple[PositiveInt, PositiveInt], ...] = ((512, 32), (256, 32))
    """Points kept and neighbours read of each, one pair a grouping; none: the attention is over all points."""
    order: Literal["sorted", "given"] = "sorted"
    """Which point the sampling starts at: the least by x, then y, then z, or the first of the cloud."""
    positions: bool = False
    """Whether every attention layer adds a code of the coordinates, and one layer instead of two stands before them."""
    depth: int = Field(default=4, gt=0)
    """Attention layers."""
    memory: int = Field(default=0, ge=0)
    """Slots of an external attention; 0: self-attention."""
    offset: bool = True
    """Whether a layer transforms its input minus the attention, or the attention alone."""
    eps: float | None = Field(default=1e-9, gt=0)
    """Added to the sum in the second normalisation; None: nothing."""
    fused: int = Field(default=1024, gt=0)
    """Channels of the points in front of the pool."""
    pool: Literal["max", "max_mean"] = "max"
    """Over the points; max_mean: both, beside each other."""
    hidden: tuple[PositiveInt, ...] = (512, 256)
    """Layers of the head in front of the last."""
    head_act: Literal["leaky_relu", "relu"] = "leaky_relu"
    """Behind them; leaky_relu: with a slope of 0.2."""
    dropout: float = Field(default=0.5, ge=0, lt=1)
    """Behind each of them."""

    @property
    def dim(self) -> int:
        """Channels of the attention."""
        return self.width << len(self.groups)

    @property
    def least(self) -> int:
        """The smallest number of points that has enough neighbours."""
        return max((neighbours for _, neighbours in self.groups), default=1)

    @property
    def input(self) -> str:
        """The shape that the model takes, in words."""
        enough = "" if self.least == 1 else f" from {self.least}"
        return f"{self.points} × 3 (points × coordinates), or another number{enough} of points"

    @check(mode="after")
    def _check(self) -> Self:
        kept = [points for points, _ in self.groups]
        for points, (_, neighbours) in zip(kept, self.groups[1:], strict=False):
            if neighbours > points:
                raise ValueError(f"groups: a grouping reads {neighbours} neighbours where {points} points are left")
        if not self.groups and self.order != "sorted":
            raise ValueError("order is about the sampling in groups, and there are none")
        if not self.memory and self.dim % 4:
            raise ValueError(f"width: self-attention needs a multiple of 4 channels, got {self.dim}")
        return self
