"""Residual branches, blocks of branches, stages of blocks."""

from typing import Any, cast

import torch
from torch import Tensor, nn

from mixwise.config import Size, StageConfig
from mixwise.folding import absorb_after, absorb_before
from mixwise.layers import DropPath, Grid, Mixing, image_view, token_view
from mixwise.mixers.base import Mixer, ResizeMethod
from mixwise.norms import NoNorm, Norm
from mixwise.positions import LearnedPositions
from mixwise.stems import Stem


class Branch(nn.Module):
    """res_scale · x + drop_path(scale · mixer(norm(x), grid)); x (b, n, c). One class for token and channel mixing."""

    def __init__(
        self,
        norm: Norm,
        mixer: Mixing,
        *,
        dim: int,
        layer_scale: float | None = None,
        res_scale: float | None = None,
        drop_path: DropPath | None = None,
    ) -> None:
        super().__init__()
        self.norm = norm
        self.mixer = mixer
        self.scale = None if layer_scale is None else nn.Parameter(torch.full((dim,), layer_scale))
        self.res_scale = None if res_scale is None else nn.Parameter(torch.full((dim,), res_scale))
        self.drop_path = drop_path or DropPath(0.0)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        y = self.mixer(self.norm(x), grid)
        if self.scale is not None:
            y = y * self.scale
        return (x if self.res_scale is None else x * self.res_scale) + self.drop_path(y)

    def fold(self) -> None:
        """Move what the norm and the layer scale multiply and add into the layers beside them, in place.

        Where the mixer begins with linear layers, the norm keeps only its statistics, or vanishes where these are fixed
        (batch, affine). Where the mixer commutes with factors, its norm's factor joins the layer scale.
        """
        mixer = self.mixer = self.mixer.reparameterize()
        scale, shift, rest = self.norm.split()
        if mixer.readers and scale is not None:
            for name in mixer.readers:
                absorb_before(mixer.get_submodule(name), scale, shift)  # type: ignore[arg-type]
            self.norm = rest
        elif mixer.commutes and scale is not None and (self.scale is not None or isinstance(rest, NoNorm)):
            dtype = next(iter(self.parameters())).dtype
            after = None if self.scale is None else self.scale.double()
            self.mixer, factor = mixer.fold_around(scale, shift, after)
            self.scale = None if factor is None else nn.Parameter(factor.to(dtype))
            self.norm = rest
        if self.scale is not None and mixer.writers:
            for name in mixer.writers:
                absorb_after(mixer.get_submodule(name), self.scale, None)  # type: ignore[arg-type]
            self.scale = None


class Block(nn.ModuleList):
    """Branches one after the other."""

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        for branch in self:
            x = branch(x, grid)
        return x


class Stage(nn.Module):
    """Downsampling (none in the first stage), positions where asked for, then blocks of one width on one grid.

    `pyramid_norm` is for the stage's map in a pyramid; what the next stage reads does not pass it.
    """

    def __init__(
        self,
        downsample: Stem | None,
        position: LearnedPositions | None,
        blocks: list[Block],
        pyramid_norm: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.downsample = downsample
        self.position = position
        self.blocks = nn.ModuleList(blocks)
        self.pyramid_norm = pyramid_norm

    def forward(self, x: Tensor, grid: Grid) -> tuple[Tensor, Grid]:
        if self.downsample is not None:
            image = self.downsample(image_view(x, grid))
            x, grid = token_view(image), (image.shape[2], image.shape[3])
        if self.position is not None:
            x = self.position(x, grid)
        for block in self.blocks:
            x = block(x, grid)
        return x, grid

    def refit(self, config: StageConfig, old: Size, new: Size, *, prefix: int, method: ResizeMethod) -> dict[str, Any]:
        """Carry every mixer to another grid in place; the stage's config with the options that it now needs."""
        data = config.model_dump()
        for block in self.blocks if old != new else ():
            for branch, settings in zip(cast(Block, block), data["branches"], strict=True):
                if isinstance(branch.mixer, Mixer):
                    changes = branch.mixer.resize(old, new, prefix=prefix, method=method)
                    settings["options"] = settings["options"] | changes
        return data
