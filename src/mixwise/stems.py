"""From pixels to tokens and from one stage to the next: stems and downsampling."""

import math
from typing import Any, cast

from torch import Tensor, nn

from mixwise.config import Size, pair
from mixwise.errors import UsageError
from mixwise.folding import absorb_after, absorb_before
from mixwise.layers import activation, image_view, token_view
from mixwise.norms import NoNorm, make_norm, norm


def _strides(factor: int) -> list[int]:
    """A total stride as steps of 2 and one odd rest: 8 → [2, 2, 2], 6 → [2, 3], 1 → []."""
    steps = []
    while factor % 2 == 0 and factor > 1:
        steps.append(2)
        factor //= 2
    return [*steps, factor] if factor > 1 else steps


class Stem(nn.Module):
    """Maps (b, channels, h, w) → (b, dim, rows, columns). The class of stems and of downsampling layers.

    Args:
        channels: of the input.
        dim: of the output.
        patch: total stride.
        norm_name: the backbone's norm, for stems that have it.
    """

    step: Size = (1, 1)
    """Heights and widths must be multiples of it."""

    def __init__(self, channels: int, dim: int, patch: Size, *, norm_name: str) -> None:
        super().__init__()
        self.patch = patch

    def grid(self, size: Size) -> Size:
        """(rows, columns) of tokens for an image of (height, width); `UsageError` where it does not fit."""
        raise NotImplementedError

    def fold(self) -> None:
        """Move norms with fixed statistics into the convolutions, in place; nothing where there are none."""


class ConvNormAct(Stem):
    """Convolution → norm on tokens → activation, on maps (b, c, h, w). Padding k//2: any size works.

    The convolution has a bias only where no norm with a shift of its own follows. `shift=False` leaves out that shift
    too: between stages it would be a constant per channel, which batch norms that read it remove again.
    """

    def __init__(
        self, channels: int, dim: int, patch: Size, *, norm_name: str, act: str = "identity", shift: bool = False
    ) -> None:
        super().__init__(channels, dim, patch, norm_name=norm_name)
        rows, columns = (max(3, s + 1 - s % 2) for s in patch)
        padding = (rows // 2, columns // 2)
        self.conv = nn.Conv2d(channels, dim, (rows, columns), patch, padding, bias=norm_name in ("none", "affine"))
        self.norm = norm(norm_name, dim, bias=shift)
        self.act = activation(act)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        grid = (x.shape[2], x.shape[3])
        return image_view(self.act(self.norm(token_view(x))), grid)

    def grid(self, size: Size) -> Size:
        return math.ceil(size[0] / self.patch[0]), math.ceil(size[1] / self.patch[1])

    def fold(self) -> None:
        scale, shift, rest = self.norm.split()
        if isinstance(rest, NoNorm):
            absorb_after(self.conv, scale, shift)
            self.norm = rest


class PatchStem(Stem):
    """One convolution: norm → convolution → norm → activation, where the norms are `none` unless asked for.

    With kernel = stride = patch these are the non-overlapping patches of ViT and MLP-Mixer, and sizes must be
    multiples; a larger kernel with padding overlaps (PoolFormer: kernel 7, stride 4, padding 2) and takes any size.

    Args:
        kernel: side or (rows, columns); None: the patch.
        padding: on each side.
        bias: of the convolution.
        pre_norm, norm: names of norms on the tokens before and after the convolution.
        eps: of these norms; None: their default.
        norm_bias: whether these norms shift.
        act: activation at the end.
    """

    def __init__(
        self,
        channels: int,
        dim: int,
        patch: Size,
        *,
        norm_name: str,
        kernel: int | tuple[int, int] | None = None,
        padding: int | tuple[int, int] = 0,
        bias: bool = True,
        pre_norm: str = "none",
        norm: str = "none",
        eps: float | None = None,
        norm_bias: bool = True,
        act: str = "identity",
    ) -> None:
        super().__init__(channels, dim, patch, norm_name=norm_name)
        self.kernel: Size = patch if kernel is None else pair(kernel)
        self.padding: Size = pair(padding)
        if self.kernel == patch:
            self.step = patch
        self.pre_norm = make_norm(pre_norm, channels, bias=norm_bias, eps=eps)
        self.proj = nn.Conv2d(channels, dim, self.kernel, patch, self.padding, bias=bias)
        self.norm = make_norm(norm, dim, bias=norm_bias, eps=eps)
        self.act = activation(act)

    def forward(self, x: Tensor) -> Tensor:
        x = self.proj(image_view(self.pre_norm(token_view(x)), (x.shape[2], x.shape[3])))
        return image_view(self.act(self.norm(token_view(x))), (x.shape[2], x.shape[3]))

    def grid(self, size: Size) -> Size:
        if size[0] % self.step[0] or size[1] % self.step[1]:
            raise UsageError(
                f"image {size[0]}×{size[1]} is not a multiple of the patch {self.patch[0]}×{self.patch[1]}"
            )
        rows, columns = (
            (side + 2 * pad - kernel) // stride + 1
            for side, pad, kernel, stride in zip(size, self.padding, self.kernel, self.patch, strict=True)
        )
        return rows, columns

    def fold(self) -> None:
        scale, shift, rest = self.pre_norm.split()
        if shift is None or self.padding == (0, 0):
            absorb_before(self.proj, scale, shift)
            self.pre_norm = rest
        scale, shift, rest = self.norm.split()
        if isinstance(rest, NoNorm):
            absorb_after(self.proj, scale, shift)
            self.norm = rest


class ConvStem(Stem):
    """A stack of 3 × 3 convolutions with stride 2, the backbone's norm and an activation: one token per patch.

    Overlapping, so it sees edges, and it takes any image size: the grid is the size over the patch, rounded up.
    """

    def __init__(self, channels: int, dim: int, patch: Size, *, norm_name: str, act: str = "relu") -> None:
        super().__init__(channels, dim, patch, norm_name=norm_name)
        rows, columns = _strides(patch[0]), _strides(patch[1])
        steps = max(len(rows), len(columns), 1)
        rows, columns = [1] * (steps - len(rows)) + rows, [1] * (steps - len(columns)) + columns
        layers: list[nn.Module] = []
        for i, stride in enumerate(zip(rows, columns, strict=True)):
            out = max(8, dim >> (steps - 1 - i)) if i < steps - 1 else dim
            layers.append(ConvNormAct(channels, out, stride, norm_name=norm_name, act=act, shift=True))
            channels = out
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)

    def grid(self, size: Size) -> Size:
        return math.ceil(size[0] / self.patch[0]), math.ceil(size[1] / self.patch[1])

    def fold(self) -> None:
        for layer in self.layers:
            cast(Stem, layer).fold()


STEMS: dict[str, Any] = {"conv": ConvStem, "patch": PatchStem}
"""Every stem by name."""
