"""The token half of the feed-forward-only model."""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from mixwise.errors import UsageError
from mixwise.layers import Grid, check_tokens
from mixwise.mixers.base import ResizeMethod, positive, register
from mixwise.mixers.token_mlp import TokenMLP
from mixwise.regrid import interpolate


class TokenAxisNorm(nn.Module):
    """Layer norm over the tokens, channel by channel, with a scale and a shift per token: (b, n, c) → (b, n, c)."""

    def __init__(self, tokens: int, *, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(tokens))
        self.bias = nn.Parameter(torch.zeros(tokens))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        check_tokens(x, self.weight.shape[0])
        var, mean = torch.var_mean(x, dim=1, keepdim=True, correction=0)
        return torch.addcmul(self.bias[:, None], (x - mean) * (var + self.eps).rsqrt(), self.weight[:, None])

    @torch.no_grad()
    def resize(self, old: Grid, new: Grid, *, prefix: int) -> None:
        """Interpolate scale and shift to another grid, in place; those of class tokens stay."""
        for parameter in (self.weight, self.bias):
            parameter.data = interpolate(parameter, 0, old, new, prefix=prefix)


@register("feed_forward")
class FeedForward(TokenMLP):
    """A norm over the tokens, then one two-layer MLP along the token axis, shared by all channels.

        y = W2 gelu(W1 norm_n(x) + b1) + b2        W1 (hidden, n), W2 (n, hidden), hidden = ratio n, x (n, c)

    Source: Melas-Kyriazi, "Do You Even Need Attention?", arXiv 2105.02723, section 3. Unlike in MLP-Mixer the norm runs
    over tokens and belongs to the weights, so the scale and the shift of a norm in front are lost in it: papers put
    none there.

    Another grid: "smooth" (auto) as in `token_mlp`, norm interpolated; hidden stays, so `ratio` becomes hidden / new n.
    "expand" is refused: the norm runs over all tokens, so no sub-image is alone.

    Differs from the paper: nothing.

    Args:
        ratio: hidden width over n.
        act: of the hidden layer.
        dropout: of the hidden layer and of the output, in training.

    Shapes: (b, n, c) → (b, n, c), n as built.

    >>> FeedForward(8, tokens=12)(torch.randn(2, 12, 8), (3, 4)).shape
    torch.Size([2, 12, 8])
    """

    shift_blind = True
    scale_blind = True

    def __init__(
        self,
        dim: int,
        tokens: int | None = None,
        grid: Grid | None = None,
        *,
        ratio: float = 4.0,
        act: Literal["gelu", "gelu_tanh", "silu"] = "gelu",
        dropout: float = 0.0,
    ) -> None:
        positive("ratio", ratio)
        hidden = None if tokens is None else max(1, round(tokens * ratio))
        super().__init__(dim, tokens, grid, hidden=hidden, act=act, dropout=dropout)
        assert tokens is not None
        self.norm = TokenAxisNorm(tokens)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        return super().forward(self.norm(x), grid)

    def resize(self, old: Grid, new: Grid, *, prefix: int = 0, method: ResizeMethod = "auto") -> dict[str, Any]:
        if method == "expand":
            raise UsageError("feed_forward: its norm runs over all tokens, so it cannot be expanded: use 'smooth'")
        super().resize(old, new, prefix=prefix, method=method)
        self.norm.resize(old, new, prefix=prefix)
        return {"ratio": self.b1.shape[0] / self.b2.shape[0]}
