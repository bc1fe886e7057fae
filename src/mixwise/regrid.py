"""Weights that belong to the tokens of a grid, carried to another grid.

Every function computes in float64 and returns the dtype it was given. `old` and `new` are grids, (h, w) or (n,); the
first `prefix` entries along a token axis are class tokens, which have no place and are left as they are. Token i of an
axis covers [i, i + 1) of it, so a place p of the new grid is (p + 1/2) · old/new - 1/2 on the old one.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from mixwise.errors import UsageError
from mixwise.layers import Grid


def interpolate(x: Tensor, dim: int, old: Grid, new: Grid, *, prefix: int = 0) -> Tensor:
    """Values at the tokens, along one axis of x, at the tokens of the new grid: a bias, positions, what is written.

    Bicubic, antialiased where the grid shrinks: the same as `torch.nn.functional.interpolate` with these settings.
    """
    return _along(x, dim, [_cubic(a, b) for a, b in zip(old, new, strict=True)], old, prefix)


def distribute(x: Tensor, dim: int, old: Grid, new: Grid, *, prefix: int = 0) -> Tensor:
    """Weights that are summed over the tokens, along one axis of x: what is read.

    Where the grid grows, the weights that give for interpolated tokens exactly what the old ones gave for the tokens
    (the pseudo-inverse; Beyer et al., "FlexiViT", arXiv 2212.08013, section 3.4, for patch embeddings); where it
    shrinks, those that read the tokens interpolated to the old grid. The sum over the tokens stays what it was, so a
    constant gets the answer that it got.
    """
    matrices = [torch.linalg.pinv(_cubic(a, b)) if b >= a else _cubic(b, a) for a, b in zip(old, new, strict=True)]
    return _along(x, dim, [m.t() for m in matrices], old, prefix)


def embed(x: Tensor, dim: int, old: Grid, new: Grid, *, prefix: int = 0) -> Tensor:
    """Vectors whose entries lie on the tokens, along one axis of x, with the dot products that they had.

    By the isometry nearest to interpolation; where the grid shrinks dot products of smooth vectors stay.
    """
    factors = [torch.linalg.svd(_cubic(a, b), full_matrices=False) for a, b in zip(old, new, strict=True)]
    return _along(x, dim, [u @ v for u, _, v in factors], old, prefix)


def recentre(weight: Tensor, old: Grid, new: Grid, *, prefix: int = 0) -> Tensor:
    """A matrix (…, n, n) from tokens to tokens: each row a filter around its own token, stretched with the grid.

    The filter of a new row is interpolated linearly, in the offset and between the rows of the nearest tokens, from
    what those rows have at that offset inside the image; antialiased where the grid shrinks. Then the least change is
    made that lets interpolated tokens get the interpolated answer (exactly where the grid grows), so rows keep their
    sums. What tokens read from class tokens is interpolated, what class tokens read from tokens is distributed.
    """
    rows, columns = weight.dim() - 2, weight.dim() - 1
    before = weight[..., prefix:, prefix:].double()
    after = before.unflatten(columns, old).unflatten(rows, old)
    for axis, size in enumerate(new):
        pair = (rows + axis, rows + len(old) + axis)
        after = _offsets(after.movedim(pair, (0, 1)), size).movedim((0, 1), pair)
    after = after.flatten(rows, rows + len(old) - 1).flatten(columns)
    answers = _along(after, columns, [_cubic(a, b).t() for a, b in zip(old, new, strict=True)], new, 0)
    missing = interpolate(before, rows, old, new) - answers
    grid = (after + distribute(missing, columns, old, new)).to(weight.dtype)
    if not prefix:
        return grid
    left = interpolate(weight[..., :prefix], rows, old, new, prefix=prefix)
    top = distribute(weight[..., :prefix, :], columns, old, new, prefix=prefix)[..., prefix:]
    return torch.cat([left, torch.cat([top, grid], dim=rows)], dim=columns)


def average(weight: Tensor, old: Grid, new: Grid, *, prefix: int = 0) -> Tensor:
    """Weights (n, n) of means over the tokens, not negative: interpolated linearly on both axes, rows sum to 1 again.

    Unlike `recentre` for weights without a neighbourhood, such as random ones.
    """
    matrices = [_linear(a, b) for a, b in zip(old, new, strict=True)]
    stretched = _along(_along(weight.double(), 0, matrices, old, prefix), 1, matrices, old, prefix)
    return (stretched / stretched.sum(dim=1, keepdim=True)).to(weight.dtype)


# --- sub-images -------------------------------------------------------------------------------------------------------


def sub_images(old: Grid, new: Grid, *, prefix: int = 0) -> Tensor:
    """Tokens of the new grid (parts, n) that form each sub-image of the old size, both in row-major order.

    Raises `UsageError` where the new grid is not a multiple of the old one, or there are class tokens.
    """
    if prefix:
        raise UsageError("expansion cuts the image into sub-images, and a class token belongs to none: use 'smooth'")
    if any(b % a for a, b in zip(old, new, strict=True)):
        raise UsageError(
            f"expansion needs a grid that is a multiple of {_text(old)} tokens, got {_text(new)}: use 'smooth'"
        )
    index = torch.arange(math.prod(new)).view([s for a, b in zip(old, new, strict=True) for s in (b // a, a)])
    axes = range(index.dim())
    return index.permute([*axes[::2], *axes[1::2]]).reshape(-1, math.prod(old))


def copies(weight: Tensor, index: Tensor) -> Tensor:
    """Rows (…, m, n) that read n tokens → (…, parts, m, parts · n): each copy reads the tokens of its own sub-image."""
    rows = weight.new_zeros(*weight.shape[:-2], len(index), weight.shape[-2], index.numel())
    for part, tokens in enumerate(index):
        rows[..., part, :, tokens] = weight
    return rows


def placed(x: Tensor, index: Tensor) -> Tensor:
    """What stands for the tokens of each sub-image in turn, (parts · n, …), in the order of the whole grid."""
    return x[index.flatten().argsort()]


# --- how --------------------------------------------------------------------------------------------------------------


def _along(x: Tensor, dim: int, matrices: Sequence[Tensor], old: Grid, prefix: int) -> Tensor:
    """One matrix (new, old) for each axis of the grid that lies on axis `dim` of x behind the prefix."""
    moved = x.movedim(dim, 0)
    grid = moved[prefix:].double().unflatten(0, old)
    for axis, matrix in enumerate(matrices):
        grid = torch.tensordot(matrix.to(x.device), grid, dims=([1], [axis])).movedim(0, axis)
    flat = torch.cat([moved[:prefix], grid.flatten(0, len(old) - 1).to(x.dtype)])
    return flat.movedim(0, dim).contiguous()


def _places(old: int, new: int) -> Tensor:
    """Where the tokens of an axis of the new grid lie on the old one."""
    return (torch.arange(new, dtype=torch.float64) + 0.5) * (old / new) - 0.5


def _triangle(x: Tensor) -> Tensor:
    return (1 - x.abs()).clamp(min=0)


def _linear(old: int, new: int) -> Tensor:
    """Linear interpolation along an axis, (new, old), antialiased; rows sum to 1."""
    weights = _triangle((torch.arange(old) - _places(old, new)[:, None]) / max(1, old / new))
    return weights / weights.sum(dim=1, keepdim=True)


def _cubic(old: int, new: int) -> Tensor:
    """Bicubic interpolation (Keys, a = -1/2) along an axis, (new, old), antialiased; rows sum to 1."""
    x = ((torch.arange(old) - _places(old, new)[:, None]) / max(1, old / new)).abs()
    near, far = (1.5 * x - 2.5) * x**2 + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2
    weights = torch.where(x < 1, near, torch.where(x < 2, far, 0))
    return weights / weights.sum(dim=1, keepdim=True)


def _offsets(weight: Tensor, new: int) -> Tensor:
    """(old, old, …) → (new, new, …): (p, q) is old/new times the mean of the (i, j) with i near p, j - i near q - p."""
    old = weight.shape[0]
    scale = old / new
    width = max(1.0, scale)
    index = torch.arange(old, dtype=torch.float64)
    rows = []
    for p, place in enumerate(_places(old, new)):
        near = _triangle((index - place) / width)
        kept = near.nonzero()[:, 0]
        offset = (torch.arange(new) - p) * scale
        kernel = _triangle((index - index[kept, None] - offset[:, None, None]) / width) * near[kept, None]
        kernel = scale * kernel / kernel.sum(dim=(1, 2), keepdim=True)
        rows.append(torch.tensordot(kernel.to(weight.device), weight[kept.to(weight.device)], dims=2))
    return torch.stack(rows)


def _text(grid: Grid) -> str:
    return "×".join(map(str, grid))
