"""External Attention: two small memories shared by all images instead of keys and values of the image."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixwise.errors import UsageError, unknown
from mixwise.layers import Grid
from mixwise.mixers.base import Mixer, positive, register


def double_normalize(
    logits: Tensor, *, tokens: int, slots: int, mask: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """Softmax over the axis `tokens`, then division by the sum over the axis `slots`, in log space.

        A[n,s] = B[n,s] / (eps + sum_s B[n,s]),  B = softmax over n of L   =   softmax over s of log B, for eps = 0

    Logarithms cannot underflow to 0/0; they are float32 at least, since bfloat16 would round them by several percent.
    `mask` broadcasts to the logits; its False tokens stay out of the softmax over tokens, and their own rows are
    uniform. `eps` None: 0; the authors' code has 1e-9.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if mask is not None:
        wide = wide.masked_fill(~mask, torch.finfo(wide.dtype).min)
    log_b = F.log_softmax(wide, tokens)
    if mask is not None:
        log_b = log_b.masked_fill(~mask, 0)
    a = log_b.softmax(slots)
    a = a if eps is None else a * (log_b.logsumexp(slots, keepdim=True) - math.log(eps)).sigmoid()
    return a.to(logits.dtype)


def is_double(norm: str, eps: float | None) -> bool:
    """Whether `norm` is "double" and not "softmax", with eps checked against it."""
    if norm not in ("double", "softmax"):
        raise unknown("norm", norm, ("double", "softmax"), "external attention")
    positive("eps", eps)
    if eps is not None and norm == "softmax":
        raise UsageError(f"external attention: eps belongs to norm='double', got eps={eps} with norm={norm!r}")
    return norm == "double"


@register("external_attention")
class ExternalAttention(Mixer):
    """Tokens read from a memory of S slots that belongs to the model, not to the image.

        y = norm(x W_q Mk^T) Mv        Mk, Mv (S, c); norm: softmax over tokens, then divided by the sum over slots

    What passes between tokens is one log-sum-exp per slot. Source: Guo et al., "Beyond Self-attention: External
    Attention", arXiv 2105.02358, section 3.2, equations 5 and 6, algorithm 1.

    Differs from the paper: nothing; the authors' code adds eps=1e-9. A query bias would cancel, so there is none. As in
    the code Mv starts as a copy of Mk, here with a storage of its own.

    Args:
        memory: S.
        norm: "double", or "softmax" over slots only: then no token sees another, and a shift of the input matters.
        eps: added to the sum over slots; None: nothing.
        query: the projection W_q; False: the tokens are the queries.
        out: an output projection, c → c, without bias, as in the authors' EANet.

    Shapes: (b, n, c) → (b, n, c); mask (b, n) bool, False: padding that no other token sees.

    >>> ExternalAttention(8, memory=6)(torch.randn(2, 12, 8), (3, 4)).shape
    torch.Size([2, 12, 8])
    """

    equivariant = True
    shift_blind = True

    def __init__(
        self,
        dim: int,
        tokens: int | None = None,
        grid: Grid | None = None,
        *,
        memory: int = 64,
        norm: Literal["double", "softmax"] = "double",
        eps: float | None = None,
        query: bool = True,
        out: bool = False,
    ) -> None:
        super().__init__(dim, tokens, grid)
        positive("memory", memory)
        self.doubly = self.shift_blind = is_double(norm, eps)
        self.eps = eps
        self.readers = ("query",) if query else ("key",)
        self.writers = ("out",) if out else ("value",)
        self.query = nn.Linear(dim, dim, bias=False) if query else nn.Identity()
        self.key = nn.Linear(dim, memory, bias=False)
        self.value = nn.Linear(memory, dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False) if out else nn.Identity()
        for layer in (self.query, self.key, self.out):
            for weight in layer.parameters():
                nn.init.xavier_uniform_(weight)
        with torch.no_grad():
            self.value.weight.copy_(self.key.weight.t())

    def forward(self, x: Tensor, grid: Grid, mask: Tensor | None = None) -> Tensor:
        logits = self.key(self.query(x))
        if self.doubly:
            keep = None if mask is None else mask[:, :, None]
            attention = double_normalize(logits, tokens=1, slots=2, mask=keep, eps=self.eps)
        else:
            attention = logits.softmax(2)
        return self.out(self.value(attention))
