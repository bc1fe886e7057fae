"""The token-mixing MLP of MLP-Mixer."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixwise.layers import Grid, gelu_form, token_linear
from mixwise.mixers.base import Mixer, positive, register


@register("token_mlp")
class TokenMLP(Mixer):
    """One two-layer MLP along the token axis, shared by all channels.

        y = W2 gelu(W1 x + b1) + b2        W1 (hidden, n), W2 (n, hidden), x (n, c)

    Source: Tolstikhin et al., "MLP-Mixer", arXiv 2105.01601, section 2, equation 1. `hidden` is D_S, in the paper
    always half the width.

    Differs from the paper: nothing. Google's code has the tanh form of GELU, timm the erf form: `gelu` names it.

    Args:
        hidden: width of the token MLP; None: dim // 2.
        gelu: "erf" or "tanh".

    Shapes: (b, n, c) → (b, n, c), n as built.

    >>> TokenMLP(8, tokens=12)(torch.randn(2, 12, 8), (3, 4)).shape
    torch.Size([2, 12, 8])
    """

    fixed_grid = True

    def __init__(
        self,
        dim: int,
        tokens: int | None = None,
        grid: Grid | None = None,
        *,
        hidden: int | None = None,
        gelu: Literal["erf", "tanh"] = "erf",
    ) -> None:
        super().__init__(dim, tokens, grid)
        assert tokens is not None
        positive("hidden", hidden)
        hidden = max(1, dim // 2) if hidden is None else hidden
        self.gelu = gelu_form(gelu)
        self.w1 = nn.Parameter(torch.empty(hidden, tokens))
        self.b1 = nn.Parameter(torch.zeros(hidden))
        self.w2 = nn.Parameter(torch.empty(tokens, hidden))
        self.b2 = nn.Parameter(torch.zeros(tokens))
        nn.init.xavier_uniform_(self.w1)
        nn.init.xavier_uniform_(self.w2)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        hidden = F.gelu(token_linear(x, self.w1, self.b1), approximate=self.gelu)
        return token_linear(hidden, self.w2, self.b2)
