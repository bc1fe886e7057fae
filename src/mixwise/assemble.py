"""From a config to the modules of a backbone, every option checked against what it is given to."""

import itertools
from collections.abc import Sequence
from typing import Any

from torch import nn

import mixwise.t2t  # noqa: F401 (registers its stem)
from mixwise.blocks import Block, Branch
from mixwise.config import BackboneConfig, BranchConfig, Size, StageConfig
from mixwise.device import shapes_only
from mixwise.errors import UsageError, unknown
from mixwise.heads import HEADS
from mixwise.layers import CHANNEL_MIXERS, ChannelMixer, DropPath, Grid
from mixwise.mixers import MIXERS, Mixer, keyword_options
from mixwise.norms import norm
from mixwise.positions import LearnedPositions, SinCosPositions, SinusoidPositions
from mixwise.stems import STEMS, ConvNormAct, PatchStem, Stem


def _check_options(cls: Any, options: dict[str, Any], where: str) -> None:
    """Raise for an option that a class does not take."""
    allowed = [name for name in keyword_options(cls) if name != "norm_name"]
    for option in options:
        if option not in allowed:
            raise unknown("option", option, allowed, where)


def build_mixer(config: BranchConfig, dim: int, tokens: int, grid: Grid) -> Mixer | ChannelMixer:
    """The token or channel mixer that a branch names, with its options checked against what it takes."""
    cls: Any = MIXERS.get(config.mixer) or CHANNEL_MIXERS.get(config.mixer)
    if cls is None:
        raise unknown("mixer", config.mixer, [*MIXERS, *CHANNEL_MIXERS])
    _check_options(cls, config.options, f"mixer {config.mixer!r}")
    try:
        if config.mixer in MIXERS:
            return cls(dim, tokens, grid, **config.options)
        return cls(dim, **config.options)
    except TypeError as error:
        raise UsageError(f"mixer {config.mixer!r} cannot take the options {config.options}: {error}") from None


def start_weights(mixer: Mixer | ChannelMixer, init: str) -> None:
    """Draw the weights of a mixer as a config's `init` says."""
    if init == "own":
        return
    for matrix in mixer.matrices():
        nn.init.trunc_normal_(matrix, std=0.02) if init == "normal" else nn.init.xavier_uniform_(matrix)
    small = init == "flax" and not isinstance(mixer, Mixer)
    for layer in mixer.modules():
        if isinstance(layer, nn.Linear) and layer.bias is not None:
            nn.init.normal_(layer.bias, std=1e-6 if small else 0.0)


def start_stem(stem: Stem, init: str) -> None:
    """Draw the convolutions of a stem or a downsampling as a config's `stem_init` says."""
    for layer in stem.modules():
        if isinstance(layer, nn.Conv2d) and init != "torch":
            lecun = layer.weight[0].numel() ** -0.5 / 0.87962566  # what cutting at two leaves of the deviation
            std, cut = (lecun, 2 * lecun) if init == "lecun" else (0.02, 2.0)
            nn.init.trunc_normal_(layer.weight, std=std, a=-cut, b=cut)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def drop_path_rates(config: BackboneConfig) -> list[float]:
    """The drop-path rate of each block: rising linearly from 0 to the maximum, or constant."""
    depth = sum(stage.depth for stage in config.stages)
    if config.drop_path_schedule == "constant":
        return [config.drop_path] * depth
    return [config.drop_path * i / max(1, depth - 1) for i in range(depth)]


def build_stem(config: BackboneConfig) -> Stem:
    """The stem that a config names."""
    cls = STEMS.get(config.stem)
    if cls is None:
        raise unknown("stem", config.stem, STEMS)
    _check_options(cls, config.stem_options, f"stem {config.stem!r}")
    stem = cls(config.channels, config.stages[0].dim, config.patch, norm_name=config.norm, **config.stem_options)
    start_stem(stem, config.stem_init)
    return stem


def build_head(config: BackboneConfig) -> Any:
    """The head that a config names; identity for no classes."""
    cls = HEADS.get(config.head)
    if cls is None:
        raise unknown("head", config.head, HEADS)
    _check_options(cls, config.head_options, f"head {config.head!r}")
    if not config.classes:
        return nn.Identity()
    return cls(config.stages[-1].dim, config.classes, **config.head_options)


def build_positions(config: BackboneConfig, grid: Size) -> nn.Module | None:
    """What is added to the tokens of the stem, if anything."""
    dim, prefix = config.stages[0].dim, config.prefix
    if config.positions == "learned":
        own = prefix if config.prefix_positions else 0
        stored, stretch = config.position_grid or grid, config.position_grid is not None
        return LearnedPositions(dim, stored, prefix=own, skip=prefix - own, stretch=stretch)
    if config.positions == "sincos":
        return SinCosPositions(dim, prefix=prefix, grid=config.position_grid)
    if config.positions == "sinusoid":
        return SinusoidPositions(dim, prefix=prefix, grid=config.position_grid)
    return None


def build_downsample(stage: StageConfig, dim: int, config: BackboneConfig) -> Stem | None:
    """What stands between a stage of width `dim` and the next, if anything."""
    if stage.downsample == "patch":
        _check_options(PatchStem, stage.downsample_options, "downsample 'patch'")
        downsample = PatchStem(dim, stage.dim, stage.stride, norm_name=config.norm, **stage.downsample_options)
        start_stem(downsample, config.stem_init)
        return downsample
    if stage.downsample_options:
        raise UsageError(
            f"downsample {stage.downsample!r} has no options; those of downsample_options belong to 'patch'"
        )
    if stage.downsample == "none":
        if stage.dim != dim:
            raise UsageError(f"downsample 'none' keeps the width, and the stages are {dim} and {stage.dim} wide")
        return None
    return ConvNormAct(dim, stage.dim, stage.stride, norm_name=config.norm)


def stage_grids(config: BackboneConfig) -> list[Size]:
    """(rows, columns) of the tokens of each stage, for images of the config's size; `UsageError` where it fits none."""
    with shapes_only():
        stems: list[Stem | None] = [build_stem(config)]
        stems += [build_downsample(b, a.dim, config) for a, b in itertools.pairwise(config.stages)]
    check_size(config, config.image, stems)
    size, grids = config.image, []
    for stem in stems:
        size = size if stem is None else stem.grid(size)
        grids.append(size)
    return grids


def size_step(stems: Sequence[Stem | None]) -> Size:
    """(rows, columns) that an image size must be a multiple of, by the stem and what stands between the stages."""
    step, stride = (1, 1), (1, 1)
    for stem in stems:
        if stem is not None:
            step = (stride[0] * stem.step[0], stride[1] * stem.step[1]) if stem.step != (1, 1) else step
            stride = (stride[0] * stem.patch[0], stride[1] * stem.patch[1])
    return step


def check_size(config: BackboneConfig, size: Size, stems: Sequence[Stem | None]) -> None:
    """`UsageError` with the nearest sizes that work, where an image size is no multiple of `size_step`."""
    step = size_step(stems)
    if any(s % m or s == 0 for s, m in zip(size, step, strict=True)):
        low = tuple(max(1, s // m) * m for s, m in zip(size, step, strict=True))
        high = tuple(a + m for a, m in zip(low, step, strict=True))
        raise UsageError(
            f"{config.name} cannot take images of {size[0]}×{size[1]} pixels; heights must be multiples of {step[0]} "
            f"and widths of {step[1]}: the nearest that work are {low[0]}×{low[1]} and {high[0]}×{high[1]}"
        )


def build_block(stage: StageConfig, config: BackboneConfig, grid: Size, rate: float) -> Block:
    """One block of a stage on a grid, with its drop-path rate."""
    branches = []
    for branch in stage.branches:
        mixer = build_mixer(branch, stage.dim, grid[0] * grid[1] + config.prefix, grid)
        start_weights(mixer, config.init)
        if mixer.spatial and config.prefix:
            raise UsageError(f"{config.name}: mixer {branch.mixer!r} works on a 2-D grid and cannot have a class token")
        bias = config.norm_bias if branch.norm_bias is None else branch.norm_bias
        if bias is None:
            bias = not (isinstance(mixer, Mixer) and mixer.shift_blind)
        scale = branch.norm_bias or not (isinstance(mixer, Mixer) and mixer.scale_blind)
        pre = norm(branch.norm or config.norm, stage.dim, scale=scale, bias=bias, eps=config.norm_eps)
        branches.append(
            Branch(
                pre,
                mixer,
                dim=stage.dim,
                layer_scale=config.layer_scale,
                res_scale=stage.res_scale,
                drop_path=DropPath(rate, batch=config.drop_path_batch, rescale=config.drop_path_rescale),
            )
        )
    return Block(branches)
