"""The RepMLPNet block: share-set matrices with local convolutions to train, the matrices alone to run."""

import copy
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from mixwise.errors import UsageError, unknown
from mixwise.layers import Grid, check_tokens
from mixwise.mixers.base import Mixer, ResizeMethod, positive, register
from mixwise.mixers.repmlp_parts import (
    GlobalPerceptron,
    LocalPerceptron,
    SetNorm,
    new_window,
    shared_linear,
    unwindows,
    windows,
)
from mixwise.norms import scale_shift
from mixwise.regrid import interpolate, recentre


def _default_sets(dim: int) -> int:
    return max(s for s in (1, 2, 4, 8, 16) if s == 1 or (dim % s == 0 and s <= dim // 4))


@register("repmlp")
class RepMLP(Mixer):
    """Window by window, a matrix over the positions plus small convolutions, times a gate from the whole image.

        y = sigmoid(F2 relu(F1 mean(x))) ⊙ (BN(W_s x) + sum_k BN(conv_k(x)))        W_s (hw, hw), s = channel mod S

    Global, channel and local perceptron. Source: Ding et al., "RepMLPNet", arXiv 2112.11081, section 3. Norms and
    convolutions are affine in evaluation, so `reparameterize` folds them into W_s exactly.

    Another grid: auto keeps the windows where they tile it ("expand", the authors' way) and else stretches them with it
    ("smooth"): rows of W_s as in `linear`; gate, norms and convolutions stay.

    Differs from the paper: nothing. The authors' code returns results to wrong windows and channels where there are
    several windows and S < c; here they return to where they came from (`order`).

    Args:
        partition: (h, w) of a window; None: the whole grid. With a partition, any grid that it tiles works.
        sharesets: S, a divisor of c; None: the largest power of two that divides c, up to c / 4 and 16.
        kernels: sizes k of the convolutions, odd.
        reduce: c over the hidden width of the gate.
        order: window, or official: as the authors' code (repmlpnet.py) has it; for partitions with S < c alone.

    Shapes: (b, n, c) → (b, n, c). Raises `UsageError` where the windows do not tile the grid or S does not divide c.

    >>> RepMLP(8, tokens=12, grid=(3, 4))(torch.randn(2, 12, 8), (3, 4)).shape
    torch.Size([2, 12, 8])
    """

    fixed_grid = True
    spatial = True

    def __init__(
        self,
        dim: int,
        tokens: int | None = None,
        grid: Grid | None = None,
        *,
        partition: tuple[int, int] | None = None,
        sharesets: int | None = None,
        kernels: tuple[int, ...] = (1, 3),
        reduce: int = 4,
        order: Literal["window", "official"] = "window",
    ) -> None:
        part = grid if partition is None else partition
        if part is None or len(part) != 2:
            raise UsageError(f"repmlp needs the 2-D grid of its tokens, or a partition; got grid={grid}")
        size = part[0] * part[1]
        super().__init__(dim, size, grid)
        self.fixed_grid = partition is None
        self.part = tuple(part)
        sets = _default_sets(dim) if sharesets is None else sharesets
        if sets < 1 or dim % sets:
            raise UsageError(f"repmlp: sharesets must divide the width {dim}, got {sets}")
        if any(k < 1 or k % 2 == 0 for k in kernels):
            raise UsageError(f"repmlp: kernels must be odd, got {kernels}")
        positive("reduce", reduce)
        if order not in ("window", "official"):
            raise unknown("order", order, ("window", "official"))
        if order == "official" and (partition is None or sets == dim):
            raise UsageError("repmlp: order='official' needs a partition, and sharesets below the width")
        self.scrambled = sets if order == "official" else 0
        self.gate = GlobalPerceptron(dim, reduce)
        self.weight = nn.Parameter(torch.empty(sets, size, size).uniform_(-(size**-0.5), size**-0.5))
        self.norm = SetNorm(sets)
        self.local = nn.ModuleList(LocalPerceptron(sets, k) for k in kernels)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        if self.fixed_grid:
            check_tokens(x, self.weight.shape[1])
        parts = windows(x, grid, self.part)
        y = self.norm(shared_linear(parts, self.weight))
        for local in self.local:
            y = y + local(parts, self.part)
        return self.gate(x) * unwindows(y, grid, self.part, self.scrambled)

    @torch.no_grad()
    def resize(self, old: Grid, new: Grid, *, prefix: int = 0, method: ResizeMethod = "auto") -> dict[str, Any]:
        return _resize(self, new_window(self.part, old, new, method), new)

    @torch.no_grad()
    def reparameterize(self) -> Mixer:
        """`FusedRepMLP`, equal to this module in evaluation with its present statistics; folded in float64."""
        scale, bias = scale_shift(self.norm)
        weight = self.weight.double() * scale[:, None, None]
        for local in self.local:
            matrix, shift = cast(LocalPerceptron, local).matrix_shift(self.part)
            weight, bias = weight + matrix, bias + shift
        return FusedRepMLP(self, weight, bias)


class FusedRepMLP(Mixer):
    """`RepMLP` for inference: matrices (S, hw, hw) and biases (S, hw), no norms, no convolutions.

        y = sigmoid(F2 relu(F1 mean(x))) ⊙ (W_s x + b_s)

    Made by `RepMLP.reparameterize`; its weights are a file of their own form. Shapes: (b, n, c) → (b, n, c).
    """

    fixed_grid = True
    spatial = True

    def __init__(self, trained: RepMLP, weight: Tensor, bias: Tensor) -> None:
        super().__init__(trained.dim, weight.shape[1])
        self.fixed_grid = trained.fixed_grid
        self.part, self.scrambled = trained.part, trained.scrambled
        self.gate = copy.deepcopy(trained.gate)
        self.weight = nn.Parameter(weight.to(trained.weight.dtype))
        self.bias = nn.Parameter(bias[:, None].expand(-1, weight.shape[1]).to(trained.weight.dtype, copy=True))

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        if self.fixed_grid:
            check_tokens(x, self.weight.shape[1])
        y = shared_linear(windows(x, grid, self.part), self.weight, self.bias)
        return self.gate(x) * unwindows(y, grid, self.part, self.scrambled)

    @torch.no_grad()
    def resize(self, old: Grid, new: Grid, *, prefix: int = 0, method: ResizeMethod = "auto") -> dict[str, Any]:
        part = new_window(self.part, old, new, method)
        if part != self.part:
            self.bias.data = interpolate(self.bias, 1, self.part, part)
        return _resize(self, part, new)


def _resize(mixer: RepMLP | FusedRepMLP, part: Grid, grid: Grid) -> dict[str, Any]:
    """The matrices for windows `part` of a grid, in place, and the option that says so."""
    if part != mixer.part:
        mixer.weight.data = recentre(mixer.weight, mixer.part, part)
    mixer.part, mixer.fixed_grid = part, mixer.fixed_grid and part == grid
    return {} if mixer.fixed_grid else {"partition": part}
