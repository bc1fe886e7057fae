"""What every backbone is made of besides its token mixers: norms, activations, channel mixers, drop path.

Tokens are (b, n, c). A map (b, c, h, w) of channels-last memory is the same bytes, so going between the two is free.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixwise.errors import UsageError, unknown

Grid = tuple[int, ...]
"""How the tokens lie: (h, w) for an image, (n,) for a sequence or a set of points."""


def image_view(x: Tensor, grid: Grid) -> Tensor:
    """Tokens (b, h·w, c) as a map (b, c, h, w): a channels-last view, no copy."""
    if len(grid) != 2:
        raise UsageError(f"this mixer needs tokens on a 2-D grid, got grid={grid}")
    return x.transpose(1, 2).unflatten(2, (grid[0], grid[1]))


def token_view(x: Tensor) -> Tensor:
    """A map (b, c, h, w) as tokens (b, h·w, c); no copy where the map is channels-last."""
    return x.flatten(2).transpose(1, 2)


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


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "gelu": nn.GELU,
    "gelu_tanh": lambda: nn.GELU(approximate="tanh"),
    "identity": nn.Identity,
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "star_relu": StarReLU,
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


# --- norms on tokens (b, n, c) ----------------------------------------------------------------------------------------


class GroupNorm1(nn.Module):
    """Mean and variance over tokens and channels together, affine per channel: GroupNorm with one group.

    It is not LayerNorm, which normalises each token by itself. Source: arXiv 2111.11418, "modified layer norm".
    """

    def __init__(self, dim: int, *, scale: bool = True, bias: bool = True, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim)) if scale else None
        self.bias = nn.Parameter(torch.zeros(dim)) if bias else None
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x = F.layer_norm(x, x.shape[1:], eps=self.eps)
        x = x if self.weight is None else x * self.weight
        return x if self.bias is None else x + self.bias


class TokenBatchNorm(nn.BatchNorm1d):
    """Batch norm per channel over batch and tokens, for tokens (b, n, c).

    Runs as a channels-last map, which is the layout the kernels are fast in.
    """

    def __init__(self, dim: int, *, scale: bool = True, bias: bool = True, eps: float = 1e-5) -> None:
        super().__init__(dim, eps=eps, affine=scale)
        if not bias:
            self.register_parameter("bias", None)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and x.shape[0] * x.shape[1] == 1:
            raise UsageError("batch norm needs more than one value per channel to train: use a larger batch")
        return super().forward(x.transpose(1, 2).unsqueeze(-1)).squeeze(-1).transpose(1, 2)

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() != 4:
            raise UsageError(f"batch norm on tokens expects (b, n, c), got {input.dim() - 1} dimensions")


class Affine(nn.Module):
    """α ⊙ x + β per channel, no statistics. Source: Touvron et al., "ResMLP", arXiv 2105.03404, section 2."""

    def __init__(self, dim: int, *, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight if self.bias is None else torch.addcmul(self.bias, x, self.weight)


def _layer_norm(dim: int, scale: bool, bias: bool, eps: float | None) -> nn.Module:
    return nn.LayerNorm(dim, eps=eps or 1e-6, elementwise_affine=scale, bias=bias)


NORMS: dict[str, Callable[[int, bool, bool, float | None], nn.Module]] = {
    "affine": lambda dim, scale, bias, eps: Affine(dim, bias=bias) if scale else nn.Identity(),
    "batch": lambda dim, scale, bias, eps: TokenBatchNorm(dim, scale=scale, bias=bias, eps=eps or 1e-5),
    "group1": lambda dim, scale, bias, eps: GroupNorm1(dim, scale=scale, bias=bias, eps=eps or 1e-5),
    "layer": _layer_norm,
    "none": lambda dim, scale, bias, eps: nn.Identity(),
}


def norm(name: str, dim: int, *, scale: bool = True, bias: bool = True, eps: float | None = None) -> nn.Module:
    """A norm on tokens (b, n, c) by name: layer, group1, batch, affine, none.

    Args:
        scale: False leaves out the learned scale, and with it the shift.
        bias: False leaves out the learned shift.
        eps: added to the variance; None: 1e-6 for layer, 1e-5 for the others; affine and none have none.
    """
    if name not in NORMS:
        raise unknown("norm", name, NORMS)
    return NORMS[name](dim, scale, scale and bias, eps)


# --- residual branches ------------------------------------------------------------------------------------------------


class DropPath(nn.Module):
    """Drops the whole branch of a sample with probability `rate` in training, and scales the kept ones by 1/(1-rate).

    Source: Huang et al., "Deep Networks with Stochastic Depth", arXiv 1603.09382; per sample as in timm.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise UsageError(f"drop path: rate must be in [0, 1), got {rate}")
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        keep = 1 - self.rate
        return x * x.new_empty((x.shape[0],) + (1,) * (x.dim() - 1)).bernoulli_(keep).div_(keep)

    def extra_repr(self) -> str:
        return f"rate={self.rate:.3g}"


def hidden_width(who: str, dim: int, ratio: float) -> int:
    """`ratio` · dim as a whole number of at least 1."""
    if ratio <= 0:
        raise UsageError(f"{who}: ratio must be positive, got {ratio}")
    return max(1, round(dim * ratio))


class ChannelMLP(nn.Module):
    """Two linear layers on each token by itself: (b, n, c) → (b, n, c), hidden width `ratio` · c.

    Args:
        ratio: hidden width over c.
        act: name of the activation.
        bias: of the first layer, in front of the activation.
        out_bias: of the second layer. Off in house models, where the batch norms that follow would remove it.
        gated: the hidden layer is u · act(v), u and v the halves of the first layer; the gate starts as act(1).
    """

    spatial = False

    def __init__(
        self,
        dim: int,
        *,
        ratio: float = 4.0,
        act: str = "gelu",
        bias: bool = True,
        out_bias: bool = False,
        gated: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        hidden = hidden_width("mlp", dim, ratio)
        if gated and (hidden % 2 or not bias):
            raise UsageError(f"mlp: gated needs a bias and a hidden width of two halves, got {hidden} and bias={bias}")
        self.fc1 = nn.Linear(dim, hidden, bias=bias)
        self.act = activation(act)
        self.fc2 = nn.Linear(hidden // 2 if gated else hidden, dim, bias=out_bias)
        self.gated = gated
        self.dropout = dropout
        if gated:
            nn.init.normal_(self.fc1.weight[hidden // 2 :], std=1e-6)
            nn.init.ones_(self.fc1.bias[hidden // 2 :])

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        z = self.fc1(x)
        x = F.dropout(gate(z, self.act, dim=2) if self.gated else self.act(z), self.dropout, self.training)
        return F.dropout(self.fc2(x), self.dropout, self.training)


class LocalMLP(nn.Module):
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
        self.norm = TokenBatchNorm(hidden)
        self.conv2 = nn.Conv2d(hidden, dim, kernel, padding=kernel // 2, bias=False)
        nn.init.kaiming_normal_(self.conv1.weight, mode="fan_out", nonlinearity="relu")
        nn.init.normal_(self.conv2.weight, std=0.2 * (2 / (dim * kernel**2)) ** 0.5)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        x = token_view(self.conv1(image_view(self.act(x), grid)))
        return token_view(self.conv2(image_view(self.act(self.norm(x)), grid)))


ChannelMixer = ChannelMLP | LocalMLP
CHANNEL_MIXERS: dict[str, type[ChannelMixer]] = {"local_mlp": LocalMLP, "mlp": ChannelMLP}
"""What may stand in a branch besides a token mixer."""
