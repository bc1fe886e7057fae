"""Google's ViT weights: `.npz` files of vit_jax (ViT, AugReg, SAM) and big_vision.

The table has the names of the released vit_jax files. Other spellings are brought to it first: today's code and
big_vision number the parts of a block 0, 0, 1, 0 instead of 0, 1, 2, 3, and keep the positions elsewhere; big_vision
may stack all blocks along a first axis. Query, key and value are (width, heads, width / head), the output (heads,
width / head, width). `pre_logits`, the tanh layer of the first ViT, is kept: it is part of what the head was trained
on.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mixwise.config import BackboneConfig, ModelConfig
from mixwise.weights.google_mixer import dense, layer_norm
from mixwise.weights.mapping import Entry, Format, Shapes, hwio, register_format, same
from mixwise.weights.timm_vit import class_position

POSITIONS = "Transformer/posembed_input/pos_embedding"
RENUMBERED = {"LayerNorm_1": "LayerNorm_2", "MultiHeadDotProductAttention_0": "MultiHeadDotProductAttention_1"} | {
    "MlpBlock_0": "MlpBlock_3"
}


def attention(ours: str, theirs: str, heads: int) -> list[Entry]:
    """Flax attention as one fused layer of query, key and value, heads side by side, and an output layer."""
    names = [f"{theirs}/{part}" for part in ("query", "key", "value")]
    return [
        Entry(
            f"{ours}.qkv.weight",
            tuple(f"{name}/kernel" for name in names),
            lambda *x: torch.cat([part.flatten(1).t() for part in x]),
            lambda x: tuple(part.t().unflatten(1, (heads, -1)) for part in x.chunk(3)),
        ),
        Entry(
            f"{ours}.qkv.bias",
            tuple(f"{name}/bias" for name in names),
            lambda *x: torch.cat([part.flatten() for part in x]),
            lambda x: tuple(part.unflatten(0, (heads, -1)) for part in x.chunk(3)),
        ),
        Entry(
            f"{ours}.out.weight",
            (f"{theirs}/out/kernel",),
            lambda x: x.flatten(0, 1).t(),
            lambda x: (x.t().unflatten(0, (heads, -1)),),
        ),
        same(f"{ours}.out.bias", f"{theirs}/out/bias"),
    ]


def google_vit(config: BackboneConfig) -> list[Entry]:
    """Keys of the released vit_jax files."""
    entries = [hwio("stem.proj.weight", "embedding/kernel"), same("stem.proj.bias", "embedding/bias")]
    entries += [same("prefix_tokens", "cls")] if config.class_token else []
    entries.append(same("position.weight", POSITIONS))
    heads = config.stages[0].branches[0].options["heads"]
    for i in range(config.stages[0].depth):
        ours, theirs = f"stages.0.blocks.{i}", f"Transformer/encoderblock_{i}"
        entries += layer_norm(f"{ours}.0.norm", f"{theirs}/LayerNorm_0")
        entries += attention(f"{ours}.0.mixer", f"{theirs}/MultiHeadDotProductAttention_1", heads)
        entries += layer_norm(f"{ours}.1.norm", f"{theirs}/LayerNorm_2")
        for j in (0, 1):
            entries += dense(f"{ours}.1.mixer.fc{j + 1}", f"{theirs}/MlpBlock_3/Dense_{j}")
    entries += layer_norm("norm", "Transformer/encoder_norm")
    if config.classes and config.head == "hidden":
        return entries + dense("head.fc1", "pre_logits") + dense("head.fc2", "head")
    return entries + (dense("head", "head") if config.classes else [])


def released_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A file's tensors under the names of the released vit_jax files: blocks apart, numbered 0, 1, 2, 3."""
    apart: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if name.startswith("Transformer/encoderblock/"):
            rest = name.removeprefix("Transformer/encoderblock/")
            apart |= {f"Transformer/encoderblock_{i}/{rest}": layer for i, layer in enumerate(tensor)}
        else:
            apart[POSITIONS if name == "pos_embedding" else name] = tensor
    if not any("/MultiHeadDotProductAttention_0/" in name for name in apart):
        return apart
    return {"/".join(RENUMBERED.get(part, part) for part in name.split("/")): t for name, t in apart.items()}


def _options(config: Any, shapes: Shapes) -> ModelConfig:
    """What the keys say: class token and its position, read-out, heads, head layer. The GELU is the tanh form."""
    changes: dict[str, Any] = {"stages.0.branches.1.options.act": "gelu_tanh"}
    query = shapes.get("Transformer/encoderblock_0/MultiHeadDotProductAttention_1/query/kernel", ())
    if len(query) == 3 and query[1] * query[2] == config.stages[0].dim:
        changes["stages.0.branches.0.options.heads"] = query[1]
    if "cls" in shapes:
        changes["prefix_positions"] = class_position(config, shapes.get(POSITIONS, (1, 0))[1])
    else:
        changes |= {"class_token": False, "pool": "mean", "pool_first": False}
    if "pre_logits/kernel" in shapes:
        changes |= {"head": "hidden", "head_options": {"hidden": shapes["pre_logits/kernel"][1]}}
    if "head/kernel" not in shapes:
        changes["classes"] = 0
    return config.changed(changes)


def _preprocess(config: ModelConfig) -> dict[str, Any]:
    return {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5), "fit": "squash", "filter": "bilinear"}


register_format(
    Format(
        "google_vit",
        "ViT .npz of Google (vision_transformer, big_vision)",
        ("vit_*",),
        lambda shapes: "embedding/kernel" in shapes and any("MultiHeadDotProductAttention_" in n for n in shapes),
        google_vit,
        _preprocess,
        tidy=released_names,
        adapt=_options,
    )
)
