"""The cross-patch layer of ResMLP."""

import torch
from torch import Tensor, nn

from mixwise.layers import Grid, token_linear
from mixwise.mixers.base import Mixer, register


@register("linear")
class Linear(Mixer):
    """One linear layer along the token axis, shared by all channels.

        y = A x + a        A (n, n), a (n,), x (n, c)

    Source: Touvron et al., "ResMLP", arXiv 2105.03404, section 2, equation 2; the affine in front and the layer scale
    behind belong to the skeleton (norm="affine", layer_scale).

    Differs from the paper: nothing.

    Args:
        bias: a; off in the spatial FC of the PoolFormer hybrids (arXiv 2111.11418).

    Shapes: (b, n, c) → (b, n, c), n as built.

    >>> Linear(8, tokens=12)(torch.randn(2, 12, 8), (3, 4)).shape
    torch.Size([2, 12, 8])
    """

    fixed_grid = True
    commutes = True

    def __init__(self, dim: int, tokens: int | None = None, grid: Grid | None = None, *, bias: bool = True) -> None:
        super().__init__(dim, tokens, grid)
        assert tokens is not None
        self.weight = nn.Parameter(torch.empty(tokens, tokens))
        self.bias = nn.Parameter(torch.zeros(tokens)) if bias else None
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        return token_linear(x, self.weight, self.bias)

    def fold_around(self, scale: Tensor, shift: Tensor | None, after: Tensor | None) -> tuple[Mixer, Tensor | None]:
        return FusedLinear(self, scale, shift, torch.ones_like(scale) if after is None else after), None


class FusedLinear(Mixer):
    """`Linear` between a shift and two factors per channel, for inference.

        γ ⊙ (A (α ⊙ x + β) + a) = (γ α) ⊙ A x + B        B = γ ⊙ ((A 1) β^T + a 1^T), (n, c)

    Made by `Linear.fold_around`. Source: arXiv 2105.03404, section 2, on the affine layers at inference.
    """

    fixed_grid = True

    def __init__(self, trained: Linear, scale: Tensor, shift: Tensor | None, after: Tensor) -> None:
        weight = trained.weight
        super().__init__(trained.dim, weight.shape[0])
        after = after.detach().double()
        bias = torch.zeros(weight.shape[0], trained.dim, dtype=torch.float64, device=weight.device)
        if shift is not None:
            bias += weight.double().sum(1, keepdim=True) * shift
        if trained.bias is not None:
            bias += trained.bias.double()[:, None]
        self.weight = nn.Parameter(weight.detach().clone())
        self.factor = nn.Parameter((scale * after).to(weight.dtype))
        self.bias = nn.Parameter((bias * after).to(weight.dtype))

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        return torch.addcmul(self.bias, token_linear(x, self.weight), self.factor)
