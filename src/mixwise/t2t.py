"""Tokens to token: the stem of T2T-ViT, which mixes overlapping patches while they are still many.

    soft split 7/4/2 → token module → soft split 3/2/1 → token module → soft split 3/2/1 → linear

A soft split flattens overlapping windows (side / stride / padding) into one token each; the last one with the linear
layer behind it is a 3 × 3 convolution, and is written as one.
Source: Yuan et al., "Tokens-to-Token ViT", arXiv 2101.11986, section 3.1; with external attention in the code of
Guo et al., arXiv 2105.02358.
"""

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixwise.config import Size
from mixwise.errors import UsageError, unknown
from mixwise.folding import absorb_before
from mixwise.layers import ChannelMLP, image_view
from mixwise.mixers.base import keyword_options, positive
from mixwise.mixers.external_attention import double_normalize
from mixwise.norms import Norm, norm
from mixwise.stems import STEMS, Stem


class Read(nn.Module):
    """What mixes the tokens of a token module and brings them to its width: (b, n, dim) → (b, n, width)."""

    first: str
    """The linear layer that everything passes."""


class ExternalRead(Read):
    """q + P norm(q Mk^T) Mv,  q = x W_q: external attention that also narrows, (b, n, dim) → (b, n, width).

    Biases as in the authors' code: W_q, Mv and P have one. Mv starts as a copy of Mk; the code leaves the two on one
    storage, so that loading a file on a CPU overwrites one with the other. Here each has its own.

    Args:
        memory: slots S.
        eps: added to the sum over slots; None: nothing. The authors' code has 1e-9.
    """

    first = "query"

    def __init__(self, dim: int, width: int, dropout: float, *, memory: int = 128, eps: float | None = None) -> None:
        super().__init__()
        positive("memory", memory)
        positive("eps", eps)
        self.eps, self.dropout = eps, dropout
        self.query = nn.Linear(dim, width)
        self.key = nn.Linear(width, memory, bias=False)
        self.value = nn.Linear(memory, width)
        self.out = nn.Linear(width, width)
        _start(self)
        with torch.no_grad():
            self.value.weight.copy_(self.key.weight.t())

    def forward(self, x: Tensor) -> Tensor:
        x = self.query(x)
        attention = double_normalize(self.key(x), tokens=1, slots=2, eps=self.eps)
        y = self.out(self.value(F.dropout(attention, self.dropout, self.training)))
        return x + F.dropout(y, self.dropout, self.training)


class PerformerRead(Read):
    """v + P y, y the softmax attention of x estimated by random features: (b, n, dim) → (b, n, width).

        y_i = sum_j f(q_i)·f(k_j) v_j / (1e-8 + sum_j f(q_i)·f(k_j)),  f(z) = exp(w z - |z|²/2) / sqrt(m)

    Source: Choromanski et al., "Performers", arXiv 2009.14794; as in the code of T2T-ViT. w is drawn once and kept.

    Args:
        features: m, rows of w; None: half the width.
    """

    first = "kqv"
    w: Tensor

    def __init__(self, dim: int, width: int, dropout: float, *, features: int | None = None) -> None:
        super().__init__()
        positive("features", features)
        self.dropout = dropout
        self.kqv = nn.Linear(dim, 3 * width)
        self.out = nn.Linear(width, width)
        rows = max(1, width // 2) if features is None else features
        self.register_buffer("w", nn.init.orthogonal_(torch.empty(rows, width)) * math.sqrt(rows))
        _start(self)

    def forward(self, x: Tensor) -> Tensor:
        k, q, v = self.kqv(x).chunk(3, dim=2)
        with _no_autocast(x.device.type):  # it would take the products back to half precision
            k, q = self._features(k), self._features(q)
            y = q @ (k.transpose(1, 2) @ v.to(k.dtype)) / (q @ k.sum(1)[:, :, None] + 1e-8)
        return v + F.dropout(self.out(y.to(v.dtype)), self.dropout, self.training)

    def _features(self, z: Tensor) -> Tensor:
        """(b, n, width) → (b, n, m), at least in float32: they range over many powers of ten."""
        z = z.to(torch.promote_types(z.dtype, torch.float32))
        w = self.w.to(z.dtype)
        return (z @ w.t() - z.square().sum(2, keepdim=True) / 2).exp() / math.sqrt(w.shape[0])


class AttentionRead(Read):
    """v + P softmax(q k^T / sqrt(dim)) v, one head: (b, n, dim) → (b, n, width).

    The scale comes from the width of the input, not of the keys, as in the code of T2T-ViT; q, k and v have no bias.
    """

    first = "qkv"

    def __init__(self, dim: int, width: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.scale = dim**-0.5
        self.qkv = nn.Linear(dim, 3 * width, bias=False)
        self.out = nn.Linear(width, width)
        _start(self)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=2)
        rate = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], dropout_p=rate, scale=self.scale)
        return v + F.dropout(self.out(y[:, 0]), self.dropout, self.training)


def _no_autocast(device: str) -> AbstractContextManager[Any]:
    """Computing as the tensors are; the meta device has no autocast to turn off."""
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()


READS: dict[str, Any] = {"attention": AttentionRead, "external_attention": ExternalRead, "performer": PerformerRead}
"""What mixes the tokens of the stem, by name."""


class TokenModule(nn.Module):
    """y = read(norm(x)),  y + mlp(norm(y)): (b, n, dim) → (b, n, width). `read` has a shortcut of its own."""

    def __init__(self, norm1: Norm, read: Read, norm2: Norm, width: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.read, self.norm2 = norm1, read, norm2
        self.mlp = ChannelMLP(width, ratio=1.0, out_bias=True)
        self.dropout = dropout
        _start(self.mlp)

    def forward(self, x: Tensor, grid: Size) -> Tensor:
        x = self.read(self.norm1(x))
        return x + F.dropout(self.mlp(self.norm2(x), grid), self.dropout, self.training)

    def fold(self) -> None:
        """What the norms multiply and add, into the linear layers behind them, in place."""
        scale, shift, self.norm1 = self.norm1.split()
        absorb_before(cast(nn.Linear, self.read.get_submodule(self.read.first)), scale, shift)
        scale, shift, self.norm2 = self.norm2.split()
        absorb_before(self.mlp.fc1, scale, shift)


class TokensToToken(Stem):
    """The stem `t2t`: images (b, channels, h, w) → (b, dim, ⌈⌊(h + 1)/4⌋/4⌉, …), 16 × 16 pixels a token.

    Any size from 3 × 3 pixels, square or not; the authors' code takes squares.

    Args:
        mixer: external_attention (arXiv 2105.02358), performer (T2T-ViT's own) or attention (its variant `t`).
        options: of the mixer: `memory` and `eps`, `features`, nothing.
        width: channels inside.
        norm_eps: of the norms; None: their default.
        dropout: behind the mixer's output layer, and on the weights of external and of self-attention.
        mlp_dropout: behind the channel MLP.

    Raises `UsageError` for another total stride than 16, an unknown mixer or option, and images that are too small.
    """

    def __init__(
        self,
        channels: int,
        dim: int,
        patch: Size,
        *,
        norm_name: str,
        mixer: str = "external_attention",
        options: Mapping[str, Any] | None = None,
        width: int = 64,
        norm_eps: float | None = None,
        dropout: float = 0.0,
        mlp_dropout: float = 0.0,
    ) -> None:
        super().__init__(channels, dim, patch, norm_name=norm_name)
        if tuple(patch) != (16, 16):
            raise UsageError(f"stem 't2t' has a total stride of 16×16, got patch {patch[0]}×{patch[1]}")
        positive("width", width)
        for name, rate in (("dropout", dropout), ("mlp_dropout", mlp_dropout)):
            if not 0 <= rate < 1:
                raise UsageError(f"stem 't2t': {name} must be in [0, 1), got {rate}")
        if mixer not in READS:
            raise unknown("mixer", mixer, READS, "stem 't2t'")
        read, given = READS[mixer], dict(options or {})
        for option in given:
            if option not in keyword_options(read):
                raise unknown("option", option, keyword_options(read), f"mixer {mixer!r} of stem 't2t'")

        def module(inputs: int) -> TokenModule:
            norms = (norm(norm_name, c, eps=norm_eps) for c in (inputs, width))
            return TokenModule(next(norms), read(inputs, width, dropout, **given), next(norms), width, mlp_dropout)

        self.module1 = module(channels * 7 * 7)
        self.module2 = module(width * 3 * 3)
        self.project = nn.Conv2d(width, dim, 3, 2, 1)
        _start(self.project)

    def forward(self, x: Tensor) -> Tensor:
        first = _windows((x.shape[2], x.shape[3]), 7, 4, 2)
        x = self.module1(F.unfold(x, 7, padding=2, stride=4).transpose(1, 2), first)
        second = _windows(first, 3, 2, 1)
        x = self.module2(F.unfold(image_view(x, first), 3, padding=1, stride=2).transpose(1, 2), second)
        return self.project(image_view(x, second))

    def grid(self, size: Size) -> Size:
        if min(size) < 3:
            raise UsageError(f"stem 't2t' needs images of at least 3×3 pixels, got {size[0]}×{size[1]}")
        return token_grid(size)

    def fold(self) -> None:
        self.module1.fold()
        self.module2.fold()


def token_grid(size: Size) -> Size:
    """(rows, columns) of the tokens that the stem makes of an image (height, width)."""
    return _windows(_windows(_windows(size, 7, 4, 2), 3, 2, 1), 3, 2, 1)


def _windows(size: Size, side: int, stride: int, padding: int) -> Size:
    """(rows, columns) of the windows of a soft split."""
    rows, columns = ((s + 2 * padding - side) // stride + 1 for s in size)
    return rows, columns


def _start(module: nn.Module) -> None:
    """Weights from a truncated normal of 0.02, biases zero, as in the code of T2T-ViT."""
    for name, parameter in module.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        else:
            nn.init.trunc_normal_(parameter, std=0.02)


STEMS["t2t"] = TokensToToken
