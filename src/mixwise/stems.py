"""From pixels to tokens and from one stage to the next: stems, downsampling, positions."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixwise.errors import UsageError
from mixwise.layers import Grid, activation, image_view, norm, token_view


def _strides(factor: int) -> list[int]:
    """A total stride as steps of 2 and one odd rest: 8 → [2, 2, 2], 6 → [2, 3], 1 → []."""
    steps = []
    while factor % 2 == 0 and factor > 1:
        steps.append(2)
        factor //= 2
    return [*steps, factor] if factor > 1 else steps


class ConvNormAct(nn.Module):
    """Convolution → norm on tokens → activation, on maps (b, c, h, w). Padding k//2: any size works.

    The convolution has a bias only where no norm with a shift of its own follows. `shift=False` leaves out that shift
    too: between stages it would be a constant per channel, which batch norms that read it remove again.
    """

    def __init__(
        self, dim: int, out: int, stride: tuple[int, int], *, norm_name: str, act: str, shift: bool = True
    ) -> None:
        super().__init__()
        rows, columns = (max(3, s + 1 - s % 2) for s in stride)
        padding = (rows // 2, columns // 2)
        self.conv = nn.Conv2d(dim, out, (rows, columns), stride, padding, bias=norm_name in ("none", "affine"))
        self.norm = norm(norm_name, out, bias=shift)
        self.act = activation(act)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        grid = (x.shape[2], x.shape[3])
        return image_view(self.act(self.norm(token_view(x))), grid)


class PatchStem(nn.Module):
    """One convolution with kernel = stride = patch: non-overlapping patches, as in ViT and MLP-Mixer."""

    def __init__(self, channels: int, dim: int, patch: tuple[int, int], *, norm_name: str = "none") -> None:
        super().__init__()
        self.patch = patch
        self.proj = nn.Conv2d(channels, dim, patch, patch)
        self.norm = norm(norm_name, dim)

    def forward(self, x: Tensor) -> Tensor:
        x = self.proj(x)
        return image_view(self.norm(token_view(x)), (x.shape[2], x.shape[3]))

    @staticmethod
    def grid(size: tuple[int, int], patch: tuple[int, int]) -> tuple[int, int]:
        """Tokens for an image size; the size must be a multiple of the patch."""
        if size[0] % patch[0] or size[1] % patch[1]:
            raise UsageError(f"image {size[0]}×{size[1]} is not a multiple of the patch {patch[0]}×{patch[1]}")
        return size[0] // patch[0], size[1] // patch[1]


class ConvStem(nn.Module):
    """A stack of 3 × 3 convolutions with stride 2, norm and activation, down to one token per patch.

    Overlapping, so it sees edges, and it takes any image size: the grid is the size over the patch, rounded up.
    """

    def __init__(
        self, channels: int, dim: int, patch: tuple[int, int], *, norm_name: str = "batch", act: str = "relu"
    ) -> None:
        super().__init__()
        rows, columns = _strides(patch[0]), _strides(patch[1])
        steps = max(len(rows), len(columns), 1)
        rows, columns = [1] * (steps - len(rows)) + rows, [1] * (steps - len(columns)) + columns
        layers: list[nn.Module] = []
        for i, stride in enumerate(zip(rows, columns, strict=True)):
            out = max(8, dim >> (steps - 1 - i)) if i < steps - 1 else dim
            layers.append(ConvNormAct(channels, out, stride, norm_name=norm_name, act=act))
            channels = out
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)

    @staticmethod
    def grid(size: tuple[int, int], patch: tuple[int, int]) -> tuple[int, int]:
        """Tokens for an image size: rounded up, so every size works."""
        return math.ceil(size[0] / patch[0]), math.ceil(size[1] / patch[1])


STEMS: dict[str, type[PatchStem] | type[ConvStem]] = {"conv": ConvStem, "patch": PatchStem}


class SinCosPositions(nn.Module):
    """Fixed sine-cosine positions added to the tokens; nothing to train, any grid.

    Half of the channels code the row, half the column, with frequencies that fall geometrically
    from 1 towards 1/10000.
    Source: Vaswani et al., arXiv 1706.03762, section 3.5; the 2-D form as in MoCo v3, arXiv 2104.02057.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        return x + self.table(grid, x.device).to(x.dtype)

    def table(self, grid: Grid, device: torch.device | None = None) -> Tensor:
        """The positions of a grid, (n, c)."""
        per_axis = self.dim // (2 * len(grid))
        if per_axis == 0:
            raise UsageError(f"sin-cos positions on a {len(grid)}-D grid need at least {2 * len(grid)} channels")
        frequency = 10000 ** (-torch.arange(per_axis, device=device, dtype=torch.float32) / per_axis)
        axes = torch.meshgrid(*(torch.arange(s, device=device, dtype=torch.float32) for s in grid), indexing="ij")
        angles = [axis.reshape(-1, 1) * frequency for axis in axes]
        table = torch.cat([f(a) for a in angles for f in (torch.sin, torch.cos)], dim=1)
        return F.pad(table, (0, self.dim - table.shape[1]))
