"""Attention over the feature axis: the other half of the attention-only control."""

from typing import Any

import torch
from torch import Tensor, nn

from mixwise.errors import UsageError
from mixwise.layers import Grid, token_linear
from mixwise.mixers.base import Mixer, ResizeMethod, register
from mixwise.mixers.feed_forward import TokenAxisNorm
from mixwise.regrid import distribute, embed, interpolate


@register("feature_attention")
class FeatureAttention(Mixer):
    """Channels read from channels; a channel is described by its n values on the tokens.

        y = Wo V A + b        Q, K, V = Wq z, Wk z, Wv z, z = norm_n(x), A = softmax(K^T Q / sqrt(n)), columns sum to 1

    That is one-head attention on x^T, written without a transpose; norm_n is the norm of `feed_forward`.
    Source: Melas-Kyriazi, "Do You Even Need Attention?", arXiv 2105.02723, section 4, attention-only control.

    Another grid: "smooth" (auto) distributes what W read, interpolates norm, what Wo writes and b, and embeds Q, K and
    V with the dot products that they had; Q takes the sqrt(new n / n) of the denominator. "expand" is refused.

    Differs from the paper: the control was never released. Norm over tokens and one head (197 tokens are prime) are
    what its 4.0 M parameters allow.

    Args:
        qkv_bias: a bias per token for query, key and value; the key's cancels in the softmax.

    Shapes: (b, n, c) → (b, n, c), n as built.

    >>> FeatureAttention(8, tokens=12)(torch.randn(2, 12, 8), (3, 4)).shape
    torch.Size([2, 12, 8])
    """

    fixed_grid = True
    shift_blind = True
    scale_blind = True

    def __init__(
        self, dim: int, tokens: int | None = None, grid: Grid | None = None, *, qkv_bias: bool = False
    ) -> None:
        super().__init__(dim, tokens, grid)
        assert tokens is not None
        self.norm = TokenAxisNorm(tokens)
        self.qkv = nn.Parameter(torch.empty(3 * tokens, tokens))
        self.qkv_bias = nn.Parameter(torch.zeros(3 * tokens)) if qkv_bias else None
        self.out = nn.Parameter(torch.empty(tokens, tokens))
        self.out_bias = nn.Parameter(torch.zeros(tokens))
        for weight in self.matrices():
            nn.init.xavier_uniform_(weight)

    def matrices(self) -> list[Tensor]:
        return [*self.qkv.chunk(3), self.out]

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        q, k, v = token_linear(self.norm(x), self.qkv, self.qkv_bias).chunk(3, dim=1)
        attention = (torch.bmm(k.transpose(1, 2), q) * x.shape[1] ** -0.5).softmax(dim=1)
        return token_linear(torch.bmm(v, attention), self.out, self.out_bias)

    @torch.no_grad()
    def resize(self, old: Grid, new: Grid, *, prefix: int = 0, method: ResizeMethod = "auto") -> dict[str, Any]:
        if method == "expand":
            raise UsageError("feature_attention: its norm runs over all tokens, so it cannot be expanded: use 'smooth'")
        n = self.out.shape[0]
        self.norm.resize(old, new, prefix=prefix)
        self.out.data = interpolate(embed(self.out, 1, old, new, prefix=prefix), 0, old, new, prefix=prefix)
        self.out_bias.data = interpolate(self.out_bias, 0, old, new, prefix=prefix)
        read = distribute(self.qkv, 1, old, new, prefix=prefix).chunk(3)
        self.qkv.data = self._embedded(read, n, old, new, prefix)
        if self.qkv_bias is not None:
            self.qkv_bias.data = self._embedded(self.qkv_bias.chunk(3), n, old, new, prefix)
        return {}

    def _embedded(self, qkv: tuple[Tensor, ...], n: int, old: Grid, new: Grid, prefix: int) -> Tensor:
        q, k, v = (embed(x, 0, old, new, prefix=prefix) for x in qkv)
        return torch.cat([q * (q.shape[0] / n) ** 0.5, k, v])
