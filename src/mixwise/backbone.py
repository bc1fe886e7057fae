"""The skeleton of every model: stem → stages of blocks → norm (→ activation) → pool (→ norm) → head, in one sitting.

A block is a short list of residual branches, each mixing either tokens or channels:

    x = res_scale · x + drop_path(scale · f(norm(x), grid))
"""

from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixwise.assemble import (
    build_block,
    build_downsample,
    build_head,
    build_positions,
    build_stem,
    check_size,
    drop_path_rates,
    size_step,
    stage_grids,
)
from mixwise.blocks import Branch, Stage
from mixwise.config import BackboneConfig, Size
from mixwise.layers import Grid, activation, image_view, token_view
from mixwise.mixers import Mixer
from mixwise.mixers.base import ResizeMethod
from mixwise.model import Model, image_size, refuse_size, register_architecture
from mixwise.norms import norm
from mixwise.positions import LearnedPositions
from mixwise.stems import Stem


class Features(NamedTuple):
    """What the backbone knows about a batch before it is pooled."""

    tokens: Tensor
    """(b, n, c) after the final norm, prefix tokens included; before it in models that pool first."""
    grid: Grid
    """(h, w) of the tokens without the prefix."""


@register_architecture(BackboneConfig)
class Backbone(Model):
    """A vision backbone built from its config.

    Shapes: images (b, channels, h, w) → logits (b, classes); with classes=0 → pooled features (b, c).
    Raises `UsageError` for images of a size that its weights cannot take, with the sizes that work.

    >>> model = mixwise.create_model("pool_nano", image=(32, 48), classes=5)
    >>> model(torch.randn(2, 3, 32, 48)).shape
    torch.Size([2, 5])
    """

    config: BackboneConfig

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.config = config
        first, last = config.stages[0], config.stages[-1]
        self.prefix = config.prefix
        self.stem = build_stem(config)
        grids = stage_grids(config)
        self.prefix_tokens = nn.Parameter(torch.zeros(1, self.prefix, first.dim)) if self.prefix else None
        self.position = build_positions(config, grids[0])
        rates = drop_path_rates(config)
        stages, dim = [], None
        for stage, grid in zip(config.stages, grids, strict=True):
            downsample: Stem | None = None if dim is None else build_downsample(stage, dim, config)
            position = LearnedPositions(stage.dim, grid, std=0) if stage.positions else None
            blocks = [build_block(stage, config, grid, rates.pop(0)) for _ in range(stage.depth)]
            out = norm(config.norm, stage.dim, eps=config.norm_eps) if stage.pyramid_norm else None
            stages.append(Stage(downsample, position, blocks, out))
            dim = stage.dim
        self.stages = nn.ModuleList(stages)
        self.norm = norm(config.final_norm or config.norm, last.dim, eps=config.final_eps or config.norm_eps)
        self.act = activation(config.final_act)
        self.pooled_norm = norm(config.pooled_norm, last.dim)
        self.head = build_head(config)
        if self.prefix_tokens is not None:
            nn.init.trunc_normal_(self.prefix_tokens, std=0.02)
            nn.init.normal_(self.prefix_tokens[:, :1], std=config.class_token_std)
        if config.form == "reparameterized":
            with torch.no_grad():
                self.fold()

    @property
    def fixed_size(self) -> bool:
        """Whether the weights belong to one image size."""
        learned = [m for m in self.modules() if isinstance(m, LearnedPositions)]
        mixers = [m for m in self.modules() if isinstance(m, Mixer)]
        return any(not m.stretch for m in learned) or any(m.fixed_grid for m in mixers)

    def _check(self, images: Tensor) -> None:
        config, size = self.config, image_size(self.config, images)
        if size == config.image:
            return
        if self.fixed_size:
            refuse_size(config, size)
        check_size(config, size, self._stems())
        self.stem.grid(size)

    def size_step(self) -> Size:
        """(rows, columns) that an image size must be a multiple of; (1, 1): any size works."""
        return size_step(self._stems())

    def _stems(self) -> list[Stem | None]:
        """The stem, and what stands in front of each further stage."""
        return [self.stem, *(cast(Stage, stage).downsample for stage in self.stages[1:])]

    def tokens(self, images: Tensor) -> tuple[Tensor, Grid]:
        """Images (b, channels, h, w) → tokens (b, n, c) with prefix and positions, and the grid."""
        self._check(images)
        x = self.stem(images.contiguous(memory_format=torch.channels_last))
        grid: Grid = (x.shape[2], x.shape[3])
        x = token_view(x)
        if self.prefix_tokens is not None:
            x = torch.cat([self.prefix_tokens.to(x.dtype).expand(x.shape[0], -1, -1), x], dim=1)
        x = x if self.position is None else self.position(x, grid)
        return F.dropout(x, self.config.position_dropout, self.training), grid

    def features(self, images: Tensor) -> Features:
        """Images (b, channels, h, w) → tokens (b, n, c) of the last stage and their grid.

        They are normalised, except in models that pool first (`pool_first`).
        """
        x, grid = self.tokens(images)
        for stage in self.stages:
            x, grid = stage(x, grid)
        return Features(x if self.config.pool_first else self.act(self.norm(x)), grid)

    def pyramid(self, images: Tensor) -> list[Tensor]:
        """Images → one map (b, c, h, w) per stage, finest first, as dense tasks want them.

        No final norm; stages with `pyramid_norm` normalise their map.
        """
        x, grid = self.tokens(images)
        maps = []
        for stage in self.stages:
            x, grid = stage(x, grid)
            y = x[:, self.prefix :]
            extra = cast(Stage, stage).pyramid_norm
            maps.append(image_view(y if extra is None else extra(y), grid))
        return maps

    def pool(self, features: Features) -> Tensor:
        """Tokens → pooled features (b, c), or (b, prefix, c) for a model with two read-outs; what the head takes."""
        x = features.tokens
        if self.config.pool == "mean":
            x = x[:, self.prefix :].mean(dim=1, keepdim=True)
        else:
            x = x[:, : 1 if self.config.pool == "token" else self.prefix]
        x = self.pooled_norm(self.act(self.norm(x)) if self.config.pool_first else x)
        return x if self.config.pool == "prefix" else x[:, 0]

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.pool(self.features(images)))

    def refit(self, image: Size, method: ResizeMethod) -> BackboneConfig:
        """Every mixer by its own rule; learned positions interpolated, fixed ones measured on the grid they had."""
        config = self.config
        check_size(config, image, self._stems())
        old, new = self.stem.grid(config.image), self.stem.grid(image)
        changes: dict[str, Any] = {"image": image}
        if isinstance(self.position, LearnedPositions):
            self.position.resize(new)
        elif self.position is not None:
            origin = config.position_grid or old
            changes["position_grid"] = None if origin == new else origin
        stages = []
        for stage, module in zip(config.stages, cast(list[Stage], self.stages), strict=True):
            if module.downsample is not None:
                old, new = module.downsample.grid(old), module.downsample.grid(new)
            if module.position is not None:
                module.position.resize(new)
            stages.append(module.refit(stage, old, new, prefix=self.prefix, method=method))
        changes["stages"] = stages
        return type(config).parse(config.model_dump() | changes)

    def fold(self) -> None:
        """Batch norms and affine maps into the layers beside them, layer scales, activations' factors, mixers.

        The final norm's factor and summand go into the head, so `features` then lacks them.
        """
        self.stem.fold()
        for stage in self.stages:
            if stage.downsample is not None:
                cast(Stem, stage.downsample).fold()
        for module in list(self.modules()):
            if isinstance(module, Branch):
                module.fold()
        if self.config.classes:
            scale, shift, self.pooled_norm = self.pooled_norm.split()
            self.head.fold_input(scale, shift)
            if self.config.final_act == "identity" and self.config.pooled_norm == "none":
                scale, shift, self.norm = self.norm.split()
                self.head.fold_input(scale, shift)
