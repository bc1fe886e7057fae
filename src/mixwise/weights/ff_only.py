"""The released feed-forward-only weights (lukemelas/do-you-even-need-attention), a state dict under "model".

Its positions are a map (1, c, rows, columns) and a vector for the class token; here they are one table, class token
first. A block is norm1, mlp1 along the channels, norm2 and mlp2 along the tokens; norm2 has one scale and shift per
token, so these weights fit no MLP-Mixer.
"""

from typing import Any

import torch

from mixwise.config import BackboneConfig, ModelConfig
from mixwise.weights.mapping import Entry, Format, Shapes, module, register_format, same
from mixwise.weights.timm_mlp import IMAGENET


def _positions(config: BackboneConfig) -> Entry:
    rows, columns = config.position_grid or (config.image[0] // config.patch[0], config.image[1] // config.patch[1])
    return Entry(
        "position.weight",
        ("pos_encoding.cls_pos_embed", "pos_encoding.pos_embed"),
        lambda token, table: torch.cat([token, table.flatten(2).transpose(1, 2)], dim=1),
        lambda x: (x[:, :1], x[:, 1:].transpose(1, 2).unflatten(2, (rows, columns))),
    )


def ff_only(config: BackboneConfig) -> list[Entry]:
    """Keys of the released files."""
    entries = [same("prefix_tokens", "cls_token"), _positions(config), *module("stem.proj", "patch_embed.proj")]
    for i in range(config.stages[0].depth):
        ours, theirs = f"stages.0.blocks.{i}", f"blocks.{i}"
        entries += module(f"{ours}.0.norm", f"{theirs}.norm1") + module(f"{ours}.1.mixer.norm", f"{theirs}.norm2")
        for j in (1, 2):
            entries += module(f"{ours}.0.mixer.fc{j}", f"{theirs}.mlp1.fc{j}")
            entries.append(same(f"{ours}.1.mixer.w{j}", f"{theirs}.mlp2.fc{j}.weight"))
            entries.append(same(f"{ours}.1.mixer.b{j}", f"{theirs}.mlp2.fc{j}.bias"))
    return entries + module("norm", "norm") + (module("head", "head") if config.classes else [])


def _grid(config: Any, shapes: Shapes) -> ModelConfig:
    """The grid of the stored positions, where it is not the tokens' own."""
    stored = shapes.get("pos_encoding.pos_embed", ())[2:]
    own = (config.image[0] // config.patch[0], config.image[1] // config.patch[1])
    if len(stored) != 2 or stored == own:
        return config.model_copy(update={"position_grid": None})
    return config.model_copy(update={"position_grid": stored})


def _preprocess(config: ModelConfig) -> dict[str, Any]:
    return IMAGENET | {"crop_pct": 0.875}


register_format(
    Format(
        "ff_only",
        "feed-forward-only model of its author (do-you-even-need-attention)",
        ("ff_*",),
        lambda shapes: "pos_encoding.cls_pos_embed" in shapes and "blocks.0.mlp2.fc1.weight" in shapes,
        ff_only,
        _preprocess,
        adapt=_grid,
    )
)
