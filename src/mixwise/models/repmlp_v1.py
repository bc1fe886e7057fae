"""The RepMLP of 2021: one fully connected layer over the channels and positions of a window, convolutions beside it.

    y = BN(FC3 vec(x + FC2 relu(FC1 BN(avg(x))))) + sum_k BN(conv_k(x + …))

window by window: the global perceptron FC1, FC2 adds one number to each channel of each window from the means of all
windows; FC3 (partition perceptron) maps the c·h·w numbers of a window to o·h·w, in groups of channels; the convolutions
(local perceptron) see one window each. All of it but the ReLU folds into FC1, FC2 and FC3.

Source: Ding et al., "RepMLP: Re-parameterizing Convolutions into Fully-connected Layers for Image Recognition",
arXiv 2105.01883, sections 3.1 and 3.2; DingXiaoH/RepMLP before December 2021 (repmlp.py).

Differs: FC3 starts as torch's layers do, as the authors' weights did; their code starts it orthogonal since June 2021
(`init`). Where c ≠ o the authors' conversion and the paper's algorithm 1 are wrong; here it is right.
It is not the block of RepMLPNet (`mixwise.mixers`, name `repmlp`), whose matrices mix no channels.
"""

import copy
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixwise.config import RepMLPBlockConfig, Size
from mixwise.errors import UsageError
from mixwise.mixers.repmlp_parts import conv_matrix
from mixwise.models.maps import ConvNorm, Foldable
from mixwise.norms import TokenBatchNorm, scale_shift


def map_windows(x: Tensor, window: Size) -> Tensor:
    """A map (b, c, H, W) as its windows (b · across, c, h, w), row by row."""
    x = x.unflatten(3, (-1, window[1])).unflatten(2, (-1, window[0]))
    return x.permute(0, 2, 4, 1, 3, 5).flatten(0, 2)


def map_unwindows(x: Tensor, across: Size) -> Tensor:
    """The inverse of `map_windows`, for (rows, columns) of windows."""
    x = x.unflatten(0, (-1, *across)).permute(0, 3, 1, 4, 2, 5)
    return x.flatten(4, 5).flatten(2, 3)


class GroupedLinear(nn.Module):
    """A linear layer in groups as one batched product: (n, in) → (n, out), weight (g, out / g, in / g).

    Args:
        weight: the matrices.
        bias: (g, out / g), or none.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = None if bias is None else nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        rows, weight = x.unflatten(1, (self.weight.shape[0], -1)).transpose(0, 1), self.weight.transpose(1, 2)
        y = torch.bmm(rows, weight) if self.bias is None else torch.baddbmm(self.bias[:, None], rows, weight)
        return y.transpose(0, 1).flatten(1)


class GlobalPerceptronV1(nn.Module):
    """One number for each channel of each window, from the means of all: (b, c, H, W) → (b · across, c, 1, 1)."""

    def __init__(self, dim: int, window: Size, across: Size, reduce: int) -> None:
        super().__init__()
        wide = dim * across[0] * across[1]
        self.window, self.across = window, across
        self.norm: nn.Module = nn.BatchNorm2d(dim)
        self.fc1 = nn.Linear(wide, max(1, wide // reduce))
        self.fc2 = nn.Linear(max(1, wide // reduce), wide)

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc2(F.relu(self.fc1(self.norm(F.avg_pool2d(x, self.window)).flatten(1))))
        return y.unflatten(1, (x.shape[1], -1)).transpose(1, 2).flatten(0, 1)[:, :, None, None]

    def folded(self) -> "GlobalPerceptronV1":
        """Without the norm, which FC1 takes over."""
        one = copy.deepcopy(self)
        windows = self.across[0] * self.across[1]
        scale, shift = (t.repeat_interleave(windows) for t in scale_shift(cast(nn.BatchNorm2d, self.norm)))
        weight = self.fc1.weight.double()
        one.norm = nn.Identity()
        one.fc1.weight.copy_(weight * scale)
        one.fc1.bias.copy_(self.fc1.bias.double() + weight @ shift)
        return one


class RepMLPV1(Foldable):
    """The block on maps (b, dim, H, W) → (b, out, H, W), to train; `folded` gives the one to run.

    Args:
        dim, out: channels before and after; both multiples of the groups.
        size: (H, W), a multiple of the window.

    Raises `UsageError` where they are not.
    """

    def __init__(self, dim: int, out: int, size: Size, config: RepMLPBlockConfig) -> None:
        super().__init__()
        window, groups = config.window, config.groups
        if size[0] % window[0] or size[1] % window[1]:
            raise UsageError(
                f"RepMLP: windows of {window[0]}×{window[1]} do not tile a map of {size[0]}×{size[1]}: choose an image "
                f"size or a window so that they do"
            )
        if dim % groups or out % groups:
            raise UsageError(f"RepMLP: groups must divide the widths {dim} and {out}, got {groups}")
        self.window, self.across = window, (size[0] // window[0], size[1] // window[1])
        several = config.global_perceptron and self.across != (1, 1)
        self.context = GlobalPerceptronV1(dim, window, self.across, config.reduce) if several else None
        area = window[0] * window[1]
        weight = torch.empty(groups, out // groups * area, dim // groups * area)
        if config.init == "orthogonal":
            nn.init.orthogonal_(weight.view(out * area, -1))
        else:
            nn.init.uniform_(weight, -(weight.shape[2] ** -0.5), weight.shape[2] ** -0.5)
        self.fc3 = GroupedLinear(weight)
        self.norm = TokenBatchNorm(out * area)
        self.local = nn.ModuleList(ConvNorm(dim, out, k, groups=groups) for k in config.kernels)

    def forward(self, x: Tensor) -> Tensor:
        parts = map_windows(x, self.window)
        if self.context is not None:
            parts = parts + self.context(x)
        y = self.norm(self.fc3(parts.flatten(1))[:, None])[:, 0].unflatten(1, (-1, *self.window))
        for local in self.local:
            y = y + local(parts)
        return map_unwindows(y, self.across)

    @torch.no_grad()
    def folded(self) -> "FusedRepMLPV1":
        """FC1, FC2 and one FC3 with a bias."""
        area, (scale, shift) = self.window[0] * self.window[1], scale_shift(self.norm)
        weight = self.fc3.weight.double()
        weight, bias = weight * scale.view(*weight.shape[:2], 1), shift.view(weight.shape[:2])
        for local in self.local:
            kernel, constant = cast(ConvNorm, local).kernel_shift()
            weight = weight + conv_matrix(kernel, self.window).transpose(1, 2).reshape(weight.shape)
            bias = bias + constant.repeat_interleave(area).view_as(bias)
        return FusedRepMLPV1(self, weight, bias)


class FusedRepMLPV1(nn.Module):
    """`RepMLPV1` for inference: y = FC3 vec(x + FC2 relu(FC1 avg(x))), FC3 with a bias; no norms, no convolutions."""

    def __init__(self, trained: RepMLPV1, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        dtype = trained.fc3.weight.dtype
        self.window, self.across = trained.window, trained.across
        self.context = None if trained.context is None else trained.context.folded()
        self.fc3 = GroupedLinear(weight.to(dtype), bias.to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        parts = map_windows(x, self.window)
        if self.context is not None:
            parts = parts + self.context(x)
        return map_unwindows(self.fc3(parts.flatten(1)).unflatten(1, (-1, *self.window)), self.across)
