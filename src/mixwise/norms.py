"""Norms on tokens (b, n, c), by name; each can be taken apart for re-parameterisation."""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mixwise.errors import UsageError, unknown


class Split(NamedTuple):
    """A norm in evaluation taken apart: rest(x) · scale + shift, float64; None: no such factor or summand."""

    scale: Tensor | None
    shift: Tensor | None
    rest: "Norm"


class Norm(nn.Module):
    """A norm on tokens (b, n, c); `rest` of a split has no weights of its own."""

    def split(self) -> Split:
        """What it does in evaluation, as a part without weights and a factor and a summand per channel."""
        return Split(None, None, self)


class NoNorm(Norm):
    """x."""

    def forward(self, x: Tensor) -> Tensor:
        return x


class GroupNorm1(Norm):
    """Mean and variance over tokens and channels together, affine per channel: GroupNorm with one group.

    It is not LayerNorm, which normalises each token by itself. Source: arXiv 2111.11418, "modified layer norm".
    """

    def __init__(self, dim: int, *, scale: bool = True, bias: bool = True, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim)) if scale else None
        self.bias = nn.Parameter(torch.zeros(dim)) if bias else None
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x = F.layer_norm(x, x.shape[1:], eps=self.eps)
        x = x if self.weight is None else x * self.weight
        return x if self.bias is None else x + self.bias

    def split(self) -> Split:
        rest = GroupNorm1(1, scale=False, bias=False, eps=self.eps)
        return Split(_double(self.weight), _double(self.bias), rest)


def scale_shift(norm: _BatchNorm) -> tuple[Tensor, Tensor]:
    """What a batch norm of any shape does in evaluation: a factor and a summand per channel, float64."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = (norm.running_var.double() + norm.eps).rsqrt()
    scale = scale if norm.weight is None else scale * norm.weight.double()
    shift = -norm.running_mean.double() * scale
    return scale, shift if norm.bias is None else shift + norm.bias.double()


class TokenBatchNorm(nn.BatchNorm1d, Norm):
    """Batch norm per channel over batch and tokens, for tokens (b, n, c).

    Runs as a channels-last map, which is the layout the kernels are fast in.
    """

    def __init__(self, dim: int, *, scale: bool = True, bias: bool = True, eps: float = 1e-5) -> None:
        super().__init__(dim, eps=eps, affine=scale)
        if not bias:
            self.register_parameter("bias", None)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and x.shape[0] * x.shape[1] == 1:
            raise UsageError("batch norm needs more than one value per channel to train: use a larger batch")
        return super().forward(x.transpose(1, 2).unsqueeze(-1)).squeeze(-1).transpose(1, 2)

    def split(self) -> Split:
        return Split(*scale_shift(self), NoNorm())

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() != 4:
            raise UsageError(f"batch norm on tokens expects (b, n, c), got {input.dim() - 1} dimensions")


class Affine(Norm):
    """α ⊙ x + β per channel, no statistics. Source: Touvron et al., "ResMLP", arXiv 2105.03404, section 2."""

    def __init__(self, dim: int, *, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight if self.bias is None else torch.addcmul(self.bias, x, self.weight)

    def split(self) -> Split:
        return Split(_double(self.weight), _double(self.bias), NoNorm())


class LayerNorm(nn.LayerNorm, Norm):
    """Mean and variance over the channels of each token. Source: Ba et al., arXiv 1607.06450."""

    def split(self) -> Split:
        rest = LayerNorm(self.normalized_shape, eps=self.eps, elementwise_affine=False)
        return Split(_double(self.weight), _double(self.bias), rest)


def _double(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.detach().double()


def _layer_norm(dim: int, scale: bool, bias: bool, eps: float | None) -> Norm:
    return LayerNorm(dim, eps=eps or 1e-6, elementwise_affine=scale, bias=bias)


NORMS: dict[str, Callable[[int, bool, bool, float | None], Norm]] = {
    "affine": lambda dim, scale, bias, eps: Affine(dim, bias=bias) if scale else NoNorm(),
    "batch": lambda dim, scale, bias, eps: TokenBatchNorm(dim, scale=scale, bias=bias, eps=eps or 1e-5),
    "group1": lambda dim, scale, bias, eps: GroupNorm1(dim, scale=scale, bias=bias, eps=eps or 1e-5),
    "layer": _layer_norm,
    "none": lambda dim, scale, bias, eps: NoNorm(),
}


def norm(name: str, dim: int, *, scale: bool = True, bias: bool = True, eps: float | None = None) -> Norm:
    """A norm on tokens (b, n, c) by name: layer, group1, batch, affine, none.

    Args:
        scale: False leaves out the learned scale, and with it the shift.
        bias: False leaves out the learned shift.
        eps: added to the variance; None: 1e-6 for layer, 1e-5 for the others; affine and none have none.
    """
    if name not in NORMS:
        raise unknown("norm", name, NORMS)
    return NORMS[name](dim, scale, scale and bias, eps)


make_norm = norm
"""`norm` under a name that a keyword `norm` does not hide."""
