"""What the networks of the first RepMLP paper are made of."""

from typing import Literal, Self

from pydantic import Field
from pydantic import model_validator as check

from mixwise.config.base import Config, Size
from mixwise.config.model import VisionConfig


class RepMLPBlockConfig(Config):
    """One RepMLP of 2021."""

    window: Size
    """(h, w) of the partitions that FC3 works in."""
    groups: int = Field(default=1, gt=0)
    """Of FC3 and of the convolutions."""
    kernels: tuple[int, ...] = (1, 3, 5)
    """Sizes of the convolutions; none: no local perceptron."""
    global_perceptron: bool = True
    """Whether FC1 and FC2 tell the partitions of each other, where there are several."""
    reduce: int = Field(default=1, gt=0)
    """Width of the global perceptron over its hidden width."""
    init: Literal["default", "orthogonal"] = "default"
    """Of FC3. orthogonal: as the authors' code since June 2021; it takes seconds a block."""

    @check(mode="after")
    def _check(self) -> Self:
        if any(k < 1 or k % 2 == 0 for k in self.kernels):
            raise ValueError("kernels must be odd")
        if not self.global_perceptron and self.reduce != 1:
            raise ValueError("reduce belongs to the global perceptron, and there is none")
        return self


class RepMLPStageConfig(Config):
    """`depth` residual blocks; those of stride 1 have a RepMLP where `block` says which."""

    depth: int = Field(gt=0)
    dim: int = Field(gt=0)
    """Width behind each block."""
    block: RepMLPBlockConfig | None = None
    """None: the blocks of a ResNet-50."""
    light: bool = False
    """Two 1 × 1 convolutions around the RepMLP; otherwise two 3 × 3 as well."""
    squeeze: int = Field(default=1, gt=0)
    """r: what the first 3 × 3 convolution divides the width by, in front of the RepMLP."""

    @check(mode="after")
    def _check(self) -> Self:
        if self.block is None and (self.light or self.squeeze != 1):
            raise ValueError("light and squeeze are about blocks with a RepMLP, and block is None")
        if self.light and self.squeeze != 1:
            raise ValueError("a light block has no 3 × 3 convolution to squeeze the width")
        return self


class RepMLPResNetConfig(VisionConfig):
    """A ResNet with RepMLPs in some of its blocks."""

    kind: Literal["repmlp_resnet"] = "repmlp_resnet"
    width: int = Field(default=64, gt=0)
    """Behind the stem."""
    stages: tuple[RepMLPStageConfig, ...] = Field(min_length=1)


class RepMLPPlainConfig(VisionConfig):
    """RepMLPs, or convolutions in their place, in turn with 1 × 1 convolutions; no shortcuts."""

    kind: Literal["repmlp_plain"] = "repmlp_plain"
    dims: tuple[int, ...] = Field(min_length=1)
    """Width of each stage; behind each but the last the map is halved."""
    depth: int = Field(default=2, gt=0)
    """Mixers in each stage."""
    block: RepMLPBlockConfig | None = None
    """The mixers are RepMLPs."""
    kernel: int | None = None
    """The mixers are convolutions of this size."""
    groups: int = Field(default=1, gt=0)
    """Of these convolutions."""

    @check(mode="after")
    def _check(self) -> Self:
        if (self.block is None) == (self.kernel is None):
            raise ValueError("the mixers are either RepMLPs (block) or convolutions (kernel)")
        if self.kernel is not None and (self.kernel < 1 or self.kernel % 2 == 0):
            raise ValueError("kernel must be odd")
        if self.kernel is None and self.groups != 1:
            raise ValueError("groups is about the convolutions; a RepMLP's are block.groups")
        return self
