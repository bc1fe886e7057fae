"""What every backbone is made of besides its token mixers: norms, activations, channel mixers, drop path.

Tokens are (b, n, c). A map (b, c, h, w) of channels-last memory is the same bytes, so going between the two is free.
"""

import copy
from collections.abc import Callable
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixwise.errors import UsageError, unknown
from mixwise.folding import absorb_after, absorb_before
from mixwise.norms import NoNorm, Norm, TokenBatchNorm, make_norm

Grid = tuple[int, ...]
"""How the tokens lie: (h, w) for an image, (n,) for a sequence or a set of points."""


def image_view(x: Tensor, grid: Grid) -> Tensor:
    """Tokens (b, h·w, c) as a map (b, c, h, w): a channels-last view, no copy."""
    if len(grid) != 2:
        raise UsageError(f"this mixer needs tokens on a 2-D grid, got grid={grid}")
    # Channels moved last: the other way round a batch of one gets a stride by which torch does not know the layout.
    return x.unflatten(1, (grid[0], grid[1])).permute(0, 3, 1, 2)


def token_view(x: Tensor) -> Tensor:
    """A map (b, c, h, w) as contiguous tokens (b, h·w, c); no copy where the map is channels-last.

    Contiguous, because a sum takes the layout of its first operand: one transposed map, as convolutions give for a
    batch of one, would make every later layer of the residual stream copy.
    """
    return x.permute(0, 2, 3, 1).flatten(1, 2).contiguous()


def check_tokens(x: Tensor, tokens: int) -> None:
    """Raise `UsageError` where x (b, n, c) has another n than the weights were built for."""
    if x.shape[1] != tokens:
        raise UsageError(f"the weights of this mixer are for {tokens} tokens and it was given {x.shape[1]}")


def token_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """W x + b along the token axis without transposing: x (b, n, c), weight (m, n), bias (m,) → (b, m, c)."""
    check_tokens(x, weight.shape[1])
    stacked = weight.expand(x.shape[0], -1, -1)
    if bias is None:
        return torch.bmm(stacked, x)
    return torch.baddbmm(bias[:, None], stacked, x)


# --- activations ------------------------------------------------------------------------------------------------------


def gelu_form(name: str) -> str:
    """The `approximate` argument of torch's GELU for "erf" (exact) or "tanh"."""
    forms = {"erf": "none", "tanh": "tanh"}
    if name not in forms:
        raise unknown("GELU form", name, forms)
    return forms[name]


class StarReLU(nn.Module):
    """s · relu(x)² + b with learnable scalars s and b.

    Source: Yu et al., "MetaFormer Baselines for Vision", arXiv 2210.13452, section 3.4. The authors' code starts at
    s = 1, b = 0; the paper derives s = 0.8944, b = -0.4472 (`star_relu_normal`).
    """

    def __init__(self, *, scale: float = 1.0, shift: float = 0.0) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([scale]))
        self.shift = nn.Parameter(torch.tensor([shift]))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * F.relu(x).square() + self.shift


class SquaredReLU(nn.Module):
    """relu(x)². Source: So et al., "Primer", arXiv 2109.08668."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x).square()


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "gelu": nn.GELU,
    "gelu_tanh": lambda: nn.GELU(approximate="tanh"),
    "identity": nn.Identity,
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "squared_relu": SquaredReLU,
    "star_relu": StarReLU,
    "tanh": nn.Tanh,
    "star_relu_normal": lambda: StarReLU(scale=0.8944, shift=-0.4472),
}


def activation(name: str) -> nn.Module:
    """A fresh activation module by name."""
    if name not in ACTIVATIONS:
        raise unknown("activation", name, ACTIVATIONS)
    return ACTIVATIONS[name]()


def gate(z: Tensor, act: nn.Module, *, dim: int) -> Tensor:
    """u · act(v), u and v the first and the second half of z along an axis. Source: Shazeer, arXiv 2002.05202."""
    u, v = z.chunk(2, dim=dim)
    return u * act(v)


# --- residual branches ------------------------------------------------------------------------------------------------


def check_rate(who: str, rate: float) -> None:
    """Raise `UsageError` for a share that is dropped and is not in [0, 1)."""
    if not 0 <= rate < 1:
        raise UsageError(f"{who}: rate must be in [0, 1), got {rate}")


class DropPath(nn.Module):
    """Drops the whole branch of a sample with probability `rate` in training, and scales the kept ones by 1/(1-rate).

    Source: Huang et al., "Deep Networks with Stochastic Depth", arXiv 1603.09382; per sample as in timm.

    Args:
        batch: one draw for the whole batch, as in the source.
        rescale: False leaves the kept branches as they are.
    """

    def __init__(self, rate: float, *, batch: bool = False, rescale: bool = True) -> None:
        super().__init__()
        check_rate("drop path", rate)
        self.rate, self.batch, self.rescale = rate, batch, rescale

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        keep = 1 - self.rate
        drawn = x.new_empty((1 if self.batch else x.shape[0],) + (1,) * (x.dim() - 1)).bernoulli_(keep)
        return x * (drawn.div_(keep) if self.rescale else drawn)

    def extra_repr(self) -> str:
        return f"rate={self.rate:.3g}"


class Mixing(nn.Module):
    """What stands in a branch: mixes tokens or channels, (b, n, c) → (b, n, c). The attributes let a branch fold."""

    spatial: bool = False
    """Needs a 2-D grid and no prefix tokens."""
    readers: tuple[str, ...] = ()
    """Linear layers that all of the input passes first, so that they can absorb a factor and a summand per channel."""
    writers: tuple[str, ...] = ()
    """Linear layers whose sum is the output."""
    commutes: bool = False
    """A factor per channel in front equals the same factor behind."""

    def reparameterize(self) -> "Mixing":
        """An equal, cheaper module for inference; self where there is nothing to fold. The original stays as it is."""
        return self

    def fold_around(self, scale: Tensor, shift: Tensor | None, after: Tensor | None) -> "tuple[Mixing, Tensor | None]":
        """For a module f that commutes: after · f(x · scale + shift) as (g, rest) with rest · g(x); None: no factor."""
        raise NotImplementedError


def hidden_width(who: str, dim: int, ratio: float) -> int:
    """`ratio` · dim as a whole number of at least 1."""
    if ratio <= 0:
        raise UsageError(f"{who}: ratio must be positive, got {ratio}")
    return max(1, round(dim * ratio))


class ChannelMLP(Mixing):
    """Two linear layers on each token by itself: (b, n, c) → (b, n, c), hidden width `ratio` · c.

    Args:
        ratio: hidden width over c.
        act: name of the activation.
        bias: of the first layer, in front of the activation.
        out_bias: of the second layer. Off in house models, where the batch norms that follow would remove it.
        gated: the hidden layer is u · act(v), u and v the halves of the first layer; the gate starts as act(1).
        norm: name of a norm behind each layer, before the activation; the shift is then the norm's: the layers have no
            bias of their own, and `bias` and `out_bias` are about the norms. RepMLPNet's FFN has batch.
        dropout: of the hidden layer and of the output, in training.
    """

    readers = ("fc1",)

    def __init__(
        self,
        dim: int,
        *,
        ratio: float = 4.0,
        act: str = "gelu",
        bias: bool = True,
        out_bias: bool = False,
        gated: bool = False,
        norm: str = "none",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        hidden = hidden_width("mlp", dim, ratio)
        if gated and norm != "none":
            raise UsageError(f"mlp: gated goes without a norm, got norm={norm!r}")
        check_rate("mlp: dropout", dropout)
        if gated and (hidden % 2 or not bias):
            raise UsageError(f"mlp: gated needs a bias and a hidden width of two halves, got {hidden} and bias={bias}")
        self.fc1 = nn.Linear(dim, hidden, bias=bias and norm == "none")
        self.norm1 = make_norm(norm, hidden, bias=bias)
        self.act = activation(act)
        self.fc2 = nn.Linear(hidden // 2 if gated else hidden, dim, bias=out_bias and norm == "none")
        self.norm2 = make_norm(norm, dim, bias=out_bias)
        self.writers = ("fc2",) if norm == "none" else ()
        self.gated = gated
        self.dropout = dropout
        if gated:
            nn.init.normal_(self.fc1.weight[hidden // 2 :], std=1e-6)
            nn.init.ones_(self.fc1.bias[hidden // 2 :])

    def matrices(self) -> list[Tensor]:
        """As of token mixers."""
        if self.gated:
            raise UsageError("mlp: a gate starts in its own way: leave the model's init at 'own'")
        return [self.fc1.weight, self.fc2.weight]

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        z = self.norm1(self.fc1(x))
        x = F.dropout(gate(z, self.act, dim=2) if self.gated else self.act(z), self.dropout, self.training)
        return F.dropout(self.norm2(self.fc2(x)), self.dropout, self.training)

    def reparameterize(self) -> Self:
        fused = copy.deepcopy(self)
        if isinstance(self.act, StarReLU) and not self.gated:
            scale, shift = (p.detach().double().expand(self.fc2.in_features) for p in (self.act.scale, self.act.shift))
            absorb_before(fused.fc2, scale, shift)
            fused.act = SquaredReLU()
        for place, layer in (("norm1", fused.fc1), ("norm2", fused.fc2)):
            factor, summand, rest = getattr(fused, place).split()
            if isinstance(rest, NoNorm):
                absorb_after(layer, factor, summand)
                setattr(fused, place, rest)
        fused.writers = ("fc2",) if isinstance(fused.norm2, NoNorm) else ()
        return fused


class LocalMLP(Mixing):
    """A channel MLP whose two layers are 3 × 3 convolutions: it mixes channels and looks at the neighbours.

        y = conv(relu(norm(conv(relu(x)))))        hidden width `ratio` · c

    Behind the branch's batch norm this is the pre-activation residual block of He et al., arXiv 1603.05027. The compact
    models are made of it. The last convolution starts small.

    Shapes: tokens (b, h·w, c) on a 2-D grid → the same. `kernel` is the size of both convolutions, odd.
    """

    spatial = True

    def __init__(self, dim: int, *, ratio: float = 1.0, kernel: int = 3, act: str = "relu") -> None:
        super().__init__()
        if kernel < 1 or kernel % 2 == 0:
            raise UsageError(f"local_mlp: kernel must be odd, got {kernel}")
        hidden = hidden_width("local_mlp", dim, ratio)
        self.act = activation(act)
        self.conv1 = nn.Conv2d(dim, hidden, kernel, padding=kernel // 2, bias=False)
        self.norm: Norm = TokenBatchNorm(hidden)
        self.conv2 = nn.Conv2d(hidden, dim, kernel, padding=kernel // 2, bias=False)
        nn.init.kaiming_normal_(self.conv1.weight, mode="fan_out", nonlinearity="relu")
        nn.init.normal_(self.conv2.weight, std=0.2 * (2 / (dim * kernel**2)) ** 0.5)

    def matrices(self) -> list[Tensor]:
        """As of token mixers."""
        raise UsageError("local_mlp starts in its own way: leave the model's init at 'own'")

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        x = token_view(self.conv1(image_view(self.act(x), grid)))
        return token_view(self.conv2(image_view(self.act(self.norm(x)), grid)))

    def reparameterize(self) -> Self:
        scale, shift, rest = self.norm.split()
        if scale is None:
            return self
        fused = copy.deepcopy(self)
        absorb_after(fused.conv1, scale, shift)
        fused.norm = rest
        return fused


ChannelMixer = ChannelMLP | LocalMLP
CHANNEL_MIXERS: dict[str, type[ChannelMixer]] = {"local_mlp": LocalMLP, "mlp": ChannelMLP}
"""What may stand in a branch besides a token mixer."""
