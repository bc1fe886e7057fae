"""The token-mixing MLP of MLP-Mixer."""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixwise.errors import UsageError
from mixwise.layers import Grid, activation, check_rate, gate, token_linear
from mixwise.mixers.base import Mixer, ResizeMethod, positive, register
from mixwise.regrid import copies, distribute, interpolate, placed, sub_images


@register("token_mlp")
class TokenMLP(Mixer):
    """One two-layer MLP along the token axis, shared by all channels.

        y = W2 gelu(W1 x + b1) + b2        W1 (hidden, n), W2 (n, hidden), x (n, c)

    Source: Tolstikhin et al., "MLP-Mixer", arXiv 2105.01601, section 2, equation 1. `hidden` is D_S, in the paper
    always half the width.

    Another grid: "smooth" (auto) reads W1 as filters over the image and W2 as what they draw, distributed and
    interpolated, hidden stays. "expand", the paper's appendix C on K times the grid: one copy per sub-image, each at
    the row-major places of its own tokens, and K² hidden.

    Differs from the paper: nothing. Google's code has the tanh form of GELU, timm the erf form: `act` names it.

    Args:
        hidden: width of the token MLP; None: dim // 2.
        act: of the hidden layer.
        gated: the hidden layer is u · act(v), u and v the halves of W1 x + b1; W2 is (n, hidden / 2). As in timm's
            gmixer the gate starts as act(1).
        dropout: of the hidden layer and of the output, in training.

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
        act: Literal["gelu", "gelu_tanh", "silu"] = "gelu",
        gated: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(dim, tokens, grid)
        assert tokens is not None
        positive("hidden", hidden)
        hidden = max(1, dim // 2) if hidden is None else hidden
        if gated and hidden % 2:
            raise UsageError(f"token_mlp: a gated layer has two halves, so hidden must be even, got {hidden}")
        check_rate("token_mlp: dropout", dropout)
        self.act = activation(act)
        self.gated = gated
        self.dropout = dropout
        self.w1 = nn.Parameter(torch.empty(hidden, tokens))
        self.b1 = nn.Parameter(torch.zeros(hidden))
        self.w2 = nn.Parameter(torch.empty(tokens, hidden // 2 if gated else hidden))
        self.b2 = nn.Parameter(torch.zeros(tokens))
        nn.init.xavier_uniform_(self.w1)
        nn.init.xavier_uniform_(self.w2)
        if gated:
            nn.init.normal_(self.w1[hidden // 2 :], std=1e-6)
            nn.init.ones_(self.b1[hidden // 2 :])

    def matrices(self) -> list[Tensor]:
        return super().matrices() if self.gated else [self.w1, self.w2]

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        z = token_linear(x, self.w1, self.b1)
        z = F.dropout(gate(z, self.act, dim=1) if self.gated else self.act(z), self.dropout, self.training)
        return F.dropout(token_linear(z, self.w2, self.b2), self.dropout, self.training)

    @torch.no_grad()
    def resize(self, old: Grid, new: Grid, *, prefix: int = 0, method: ResizeMethod = "auto") -> dict[str, Any]:
        if method != "expand":
            self.w1.data = distribute(self.w1, 1, old, new, prefix=prefix)
            self.w2.data, self.b2.data = (interpolate(x, 0, old, new, prefix=prefix) for x in (self.w2, self.b2))
            return {}
        index = sub_images(old, new, prefix=prefix)
        halves, parts = 2 if self.gated else 1, len(index)
        self.w1.data = copies(self.w1.unflatten(0, (halves, -1)), index).flatten(0, 2)
        self.b1.data = self.b1.view(halves, 1, -1).repeat(1, parts, 1).flatten()
        self.w2.data = copies(self.w2.t(), index).flatten(0, 1).t().contiguous()
        self.b2.data = placed(self.b2.repeat(parts), index)
        return {"hidden": self.b1.shape[0]}
