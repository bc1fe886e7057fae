"""timm's `metaformer` family: PoolFormer, PoolFormerV2, ConvFormer, CAFormer.

Pointwise layers are 1 × 1 convolutions, except in stages with attention. timm reads a PoolFormer out in another order
than its authors: mean, then a layer norm per token; the norm of its MLP head has eps 1e-6. Files become models that do
the same.
"""

from typing import Any

from mixwise.config import BackboneConfig, ModelConfig
from mixwise.weights.mapping import Entry, Format, Shapes, module, register_format
from mixwise.weights.metaformer import PREPROCESS, block, head, norm_entries


def timm_metaformer(config: BackboneConfig) -> list[Entry]:
    """Keys of timm's MetaFormer."""
    options = config.stem_options
    entries = module("stem.proj", "stem.conv")
    entries += norm_entries(options.get("norm", "none"), "stem.norm", "stem.norm", bias=False)
    for i, stage in enumerate(config.stages):
        ours = f"stages.{i}"
        if stage.downsample != "none" and i:
            between = stage.downsample_options.get("pre_norm", "none")
            entries += module(f"{ours}.downsample.proj", f"{ours}.downsample.conv")
            entries += norm_entries(between, f"{ours}.downsample.pre_norm", f"{ours}.downsample.norm", bias=False)
        axes = 0 if stage.branches[0].mixer == "attention" else 2
        for j in range(stage.depth):
            name = f"{ours}.blocks.{j}"
            entries += block(config, stage, name, name, axes=(axes, axes))
    return entries + module("norm", "head.norm") + head(config, "head.fc")


def _readout(config: ModelConfig, shapes: Shapes) -> ModelConfig:
    """As timm reads out, whatever the preset does."""
    assert isinstance(config, BackboneConfig)
    changes: dict[str, Any] = {"final_norm": "layer", "final_eps": 1e-6, "pool_first": True}
    if config.head == "mlp":
        changes["head_options.eps"] = 1e-6
    return config.changed(changes)


def _preprocess(config: ModelConfig) -> dict[str, Any]:
    crops = {"poolformer_s": 0.9, "poolformer_m": 0.95}
    return PREPROCESS | {"crop_pct": crops.get(config.name[: len("poolformer_s")], 1.0)}


register_format(
    Format(
        "timm_metaformer",
        "PoolFormer, PoolFormerV2, ConvFormer, CAFormer of timm",
        ("poolformer_*", "poolformerv2_*", "convformer_*", "caformer_*"),
        lambda shapes: "stem.conv.weight" in shapes and "stages.0.blocks.0.mlp.fc1.weight" in shapes,
        timm_metaformer,
        _preprocess,
        adapt=_readout,
    )
)
