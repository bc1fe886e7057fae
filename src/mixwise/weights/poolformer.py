"""The authors' PoolFormer and hybrid files (sail-sg/poolformer): a bare state dict, `network` one flat list.

Stages, the convolutions in between and the position embeddings each take an index of the list, in order of use. The
channel MLPs are 1 × 1 convolutions. A backbone for dense tasks (`fork_feat`) has no head but a norm per stage, named by
the index of the stage; training with FORK_LAST3 leaves out the first. Pooling and identity have no weights, so the file
of metaformer_id_s12 has the keys and shapes of poolformer_s12's: name the model.
"""

from collections.abc import Iterator
from typing import Any

from mixwise.assemble import stage_grids
from mixwise.config import BackboneConfig, ModelConfig, Size
from mixwise.weights.mapping import Entry, Format, Shapes, module, register_format
from mixwise.weights.metaformer import PREPROCESS, block, norm_entries


def _indices(config: BackboneConfig) -> Iterator[tuple[int, int | None, int | None]]:
    """For each stage its index in `network`, that of the convolution before it and that of its positions."""
    count = 0
    for i, stage in enumerate(config.stages):
        convolution = count if i and stage.downsample != "none" else None
        count += convolution is not None
        positions = count if stage.positions else None
        count += positions is not None
        yield count, convolution, positions
        count += 1


def _positions(native: str, foreign: str, grid: Size) -> Entry:
    """A table stored as a map (1, c, h, w)."""
    return Entry(
        native,
        (foreign,),
        lambda x: x.flatten(2).transpose(1, 2),
        lambda x: (x.transpose(1, 2).unflatten(2, grid),),
    )


def poolformer(config: BackboneConfig) -> list[Entry]:
    """Keys of the authors' files."""
    entries, grids = module("stem.proj", "patch_embed.proj"), stage_grids(config)
    for i, (index, convolution, positions) in enumerate(_indices(config)):
        stage, ours = config.stages[i], f"stages.{i}"
        if convolution is not None:
            entries += module(f"{ours}.downsample.proj", f"network.{convolution}.proj")
        if positions is not None:
            entries.append(_positions(f"{ours}.position.weight", f"network.{positions}.pos_embed", grids[i]))
        for j in range(stage.depth):
            blocks = f"{ours}.blocks.{j}", f"network.{index}.{j}"
            entries += block(config, stage, *blocks, axes=(0, 2), layer_scale="layer_scale_{}")
        if stage.pyramid_norm:
            entries += norm_entries(config.norm, f"{ours}.pyramid_norm", f"norm{index}")
    entries += norm_entries(config.final_norm or config.norm, "norm", "norm")
    return entries + (module("head", "head") if config.classes else [])


def _options(config: ModelConfig, shapes: Shapes) -> ModelConfig:
    """What the keys tell: batch norms, and the norms of a backbone without a head."""
    assert isinstance(config, BackboneConfig)
    changes: dict[str, Any] = {}
    if "network.0.0.norm1.running_mean" in shapes:
        changes["norm"] = "batch"
    norms = [f"norm{index}.weight" in shapes for index, _, _ in _indices(config)]
    if any(norms) and "norm.weight" not in shapes:
        changes |= {"classes": 0, "final_norm": "none"}
        changes |= {f"stages.{i}.pyramid_norm": present for i, present in enumerate(norms)}
    return config.changed(changes) if changes else config


def _preprocess(config: ModelConfig) -> dict[str, Any]:
    narrow = config.name.startswith("poolformer_s") or config.name in ("metaformer_id_s12", "metaformer_pppf_s12")
    return PREPROCESS | {"crop_pct": 0.9 if narrow else 0.95}


register_format(
    Format(
        "poolformer",
        "PoolFormer and its hybrids .pth.tar of their authors (sail-sg/poolformer)",
        ("poolformer_*", "metaformer_*"),
        lambda shapes: "network.0.0.mlp.fc1.weight" in shapes and "patch_embed.proj.weight" in shapes,
        poolformer,
        _preprocess,
        adapt=_options,
    )
)
