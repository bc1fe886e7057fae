"""The cross-patch layer of ResMLP."""

import torch
from torch import Tensor, nn

from mixwise.layers import Grid, token_linear
from mixwise.mixers.base import Mixer, register


@register("linear")
class Linear(Mixer):
    """One linear layer along the token axis, shared by all channels.

        y = A x + a        A (n, n), a (n,), x (n, c)

    Source: Touvron et al., "ResMLP", arXiv 2105.03404, section 2, equation 2; the affine in front and the layer scale
    behind belong to the skeleton (norm="affine", layer_scale).

    Differs from the paper: nothing.

    Args:
        bias: a; off in the spatial FC of the PoolFormer hybrids (arXiv 2111.11418).

    Shapes: (b, n, c) → (b, n, c), n as built.

    >>> Linear(8, tokens=12)(torch.randn(2, 12, 8), (3, 4)).shape
    torch.Size([2, 12, 8])
    """

    fixed_grid = True

    def __init__(self, dim: int, tokens: int | None = None, grid: Grid | None = None, *, bias: bool = True) -> None:
        super().__init__(dim, tokens, grid)
        assert tokens is not None
        self.weight = nn.Parameter(torch.empty(tokens, tokens))
        self.bias = nn.Parameter(torch.zeros(tokens)) if bias else None
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        return token_linear(x, self.weight, self.bias)
