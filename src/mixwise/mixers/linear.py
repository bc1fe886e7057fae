"""The cross-patch layer of ResMLP."""

from typing import Any

import torch
from torch import Tensor, nn

from mixwise.layers import Grid, token_linear
from mixwise.mixers.base import Mixer, ResizeMethod, register
from mixwise.regrid import copies, interpolate, placed, recentre, sub_images


@register("linear")
class Linear(Mixer):
    """One linear layer along the token axis, shared by all channels.

        y = A x + a        A (n, n), a (n,), x (n, c)

    Source: Touvron et al., "ResMLP", arXiv 2105.03404, section 2, equation 2; the affine in front and the layer scale
    behind belong to the skeleton (norm="affine", layer_scale).

    Another grid: "smooth" (auto) stretches each row of A as a filter around its own token, such that interpolated
    tokens get the interpolated answer, and interpolates a. "expand" on K times the grid: A and a on each sub-image.

    Differs from the paper: nothing.

    Args:
        bias: a; off in the spatial FC of the PoolFormer hybrids (arXiv 2111.11418).

    Shapes: (b, n, c) → (b, n, c), n as built.

    >>> Linear(8, tokens=12)(torch.randn(2, 12, 8), (3, 4)).shape
    torch.Size([2, 12, 8])
    """

    fixed_grid = True
    commutes = True

    def __init__(self, dim: int, tokens: int | None = None, grid: Grid | None = None, *, bias: bool = True) -> None:
        super().__init__(dim, tokens, grid)
        assert tokens is not None
        self.weight = nn.Parameter(torch.empty(tokens, tokens))
        self.bias = nn.Parameter(torch.zeros(tokens)) if bias else None
        nn.init.xavier_uniform_(self.weight)

    def matrices(self) -> list[Tensor]:
        return [self.weight]

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        return token_linear(x, self.weight, self.bias)

    def fold_around(self, scale: Tensor, shift: Tensor | None, after: Tensor | None) -> tuple[Mixer, Tensor | None]:
        return FusedLinear(self, scale, shift, torch.ones_like(scale) if after is None else after), None

    def resize(self, old: Grid, new: Grid, *, prefix: int = 0, method: ResizeMethod = "auto") -> dict[str, Any]:
        resize_matrix(self.weight, self.bias, old, new, prefix=prefix, method=method)
        return {}


class FusedLinear(Mixer):
    """`Linear` between a shift and two factors per channel, for inference.

        γ ⊙ (A (α ⊙ x + β) + a) = (γ α) ⊙ A x + B        B = γ ⊙ ((A 1) β^T + a 1^T), (n, c)

    Made by `Linear.fold_around`. Source: arXiv 2105.03404, section 2, on the affine layers at inference.
    """

    fixed_grid = True

    def __init__(self, trained: Linear, scale: Tensor, shift: Tensor | None, after: Tensor) -> None:
        weight = trained.weight
        super().__init__(trained.dim, weight.shape[0])
        after = after.detach().double()
        bias = torch.zeros(weight.shape[0], trained.dim, dtype=torch.float64, device=weight.device)
        if shift is not None:
            bias += weight.double().sum(1, keepdim=True) * shift
        if trained.bias is not None:
            bias += trained.bias.double()[:, None]
        self.weight = nn.Parameter(weight.detach().clone())
        self.factor = nn.Parameter((scale * after).to(weight.dtype))
        self.bias = nn.Parameter((bias * after).to(weight.dtype))

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        return torch.addcmul(self.bias, token_linear(x, self.weight), self.factor)

    def resize(self, old: Grid, new: Grid, *, prefix: int = 0, method: ResizeMethod = "auto") -> dict[str, Any]:
        resize_matrix(self.weight, self.bias, old, new, prefix=prefix, method=method)
        return {}


@torch.no_grad()
def resize_matrix(
    weight: nn.Parameter, bias: nn.Parameter | None, old: Grid, new: Grid, *, prefix: int, method: ResizeMethod
) -> None:
    """The rule of `Linear` for a matrix (n, n) and a bias (n,) or (n, c), in place."""
    if method == "expand":
        index = sub_images(old, new, prefix=prefix)
        weight.data = placed(copies(weight, index).flatten(0, 1), index)
        if bias is not None:
            bias.data = placed(torch.cat([bias] * len(index)), index)
        return
    weight.data = recentre(weight, old, new, prefix=prefix)
    if bias is not None:
        bias.data = interpolate(bias, 0, old, new, prefix=prefix)
