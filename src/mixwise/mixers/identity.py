"""No token mixing at all: the lower end of every comparison."""

from torch import Tensor

from mixwise.layers import Grid
from mixwise.mixers.base import Mixer, register


@register("identity")
class Identity(Mixer):
    """Each token as it is.

        y = x

    Only the stem, the downsampling and the final mean move information between tokens.
    Source: Yu et al., "MetaFormer Baselines for Vision", arXiv 2210.13452, IdentityFormer.

    Differs from the paper: nothing.

    Shapes: (b, n, c) → (b, n, c).

    >>> Identity(8)(torch.randn(2, 12, 8), (3, 4)).shape
    torch.Size([2, 12, 8])
    """

    equivariant = True
    shift_blind = True

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        return x
