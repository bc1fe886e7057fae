"""Random mixing with a frozen matrix, the token mixer of RandFormer."""

from typing import Any

import torch
from torch import Tensor

from mixwise.errors import UsageError
from mixwise.layers import Grid, token_linear
from mixwise.mixers.base import Mixer, ResizeMethod, register
from mixwise.regrid import average


@register("random")
class Random(Mixer):
    """A random weighted mean of all tokens that is never trained.

        y = W x        W = softmax(U), row by row, U (n, n) uniform in [0, 1)

    Source: Yu et al., "MetaFormer Baselines for Vision", arXiv 2210.13452, RandFormer: one matrix per block. It is a
    buffer: no optimiser sees it, and the weights file holds it, without which nothing could be reproduced.

    Another grid: "smooth" (auto) interpolates W on both axes and divides the rows by their sums, so they stay means.
    "expand" is refused: the rows would no longer be means of all tokens.

    Differs from the paper: nothing.

    Shapes: (b, n, c) → (b, n, c), n as built.

    >>> Random(8, tokens=12)(torch.randn(2, 12, 8), (3, 4)).shape
    torch.Size([2, 12, 8])
    """

    fixed_grid = True
    shift_blind = True

    weight: Tensor

    def __init__(self, dim: int, tokens: int | None = None, grid: Grid | None = None) -> None:
        super().__init__(dim, tokens, grid)
        assert tokens is not None
        self.register_buffer("weight", torch.rand(tokens, tokens).softmax(dim=1))

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        return token_linear(x, self.weight)

    def resize(self, old: Grid, new: Grid, *, prefix: int = 0, method: ResizeMethod = "auto") -> dict[str, Any]:
        if method == "expand":
            raise UsageError("random: its rows are means of all tokens, so it cannot be expanded: use 'smooth'")
        self.weight = average(self.weight, old, new, prefix=prefix)
        return {}
