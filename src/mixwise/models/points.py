"""What models of point clouds are made of: sampling, neighbourhoods, attention between points."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixwise.folding import absorb_after
from mixwise.layers import Grid
from mixwise.mixers import Mixer
from mixwise.mixers.external_attention import ExternalAttention, double_normalize
from mixwise.models.maps import Foldable
from mixwise.norms import TokenBatchNorm


def take(x: Tensor, index: Tensor) -> Tensor:
    """Rows of x (b, n, c) by index (b, …) → (b, …, c)."""
    start = torch.arange(x.shape[0], device=x.device).view(-1, *[1] * (index.dim() - 1)) * x.shape[1]
    return x.flatten(0, 1).index_select(0, (index + start).flatten()).view(*index.shape, -1)


def sort_points(cloud: Tensor) -> Tensor:
    """A cloud (b, n, 3) in order of x, where equal of y, then of z: the same for every order that it is given in."""
    for axis in (2, 1, 0):
        cloud = take(cloud, cloud[..., axis].argsort(dim=1, stable=True))
    return cloud


@torch.no_grad()
def farthest_points(points: Tensor, count: int) -> Tensor:
    """Indices (b, count) of points (b, n, 3), each the farthest from those before it; the first is point 0.

    Source: Qi et al., "PointNet++", arXiv 1706.02413, section 3.2.
    """
    last = torch.zeros(points.shape[0], dtype=torch.long, device=points.device)
    gap = points.new_full(points.shape[:2], torch.inf)
    chosen = [last]
    for _ in range(count - 1):
        gap = torch.minimum(gap, (points - take(points, last[:, None])).square().sum(2))
        last = gap.argmax(1)
        chosen.append(last)
    return torch.stack(chosen, 1)


@torch.no_grad()
def nearest_points(points: Tensor, centres: Tensor, count: int) -> Tensor:
    """Indices (b, m, count) of the points (b, n, 3) that are nearest to each centre (b, m, 3), itself included."""
    gap = torch.cdist(centres, points, compute_mode="donot_use_mm_for_euclid_dist")
    return gap.topk(count, dim=2, largest=False).indices


class LinearNorm(Foldable):
    """norm(W x), (…, c) → (…, out): a linear layer and its batch norm over all axes but the last."""

    def __init__(self, dim: int, out: int, *, bias: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, out, bias=bias)
        self.norm = TokenBatchNorm(out)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return self.norm(y.reshape(1, -1, y.shape[-1])).view(y.shape)

    def folded(self) -> nn.Linear:
        """One linear layer with a bias."""
        part = self.norm.split()
        absorb_after(self.linear, part.scale, part.shift)
        return self.linear


class Neighbourhood(Foldable):
    """max over neighbours j of relu(norm(W₂ relu(norm(W₁ [x_j - x_i, x_i])))): (b, n, c) → (b, m, 2c)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.first = LinearNorm(2 * dim, 2 * dim)
        self.second = LinearNorm(2 * dim, 2 * dim)

    def forward(self, x: Tensor, centres: Tensor, near: Tensor) -> Tensor:
        """Features x of all points; indices of the centres (b, m) and of their neighbours (b, m, k)."""
        own, around = take(x, centres)[:, :, None], take(x, near)
        pairs = torch.cat((around - own, own.expand_as(around)), 3)
        return F.relu(self.second(F.relu(self.first(pairs)))).amax(2)

    def folded(self) -> "SplitNeighbourhood":
        return SplitNeighbourhood(self.first.folded(), self.second.folded())


class SplitNeighbourhood(nn.Module):
    """A neighbourhood without norms, whose first layer runs on points instead of pairs.

    W₁ = [A, B] with a bias b: W₁ [x_j - x_i, x_i] + b = A x_j + (B - A) x_i + b
    """

    def __init__(self, first: nn.Linear, second: nn.Linear) -> None:
        super().__init__()
        inputs, dtype = first.in_features // 2, first.weight.dtype
        with torch.device(first.weight.device):
            self.around = nn.Linear(inputs, first.out_features, bias=False, dtype=dtype)
            self.own = nn.Linear(inputs, first.out_features, dtype=dtype)
        a, b = first.weight.double().split(inputs, 1)
        self.around.weight = nn.Parameter(a.to(dtype))
        self.own.weight = nn.Parameter((b - a).to(dtype))
        self.own.bias = first.bias
        self.second = second

    def forward(self, x: Tensor, centres: Tensor, near: Tensor) -> Tensor:
        """As `Neighbourhood`."""
        own = self.own(take(x, centres))[:, :, None]
        return F.relu(self.second(F.relu(take(self.around(x), near) + own))).amax(2)


class PointAttention(Mixer):
    """Each point becomes a mean of values of all points, weighted by how alike their keys are, normalised twice.

        y = A V x, A = softmax over the rows of K x (K x)^T, then divided by the sum over the columns

    Queries are keys. What is summed over is a column's index, so the softmax is over the points that are written to.

    Shapes: (b, n, c) → (b, n, c).
    """

    equivariant = True

    def __init__(
        self, dim: int, tokens: int | None = None, grid: Grid | None = None, *, eps: float | None = None
    ) -> None:
        super().__init__(dim, tokens, grid)
        self.key = nn.Linear(dim, dim // 4, bias=False)
        self.value = nn.Linear(dim, dim)
        self.eps = eps

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        key = self.key(x)
        return double_normalize(key @ key.mT, tokens=1, slots=2, eps=self.eps) @ self.value(x)


class AttentionLayer(nn.Module):
    """x + relu(norm(W (x - attention(x)))), or without the offset x + relu(norm(W attention(x))), on (b, n, c)."""

    def __init__(self, dim: int, *, memory: int, offset: bool, eps: float | None) -> None:
        super().__init__()
        self.attention: Mixer
        if memory:
            self.attention = ExternalAttention(dim, memory=memory, query=False, eps=eps)
        else:
            self.attention = PointAttention(dim, eps=eps)
        self.out: nn.Module = LinearNorm(dim, dim, bias=True)
        self.offset = offset
        self.adjacent = bool(memory) and not offset

    def forward(self, x: Tensor) -> Tensor:
        y = self.attention(x, (x.shape[1],))
        return x + F.relu(self.out(x - y if self.offset else y))

    def merge(self) -> None:
        """W, its norm folded, into the value memory where that is the layer before it; in place."""
        if self.adjacent:
            out: Any = self.out
            value: Any = self.attention.value
            value.weight = nn.Parameter((out.weight.double() @ value.weight.double()).to(value.weight.dtype))
            value.bias = out.bias
            self.out = nn.Identity()
