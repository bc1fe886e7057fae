"""Attention over the feature axis: the other half of the attention-only control."""

import torch
from torch import Tensor, nn

from mixwise.layers import Grid, token_linear
from mixwise.mixers.base import Mixer, register
from mixwise.mixers.feed_forward import TokenAxisNorm


@register("feature_attention")
class FeatureAttention(Mixer):
    """Channels read from channels; a channel is described by its n values on the tokens.

        y = Wo V A + b        Q, K, V = Wq z, Wk z, Wv z, z = norm_n(x), A = softmax(K^T Q / sqrt(n)), columns sum to 1

    That is one-head attention on x^T, written without a transpose; norm_n is the norm of `feed_forward`.
    Source: Melas-Kyriazi, "Do You Even Need Attention?", arXiv 2105.02723, section 4, attention-only control.

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
