"""Multi-head External Attention: many narrow heads that share one pair of memories."""

from typing import Literal

from torch import Tensor, nn

from mixwise.layers import Grid
from mixwise.mixers.attention import head_count
from mixwise.mixers.base import Mixer, positive, register
from mixwise.mixers.external_attention import double_normalize, is_double


@register("multihead_external_attention")
class MultiheadExternalAttention(Mixer):
    """External attention head by head on widened tokens; every head reads the same two memories.

        z = x W_e in coef · heads heads of width d = c / heads,  y = concat_h( norm(z_h Mk^T) Mv ) W_o

    Source: Guo et al., "Beyond Self-attention: External Attention", arXiv 2105.02358, section 3.3, algorithm 2; coef
    and S = 256 / coef from the authors' code. The memories are independent at the start.

    Differs from the paper: no biases by default. Those of W_e and Mk cancel in the norm, those of Mv and W_o add one
    constant per channel; the authors' code has all four (`bias`), and eps=1e-9.

    Args:
        heads: heads before widening; None: as many as divide c and are at least 64 wide.
        coef: how many times wider.
        memory: S; None: 256 // coef, at least 1.
        norm, eps: as in `external_attention`.
        bias: biases of all four layers.

    Shapes: (b, n, c) → (b, n, c); mask (b, n) bool, False: padding that no other token sees. Raises `UsageError`
    where heads does not divide c.

    >>> MultiheadExternalAttention(8, heads=2)(torch.randn(2, 12, 8), (3, 4)).shape
    torch.Size([2, 12, 8])
    """

    equivariant = True
    shift_blind = True
    readers = ("expand",)
    writers = ("out",)

    def __init__(
        self,
        dim: int,
        tokens: int | None = None,
        grid: Grid | None = None,
        *,
        heads: int | None = None,
        coef: int = 4,
        memory: int | None = None,
        norm: Literal["double", "softmax"] = "double",
        eps: float | None = None,
        bias: bool = False,
    ) -> None:
        super().__init__(dim, tokens, grid)
        positive("coef", coef)
        positive("memory", memory)
        self.doubly = self.shift_blind = is_double(norm, eps)
        heads, slots = head_count(dim, heads, width=64), memory or max(1, 256 // coef)
        self.heads, self.eps = heads * coef, eps
        self.expand = nn.Linear(dim, coef * dim, bias=bias)
        self.key = nn.Linear(dim // heads, slots, bias=bias)
        self.value = nn.Linear(slots, dim // heads, bias=bias)
        self.out = nn.Linear(coef * dim, dim, bias=bias)
        for weight in self.matrices():
            nn.init.xavier_uniform_(weight)

    def matrices(self) -> list[Tensor]:
        return [layer.weight for layer in (self.expand, self.key, self.value, self.out)]

    def forward(self, x: Tensor, grid: Grid, mask: Tensor | None = None) -> Tensor:
        logits = self.key(self.expand(x).unflatten(2, (self.heads, -1)))
        if self.doubly:
            keep = None if mask is None else mask[:, :, None, None]
            attention = double_normalize(logits, tokens=1, slots=3, mask=keep, eps=self.eps)
        else:
            attention = logits.softmax(3)
        return self.out(self.value(attention).flatten(2))
