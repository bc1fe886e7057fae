"""Models that work on maps (b, c, h, w): convolutions with batch norms, how they fold, stem → stages → mean → head."""

import torch
from torch import Tensor, nn

from mixwise.backbone import Features
from mixwise.config import ModelConfig, Size, VisionConfig
from mixwise.errors import UsageError
from mixwise.layers import token_view
from mixwise.mixers.base import ResizeMethod
from mixwise.model import Model, image_size, refuse_size
from mixwise.norms import scale_shift


class Foldable(nn.Module):
    """A module that knows an equal, cheaper one for inference."""

    def folded(self) -> nn.Module:
        """Equal to this module in evaluation with its present statistics; computed in float64."""
        raise NotImplementedError


def fold(module: nn.Module) -> None:
    """Put the folded module in the place of every `Foldable` inside, in place. A second call finds none."""
    for name, child in module.named_children():
        if isinstance(child, Foldable):
            setattr(module, name, child.folded())
        else:
            fold(child)


class ConvNorm(Foldable):
    """norm(conv(x)) on maps (b, c, h, w): a convolution without a bias, padded to keep the size, and its batch norm."""

    def __init__(
        self, dim: int, out: int, kernel: int = 1, *, stride: int = 1, dilation: int = 1, groups: int = 1
    ) -> None:
        super().__init__()
        padding = dilation * (kernel // 2)
        self.conv = nn.Conv2d(dim, out, kernel, stride, padding, dilation, groups, bias=False)
        self.norm = nn.BatchNorm2d(out)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x))

    def kernel_shift(self) -> tuple[Tensor, Tensor]:
        """The equal convolution: its kernel (o, c / groups, k, k) and its bias, float64."""
        scale, shift = scale_shift(self.norm)
        return self.conv.weight.double() * scale[:, None, None, None], shift

    @torch.no_grad()
    def folded(self) -> nn.Conv2d:
        """One convolution with a bias."""
        conv, (kernel, shift) = self.conv, self.kernel_shift()
        with torch.device(conv.weight.device):
            one = nn.Conv2d(
                conv.in_channels,
                conv.out_channels,
                conv.kernel_size,  # type: ignore[arg-type]
                conv.stride,  # type: ignore[arg-type]
                conv.padding,  # type: ignore[arg-type]
                conv.dilation,  # type: ignore[arg-type]
                conv.groups,
            )
        one.weight = nn.Parameter(kernel.to(conv.weight.dtype))
        one.bias = nn.Parameter(shift.to(conv.weight.dtype))
        return one


class MapModel(Model):
    """stem → stages → mean → linear head, all on maps. A subclass makes the stem and the stages.

    Shapes: images (b, channels, h, w) → logits (b, classes); with classes=0 → pooled features (b, c).

    Args:
        config: what to build.
        stem: images → the map that the first stage takes.
        stages: one module a stage.
        dim: width of the last stage.
        fixed_size: whether the weights belong to one image size.
    """

    config: VisionConfig

    def __init__(
        self, config: VisionConfig, stem: nn.Module, stages: list[nn.Sequential], *, dim: int, fixed_size: bool
    ) -> None:
        super().__init__()
        self.config = config
        self.stem = stem
        self.stages = nn.ModuleList(stages)
        self.head = nn.Linear(dim, config.classes) if config.classes else nn.Identity()
        self.fixed_size = fixed_size
        if config.form == "reparameterized":
            self.fold()

    @torch.no_grad()
    def fold(self) -> None:
        fold(self)

    def refit(self, image: Size, method: ResizeMethod) -> ModelConfig:
        """As of any model, but one whose weights belong to a size has no rule for another."""
        if self.fixed_size:
            raise UsageError(f"{self.config.name} has weights for its image size alone, and no rule for another")
        return super().refit(image, method)

    def _check(self, images: Tensor) -> None:
        size = image_size(self.config, images)
        if self.fixed_size and size != self.config.image:
            refuse_size(self.config, size)

    def pyramid(self, images: Tensor) -> list[Tensor]:
        """Images → one map (b, c, h, w) per stage, finest first."""
        self._check(images)
        x, maps = self.stem(images), []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        return maps

    def features(self, images: Tensor) -> Features:
        """Images → tokens (b, n, c) of the last stage and their grid."""
        x = self.pyramid(images)[-1]
        return Features(token_view(x), (x.shape[2], x.shape[3]))

    def pool(self, features: Features) -> Tensor:
        """Tokens → pooled features (b, c), what the head takes."""
        return features.tokens.mean(dim=1)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.pool(self.features(images)))
