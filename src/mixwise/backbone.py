"""The skeleton of every model: stem → stages of blocks → norm (→ activation) → pool (→ norm) → head, in one sitting.

A block is a short list of residual branches, each mixing either tokens or channels:

    x = x + drop_path(scale · f(norm(x), grid))
"""

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mixwise.config import BackboneConfig, BranchConfig, Size, StageConfig
from mixwise.errors import UsageError, unknown
from mixwise.layers import CHANNEL_MIXERS, ChannelMixer, DropPath, Grid, activation, image_view, norm, token_view
from mixwise.mixers import MIXERS, Mixer, keyword_options
from mixwise.stems import STEMS, ConvNormAct, PatchStem, SinCosPositions


class Features(NamedTuple):
    """What the backbone knows about a batch before it is pooled."""

    tokens: Tensor
    """(b, n, c) after the final norm, prefix tokens included."""
    grid: Grid
    """(h, w) of the tokens without the prefix."""


def build_mixer(config: BranchConfig, dim: int, tokens: int, grid: Grid) -> Mixer | ChannelMixer:
    """The token or channel mixer that a branch names, with its options checked against what it takes."""
    cls: Any = MIXERS.get(config.mixer) or CHANNEL_MIXERS.get(config.mixer)
    if cls is None:
        raise unknown("mixer", config.mixer, [*MIXERS, *CHANNEL_MIXERS])
    allowed = keyword_options(cls)
    for option in config.options:
        if option not in allowed:
            raise unknown("option", option, allowed, f"mixer {config.mixer!r}")
    try:
        if config.mixer in MIXERS:
            return cls(dim, tokens, grid, **config.options)
        return cls(dim, **config.options)
    except TypeError as error:
        raise UsageError(f"mixer {config.mixer!r} cannot take the options {config.options}: {error}") from None


class Branch(nn.Module):
    """x + drop_path(scale · mixer(norm(x), grid)); x (b, n, c). One class for token and for channel mixing."""

    def __init__(
        self, norm: nn.Module, mixer: nn.Module, *, dim: int, layer_scale: float | None = None, drop_path: float = 0.0
    ) -> None:
        super().__init__()
        self.norm = norm
        self.mixer = mixer
        self.scale = None if layer_scale is None else nn.Parameter(torch.full((dim,), layer_scale))
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        y = self.mixer(self.norm(x), grid)
        if self.scale is not None:
            y = y * self.scale
        return x + self.drop_path(y)


class Block(nn.ModuleList):
    """Branches one after the other."""

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        for branch in self:
            x = branch(x, grid)
        return x


class Stage(nn.Module):
    """Downsampling (none in the first stage), then blocks of one width on one grid."""

    def __init__(self, downsample: nn.Module | None, blocks: list[Block]) -> None:
        super().__init__()
        self.downsample = downsample
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor, grid: Grid) -> tuple[Tensor, Grid]:
        if self.downsample is not None:
            image = self.downsample(image_view(x, grid))
            x, grid = token_view(image), (image.shape[2], image.shape[3])
        for block in self.blocks:
            x = block(x, grid)
        return x, grid


class Backbone(nn.Module):
    """A vision backbone built from its config.

    Shapes: images (b, channels, h, w) → logits (b, classes); with classes=0 → pooled features (b, c).
    Raises `UsageError` for images of a size that its weights cannot take, with the sizes that work.

    >>> model = mixwise.create_model("pool_nano", image=(32, 48), classes=5)
    >>> model(torch.randn(2, 3, 32, 48)).shape
    torch.Size([2, 5])
    """

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.config = config
        first, last = config.stages[0], config.stages[-1]
        self.prefix = int(config.class_token)
        stem_norm = config.norm if config.stem == "conv" else "none"
        self.stem = STEMS[config.stem](config.channels, first.dim, config.patch, norm_name=stem_norm)
        grid: Grid = STEMS[config.stem].grid(config.image, config.patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, first.dim)) if config.class_token else None
        tokens = grid[0] * grid[1] + self.prefix
        self.position = nn.Parameter(torch.zeros(1, tokens, first.dim)) if config.positions == "learned" else None
        self.sincos = SinCosPositions(first.dim) if config.positions == "sincos" else None
        rates = drop_path_rates(config)
        stages, dim = [], None
        for stage in config.stages:
            downsample = None
            if dim is not None:
                grid, downsample = _downsample(stage, dim, grid, config)
            blocks = [_block(stage, config, grid, self.prefix, rates.pop(0)) for _ in range(stage.depth)]
            stages.append(Stage(downsample, blocks))
            dim = stage.dim
        self.stages = nn.ModuleList(stages)
        self.norm = norm(config.norm, last.dim)
        self.act = activation(config.final_act)
        self.pooled_norm = norm(config.pooled_norm, last.dim)
        self.head = nn.Linear(last.dim, config.classes) if config.classes else nn.Identity()
        self._init()
        if config.form == "reparameterized":
            self._fold()

    def _init(self) -> None:
        """Positions, class token and head start small; every other module has initialised itself."""
        for parameter in (self.position, self.class_token):
            if parameter is not None:
                nn.init.trunc_normal_(parameter, std=0.02)
        if isinstance(self.head, nn.Linear):
            nn.init.trunc_normal_(self.head.weight, std=0.02)
            nn.init.zeros_(self.head.bias)

    @property
    def fixed_size(self) -> bool:
        """Whether the weights belong to one image size."""
        mixers = [m for m in self.modules() if isinstance(m, Mixer)]
        return self.position is not None or any(m.fixed_grid for m in mixers)

    def _check(self, images: Tensor) -> None:
        config = self.config
        if images.dim() != 4 or images.shape[1] != config.channels:
            raise UsageError(
                f"{config.name} takes images (b, {config.channels}, h, w), got a tensor of shape {tuple(images.shape)}"
            )
        size = (int(images.shape[2]), int(images.shape[3]))
        if size == config.image:
            return
        if self.fixed_size:
            h, w = config.image
            raise UsageError(
                f"{config.name} has weights for {h}×{w} pixels and was given {size[0]}×{size[1]}; the size that works "
                f"is {h}×{w} (create the model with image=({size[0]}, {size[1]}) to train it at the other)"
            )
        step = self.size_step()
        if any(s % m or s == 0 for s, m in zip(size, step, strict=True)):
            low = tuple(max(1, s // m) * m for s, m in zip(size, step, strict=True))
            high = tuple(a + m for a, m in zip(low, step, strict=True))
            raise UsageError(
                f"{config.name} was given {size[0]}×{size[1]} pixels; heights must be multiples of {step[0]} and "
                f"widths of {step[1]}: the nearest that work are {low[0]}×{low[1]} and {high[0]}×{high[1]}"
            )

    def size_step(self) -> Size:
        """(rows, columns) that an image size must be a multiple of; (1, 1): any size works."""
        config = self.config
        step = config.patch if config.stem == "patch" else (1, 1)
        if any(s.downsample == "patch" for s in config.stages[1:]):
            step = config.patch
            for stage in config.stages[1:]:
                step = (step[0] * stage.stride[0], step[1] * stage.stride[1])
        return step

    def tokens(self, images: Tensor) -> tuple[Tensor, Grid]:
        """Images (b, channels, h, w) → tokens (b, n, c) with prefix and positions, and the grid."""
        self._check(images)
        x = self.stem(images.contiguous(memory_format=torch.channels_last))
        grid: Grid = (x.shape[2], x.shape[3])
        x = token_view(x)
        if self.sincos is not None:
            x = self.sincos(x, grid)
        if self.class_token is not None:
            x = torch.cat([self.class_token.to(x.dtype).expand(x.shape[0], -1, -1), x], dim=1)
        if self.position is not None:
            x = x + self.position
        return x, grid

    def features(self, images: Tensor) -> Features:
        """Images (b, channels, h, w) → normalised tokens (b, n, c) of the last stage and their grid."""
        x, grid = self.tokens(images)
        for stage in self.stages:
            x, grid = stage(x, grid)
        return Features(self.norm(x), grid)

    def pyramid(self, images: Tensor) -> list[Tensor]:
        """Images → one map (b, c, h, w) per stage, finest first, as dense tasks want them; no final norm."""
        x, grid = self.tokens(images)
        maps = []
        for stage in self.stages:
            x, grid = stage(x, grid)
            maps.append(image_view(x[:, self.prefix :], grid))
        return maps

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.act(self.features(images).tokens)
        pooled = tokens[:, :1] if self.config.pool == "token" else tokens[:, self.prefix :].mean(dim=1, keepdim=True)
        return self.head(self.pooled_norm(pooled).squeeze(1))

    def reparameterize(self) -> "Backbone":
        """A new, equal, cheaper model for inference (evaluation mode). The original is left as it is.

        Equality holds for the statistics the batch norms have now, so the result is not meant to be trained.
        """
        model = copy.deepcopy(self).eval()
        model._fold()
        model.config = self.config.model_copy(update={"form": "reparameterized"})
        return model

    def _fold(self) -> None:
        with torch.no_grad():
            for module in self.modules():
                if isinstance(module, Branch) and isinstance(module.mixer, Mixer):
                    module.mixer = module.mixer.reparameterize()


def drop_path_rates(config: BackboneConfig) -> list[float]:
    """The drop-path rate of each block: rising linearly from 0 to the maximum, or constant."""
    depth = sum(stage.depth for stage in config.stages)
    if config.drop_path_schedule == "constant":
        return [config.drop_path] * depth
    return [config.drop_path * i / max(1, depth - 1) for i in range(depth)]


def _downsample(stage: StageConfig, dim: int, grid: Grid, config: BackboneConfig) -> tuple[Grid, nn.Module]:
    size = (grid[0], grid[1])
    if stage.downsample == "patch":
        return PatchStem.grid(size, stage.stride), PatchStem(dim, stage.dim, stage.stride)
    layer = ConvNormAct(dim, stage.dim, stage.stride, norm_name=config.norm, act="identity", shift=False)
    return STEMS["conv"].grid(size, stage.stride), layer


def _block(stage: StageConfig, config: BackboneConfig, grid: Grid, prefix: int, rate: float) -> Block:
    branches = []
    for branch in stage.branches:
        mixer = build_mixer(branch, stage.dim, grid[0] * grid[1] + prefix, grid)
        if mixer.spatial and prefix:
            raise UsageError(f"{config.name}: mixer {branch.mixer!r} works on a 2-D grid and cannot have a class token")
        bias = branch.norm_bias
        if bias is None:
            bias = not (isinstance(mixer, Mixer) and mixer.shift_blind)
        scale = not (isinstance(mixer, Mixer) and mixer.scale_blind)
        pre = norm(branch.norm or config.norm, stage.dim, scale=scale, bias=bias)
        branches.append(Branch(pre, mixer, dim=stage.dim, layer_scale=config.layer_scale, drop_path=rate))
    return Block(branches)
