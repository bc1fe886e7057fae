"""Where a token is: learned and fixed positions added to the tokens."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixwise.config import Size
from mixwise.errors import UsageError
from mixwise.layers import Grid
from mixwise.regrid import interpolate


class LearnedPositions(nn.Module):
    """One learned vector per token, prefix tokens first: weight (1, prefix + rows · columns, c).

    Source: Dosovitskiy et al., "ViT", arXiv 2010.11929, section 3.1.

    Args:
        grid: of the stored positions.
        prefix: prefix tokens with a position of their own.
        skip: prefix tokens without one.
        stretch: bilinear interpolation (corners not aligned) to the grid of the tokens, as in the authors' code of
            the feed-forward-only model, arXiv 2105.02723; otherwise the grids must agree.
        std: of the truncated normal that the weights start from; 0: zero.
    """

    def __init__(
        self, dim: int, grid: Size, *, prefix: int = 0, skip: int = 0, stretch: bool = False, std: float = 0.02
    ) -> None:
        super().__init__()
        self.grid, self.prefix, self.skip, self.stretch = grid, prefix, skip, stretch
        self.weight = nn.Parameter(torch.zeros(1, prefix + grid[0] * grid[1], dim))
        if std:
            nn.init.trunc_normal_(self.weight, std=std)

    @torch.no_grad()
    def resize(self, grid: Size) -> None:
        """Carry the weights to another grid in place: bicubic, antialiased; prefix tokens keep theirs.

        Source: Touvron et al., "DeiT", arXiv 2012.12877, section 6 (bicubic keeps the norms); antialiased as in timm.
        """
        if not self.stretch and grid != self.grid:
            self.weight.data = interpolate(self.weight, 1, self.grid, grid, prefix=self.prefix)
            self.grid = grid

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        weight: Tensor = self.weight
        if self.stretch and grid != self.grid:
            weight = stretched(weight, self.grid, grid, self.prefix)
        if self.skip:
            return torch.cat([x[:, : self.skip], x[:, self.skip :] + weight], dim=1)
        return x + weight


def stretched(weight: Tensor, old: Size, new: Grid, prefix: int) -> Tensor:
    """Positions (1, prefix + n, c) of one grid on another: bilinear, corners not aligned."""
    table = weight[:, prefix:].unflatten(1, old).permute(0, 3, 1, 2)
    table = F.interpolate(table, size=new, mode="bilinear", align_corners=False)
    return torch.cat([weight[:, :prefix], table.flatten(2).transpose(1, 2)], dim=1)


class SinCosPositions(nn.Module):
    """Fixed sine-cosine positions added to the tokens of the grid; nothing to train, any grid.

    Half of the channels code the row, half the column, with frequencies that fall geometrically
    from 1 towards 1/10000.
    Source: Vaswani et al., arXiv 1706.03762, section 3.5; the 2-D form as in MoCo v3, arXiv 2104.02057.

    Args:
        grid: rows and columns are measured on this grid, whatever the tokens' own; None: on the tokens' own. So a model
            for one image size meets the positions that it knows at another.
    """

    def __init__(self, dim: int, *, prefix: int = 0, grid: Size | None = None) -> None:
        super().__init__()
        self.dim, self.prefix, self.grid = dim, prefix, grid

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        table = self.table(grid, x.device).to(x.dtype)
        return x + (F.pad(table, (0, 0, self.prefix, 0)) if self.prefix else table)

    def table(self, grid: Grid, device: torch.device | None = None) -> Tensor:
        """The positions of a grid, (n, c)."""
        per_axis = self.dim // (2 * len(grid))
        if per_axis == 0:
            raise UsageError(f"sin-cos positions on a {len(grid)}-D grid need at least {2 * len(grid)} channels")
        frequency = 10000 ** (-torch.arange(per_axis, device=device, dtype=torch.float32) / per_axis)
        places = [torch.arange(s, device=device, dtype=torch.float32) for s in grid]
        if self.grid is not None and grid != self.grid:
            places = [(p + 0.5) * (g / s) - 0.5 for p, g, s in zip(places, self.grid, grid, strict=True)]
        axes = torch.meshgrid(*places, indexing="ij")
        angles = [axis.reshape(-1, 1) * frequency for axis in axes]
        table = torch.cat([f(a) for a in angles for f in (torch.sin, torch.cos)], dim=1)
        return F.pad(table, (0, self.dim - table.shape[1]))


class SinusoidPositions(nn.Module):
    """The fixed sinusoids of the Transformer along all tokens in order, prefix tokens included; sines on even channels.

    Source: Vaswani et al., arXiv 1706.03762, section 3.5; in T2T-ViT (arXiv 2101.11986) on image tokens.

    Args:
        grid: the positions are those of this grid, stretched bilinearly to the tokens; None: those of the tokens.
    """

    def __init__(self, dim: int, *, prefix: int = 0, grid: Size | None = None) -> None:
        super().__init__()
        self.dim, self.prefix, self.grid = dim, prefix, grid

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        if self.grid is None or grid == self.grid:
            return x + self.table(x.shape[1], x.device).to(x.dtype)
        table = self.table(self.prefix + self.grid[0] * self.grid[1], x.device)[None]
        return x + stretched(table, self.grid, grid, self.prefix).to(x.dtype)

    def table(self, tokens: int, device: torch.device | None = None) -> Tensor:
        """The positions of so many tokens, (n, c); computed in float64."""
        channel = torch.arange(self.dim, device=device, dtype=torch.float64)
        angle = torch.arange(tokens, device=device, dtype=torch.float64)[:, None] / 10000 ** (
            2 * (channel // 2) / self.dim
        )
        return torch.where(channel % 2 == 0, angle.sin(), angle.cos()).float()
