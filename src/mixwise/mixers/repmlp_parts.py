"""What the RepMLPNet block is made of: windows, share-sets, global and local perceptron."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixwise.errors import UsageError
from mixwise.layers import Grid, image_view, token_view
from mixwise.mixers.base import ResizeMethod
from mixwise.norms import TokenBatchNorm, scale_shift


def windows(x: Tensor, grid: Grid, part: Grid) -> Tensor:
    """Tokens (b, n, c) as the windows of size `part` of the grid, each row by row: (b · parts, h·w, c)."""
    if len(grid) != 2 or grid[0] % part[0] or grid[1] % part[1]:
        raise UsageError(f"repmlp: windows of {part[0]}×{part[1]} tokens do not tile the grid {grid}")
    x = x.unflatten(1, (grid[0] // part[0], part[0], grid[1] // part[1], part[1]))
    return x.transpose(2, 3).reshape(-1, part[0] * part[1], x.shape[-1])


def unwindows(x: Tensor, grid: Grid, part: Grid, scrambled: int = 0) -> Tensor:
    """The inverse of `windows`, (b · parts, h·w, c) → (b, n, c).

    Args:
        scrambled: S > 0 reads the results back as the authors' code does: written in the order (b, parts, c / S, S),
            read as (b, c / S, parts, S). The same with one window or S = c.
    """
    across = (grid[0] // part[0], grid[1] // part[1])
    if scrambled:
        rows = x.unflatten(0, (-1, across[0] * across[1])).unflatten(3, (-1, scrambled)).transpose(2, 3)
        rows = rows.flatten(1, 2).unflatten(1, (rows.shape[2], rows.shape[1]))
        x = rows.permute(0, 2, 3, 1, 4).reshape(x.shape)
    x = x.unflatten(1, (part[0], part[1])).unflatten(0, (-1, *across))
    return x.transpose(2, 3).flatten(1, 4)


def new_window(part: Grid, old: Grid, new: Grid, method: ResizeMethod) -> Grid:
    """The windows for another grid: the old ones where they tile it ("auto", "expand"), else as many as there were."""
    tiles = all(side % p == 0 for side, p in zip(new, part, strict=True))
    if method == "expand" and not tiles:
        raise UsageError(f"repmlp: windows of {part[0]}×{part[1]} tokens do not tile the grid {new}: use 'smooth'")
    if method != "smooth" and tiles:
        return part
    counts = [side // p for side, p in zip(old, part, strict=True)]
    if any(side % count for side, count in zip(new, counts, strict=True)):
        raise UsageError(f"repmlp: the grid {new} cannot be cut into {counts[0]}×{counts[1]} windows, as {old} was")
    return tuple(side // count for side, count in zip(new, counts, strict=True))


def shared_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Channel k of x (b, hw, c) times matrix k mod S of weight (S, hw, hw), plus bias (S, hw): one product per set."""
    sets = weight.shape[0]
    rows = x.unflatten(2, (-1, sets)).permute(3, 1, 0, 2)
    flat = rows.reshape(sets, x.shape[1], -1)
    y = torch.bmm(weight, flat) if bias is None else torch.baddbmm(bias[:, :, None], weight, flat)
    return y.view(rows.shape).permute(2, 1, 3, 0).reshape(x.shape)


def conv_matrix(kernel: Tensor, part: Grid) -> Tensor:
    """Convolutions (…, k, k) inside a window with zeros around it, as matrices (…, h·w, h·w) over its positions."""
    h, w, k = part[0], part[1], kernel.shape[-1]
    matrix = kernel.new_zeros(*kernel.shape[:-2], h, w, h, w)
    for row in range(k):
        for column in range(k):
            down, right = row - k // 2, column - k // 2
            if abs(down) >= h or abs(right) >= w:
                continue
            y = torch.arange(max(0, -down), min(h, h - down), device=kernel.device)[:, None]
            x = torch.arange(max(0, -right), min(w, w - right), device=kernel.device)
            matrix[..., y, x, y + down, x + right] = kernel[..., row, column, None, None]
    return matrix.flatten(-2).flatten(-3, -2)


class GlobalPerceptron(nn.Module):
    """A gate per channel from the mean over all tokens: (b, n, c) → (b, 1, c) in (0, 1)."""

    def __init__(self, dim: int, reduce: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, max(1, dim // reduce))
        self.fc2 = nn.Linear(max(1, dim // reduce), dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.relu(self.fc1(x.mean(dim=1, keepdim=True)))).sigmoid()


class SetNorm(TokenBatchNorm):
    """Batch norm with one mean and one variance per share-set: channel k belongs to set k mod S."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.reshape(x.shape[0], -1, self.num_features)).reshape(x.shape)


class LocalPerceptron(nn.Module):
    """A k × k convolution per channel inside each window, its kernel shared like the matrices, and its batch norm."""

    def __init__(self, sets: int, kernel: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(sets, sets, kernel, padding=kernel // 2, groups=sets, bias=False)
        self.norm = SetNorm(sets)

    def forward(self, x: Tensor, part: Grid) -> Tensor:
        kernel = self.conv.weight.repeat(x.shape[2] // self.conv.groups, 1, 1, 1)
        y = F.conv2d(image_view(x, part), kernel, padding=self.conv.padding, groups=x.shape[2])
        return self.norm(token_view(y))

    def matrix_shift(self, part: Grid) -> tuple[Tensor, Tensor]:
        """What it does in evaluation: matrices (S, hw, hw) and a shift per set, float64."""
        scale, shift = scale_shift(self.norm)
        return conv_matrix(self.conv.weight[:, 0].double() * scale[:, None, None], part), shift
