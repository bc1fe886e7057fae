"""Multi-head self-attention, the control of every comparison."""

import torch.nn.functional as F
from torch import Tensor, nn

from mixwise.errors import UsageError
from mixwise.layers import Grid
from mixwise.mixers.base import Mixer, register


def head_count(dim: int, heads: int | None, *, width: int) -> int:
    """`heads` checked against dim; None: the most heads that divide dim and are at least `width` wide, or one."""
    if heads is None:
        return next(h for h in range(max(1, dim // width), 0, -1) if dim % h == 0)
    if heads < 1 or dim % heads:
        raise UsageError(f"heads must divide the width {dim}, got heads={heads}")
    return heads


@register("attention")
class Attention(Mixer):
    """Every token reads from all tokens, with weights that depend on both.

        y = concat_h( softmax(Q_h K_h^T / sqrt(d)) V_h ) P        [Q, K, V] = x W, d = c / heads

    Source: Vaswani et al., "Attention Is All You Need", arXiv 1706.03762, section 3.2; Dosovitskiy et al., "ViT",
    arXiv 2010.11929, appendix A.

    Differs from the paper: no biases by default (as in MetaFormer baselines). Under a softmax the key bias cancels,
    and the value and output biases add one constant per channel; ViT presets switch them on.

    Args:
        heads: None: as many as divide c and are at least 32 wide.
        qkv_bias: biases of query, key and value.
        out_bias: bias of the output layer P.

    Shapes: (b, n, c) → (b, n, c); mask (b, n) bool, False: a token that nobody reads. Raises `UsageError` where
    heads does not divide c.

    >>> Attention(8, heads=2)(torch.randn(2, 12, 8), (3, 4)).shape
    torch.Size([2, 12, 8])
    """

    equivariant = True
    readers = ("qkv",)
    writers = ("out",)

    def __init__(
        self,
        dim: int,
        tokens: int | None = None,
        grid: Grid | None = None,
        *,
        heads: int | None = None,
        qkv_bias: bool = False,
        out_bias: bool = False,
    ) -> None:
        super().__init__(dim, tokens, grid)
        self.heads = head_count(dim, heads, width=32)
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.out = nn.Linear(dim, dim, bias=out_bias)
        for weight in (*self.qkv.weight.chunk(3), self.out.weight):
            nn.init.xavier_uniform_(weight)

    def forward(self, x: Tensor, grid: Grid, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        keep = None if mask is None else mask[:, None, None, :]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        return self.out(y.transpose(1, 2).flatten(2))
