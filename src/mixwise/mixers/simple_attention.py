"""Self-attention without projections, the simplified form that External Attention starts from."""

import torch.nn.functional as F
from torch import Tensor

from mixwise.layers import Grid
from mixwise.mixers.base import Mixer, register


@register("simple_attention")
class SimpleAttention(Mixer):
    """Each token becomes a mean of all tokens, weighted by how alike they are. No parameters.

        y = softmax(x x^T) x

    Source: Guo et al., "Beyond Self-attention: External Attention", arXiv 2105.02358, section 3.1, simplified form.

    Differs from the paper: nothing; it has no 1/sqrt(c). Behind a norm the logit of a token with itself is about c
    and the others are about ± sqrt(c), so for wide tokens the result is close to x: `scale` keeps it soft.

    Args:
        scale: divide the logits by sqrt(c).

    Shapes: (b, n, c) → (b, n, c); mask (b, n) bool, False: a token that nobody reads.

    >>> SimpleAttention(8)(torch.randn(2, 12, 8), (3, 4)).shape
    torch.Size([2, 12, 8])
    """

    equivariant = True

    def __init__(self, dim: int, tokens: int | None = None, grid: Grid | None = None, *, scale: bool = False) -> None:
        super().__init__(dim, tokens, grid)
        self.scale = dim**-0.5 if scale else 1.0

    def forward(self, x: Tensor, grid: Grid, mask: Tensor | None = None) -> Tensor:
        head = x.unsqueeze(1)
        keep = None if mask is None else mask[:, None, None, :]
        return F.scaled_dot_product_attention(head, head, head, attn_mask=keep, scale=self.scale).squeeze(1)
