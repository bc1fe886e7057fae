"""Average pooling, the parameter-free token mixer of PoolFormer."""

import torch.nn.functional as F
from torch import Tensor

from mixwise.errors import UsageError
from mixwise.layers import Grid, image_view, token_view
from mixwise.mixers.base import Mixer, register


@register("pool")
class Pool(Mixer):
    """Mean of the k × k neighbourhood minus the token itself.

        y[i] = mean(x[j] for j within (k-1)/2 rows and columns of i) - x[i]

    Neighbours outside the image are not counted. The subtraction is there because the block adds x back.
    Source: Yu et al., "MetaFormer Is Actually What You Need for Vision", arXiv 2111.11418, section 3.2, equation 4.

    Args:
        size: k, odd.

    Shapes: (b, h·w, c) → (b, h·w, c). Raises `UsageError` for an even k.

    >>> Pool(8, size=3)(torch.randn(2, 12, 8), (3, 4)).shape
    torch.Size([2, 12, 8])
    """

    spatial = True
    shift_blind = True
    commutes = True

    def __init__(self, dim: int, tokens: int | None = None, grid: Grid | None = None, *, size: int = 3) -> None:
        super().__init__(dim, tokens, grid)
        if size < 3 or size % 2 == 0:
            raise UsageError(f"pool: size must be odd and at least 3, got {size}")
        self.size = size

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        mean = F.avg_pool2d(image_view(x, grid), self.size, stride=1, padding=self.size // 2, count_include_pad=False)
        return token_view(mean) - x

    def fold_around(self, scale: Tensor, shift: Tensor | None, after: Tensor | None) -> tuple[Mixer, Tensor | None]:
        return self, scale if after is None else scale * after  # the shift vanishes in the difference
