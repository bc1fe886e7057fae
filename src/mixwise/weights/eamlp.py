"""EAMLP files of MenghaoGuo/EANet (folder EAMLP), and T2T-ViT files of yitu-opensource/T2T-ViT.

Both keep `state_dict` and `state_dict_ema`, and their authors evaluate the averaged weights. `pos_embed` is the fixed
table of sinusoids for the image size of the file: it is compared with ours when read (a table that was trained after
all is refused) and made when written, and its length tells the image size, such as 384 of the released EAMLP-7.

In the code's models `T2t_vit_t_*` the key memory is `linear_1` and the value memory `linear_2`; in the others they are
`linear_0` and `linear_1` (formats eamlp_t and eamlp).
"""

import math
from typing import Any

import torch
from torch import Tensor

from mixwise.assemble import build_positions
from mixwise.config import BackboneConfig, ModelConfig
from mixwise.errors import MixwiseError
from mixwise.t2t import token_grid
from mixwise.weights.mapping import Entry, Format, Shapes, module, register_format, same, shaped

STEM = "tokens_to_token"


def class_token(config: BackboneConfig) -> Entry:
    """The class token, and in the foreign file the position table, which is a constant."""
    rows, columns = grid = token_grid(config.image)
    positions = build_positions(config, grid)
    assert positions is not None
    table = positions(torch.zeros(1, rows * columns + config.prefix, config.stages[0].dim, device="cpu"), grid)

    def read(token: Tensor, found: Tensor) -> Tensor:
        if found.shape != table.shape or (found.float() - table).abs().max() > 5e-3:
            raise MixwiseError(
                f"pos_embed is not the fixed table of sinusoids for {rows}×{columns} tokens and a class token: "
                "these are weights of another model"
            )
        return token

    return Entry("prefix_tokens", ("cls_token", "pos_embed"), read, lambda token: (token, table.to(token)))


def external_read(ours: str, theirs: str, *, key: str = "linear_0", value: str = "linear_1") -> list[Entry]:
    """The single-head external attention of a token module."""
    pairs = [("query", "q_linear"), ("value", value), ("out", "proj")]
    named = [e for mine, name in pairs for e in module(f"{ours}.{mine}", f"{theirs}.{name}")]
    return [*named, same(f"{ours}.key.weight", f"{theirs}.{key}.weight")]


def multihead(ours: str, theirs: str) -> list[Entry]:
    """Multi-head external attention; a prefix ends in its dot or is empty."""
    pairs = [("expand", "trans_dims"), ("key", "linear_0"), ("value", "linear_1"), ("out", "proj")]
    return [e for mine, name in pairs for e in module(f"{ours}{mine}", f"{theirs}{name}")]


def _self_attention(ours: str, theirs: str) -> list[Entry]:
    return [same(f"{ours}.qkv.weight", f"{theirs}.qkv.weight"), *module(f"{ours}.out", f"{theirs}.proj")]


def _token_module(mixer: str, ours: str, theirs: str, key: str, value: str) -> list[Entry]:
    names, read = ("mlp.fc1", "mlp.fc2"), f"{ours}.read"
    if mixer == "external_attention":
        entries = external_read(read, f"{theirs}.attn", key=key, value=value)
    elif mixer == "attention":
        entries = _self_attention(read, f"{theirs}.attn")
    else:
        names = ("mlp.0", "mlp.2")
        entries = [*module(f"{read}.kqv", f"{theirs}.kqv"), *module(f"{read}.out", f"{theirs}.proj")]
        entries.append(same(f"{read}.w", f"{theirs}.w"))
    for mine, name in (("norm1", "norm1"), ("norm2", "norm2"), ("mlp.fc1", names[0]), ("mlp.fc2", names[1])):
        entries += module(f"{ours}.{mine}", f"{theirs}.{name}")
    return entries


def _entries(config: BackboneConfig, key: str, value: str) -> list[Entry]:
    mixer, width = config.stem_options["mixer"], config.stem_options["width"]
    entries = [class_token(config)]
    for i in (1, 2):
        entries += _token_module(mixer, f"stem.module{i}", f"{STEM}.attention{i}", key, value)
    entries += [
        shaped("stem.project.weight", f"{STEM}.project.weight", (-1, width, 3, 3), (-1, 9 * width)),
        same("stem.project.bias", f"{STEM}.project.bias"),
    ]
    stage = config.stages[0]
    for i in range(stage.depth):
        ours, theirs = f"stages.0.blocks.{i}", f"blocks.{i}"
        if stage.branches[0].mixer == "attention":
            entries += _self_attention(f"{ours}.0.mixer", f"{theirs}.attn")
        else:
            entries += multihead(f"{ours}.0.mixer.", f"{theirs}.attn.")
        entries += [e for n in ("fc1", "fc2") for e in module(f"{ours}.1.mixer.{n}", f"{theirs}.mlp.{n}")]
        entries += module(f"{ours}.0.norm", f"{theirs}.norm1") + module(f"{ours}.1.norm", f"{theirs}.norm2")
    return entries + module("norm", "norm") + (module("head", "head") if config.classes else [])


def eamlp(config: BackboneConfig) -> list[Entry]:
    """Keys of EAMLP and of T2T-ViT with external attention; memories `linear_0` and `linear_1`."""
    return _entries(config, "linear_0", "linear_1")


def eamlp_t(config: BackboneConfig) -> list[Entry]:
    """The same with the memories `linear_1` and `linear_2`."""
    return _entries(config, "linear_1", "linear_2")


def _sized(config: ModelConfig, shapes: Shapes) -> ModelConfig:
    """For the square image that the file's position table belongs to."""
    side = math.isqrt(shapes.get("pos_embed", (1, 1))[1] - 1)
    if side == 0 or shapes["pos_embed"][1] != side**2 + 1:
        return config
    return config.model_copy(update={"image": (16 * side, 16 * side)})


def _sized_t(config: ModelConfig, shapes: Shapes) -> ModelConfig:
    return _sized(config.changed({"stem_options.dropout": 0.0}), shapes)


def _preprocess(config: ModelConfig) -> dict[str, Any]:
    return {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225), "crop_pct": 0.9}


register_format(
    Format(
        "eamlp",
        "EAMLP of its authors (MenghaoGuo/EANet)",
        ("eamlp_*", "t2t_ea_*"),
        lambda shapes: f"{STEM}.attention1.attn.linear_0.weight" in shapes,
        eamlp,
        _preprocess,
        prefer_ema=True,
        adapt=_sized,
    )
)
register_format(
    Format(
        "eamlp_t",
        "the models T2t_vit_t_* of the same code",
        ("eamlp_*", "t2t_ea_*"),
        lambda shapes: f"{STEM}.attention1.attn.linear_2.weight" in shapes,
        eamlp_t,
        _preprocess,
        prefer_ema=True,
        adapt=_sized_t,
    )
)
register_format(
    Format(
        "t2t_vit",
        "T2T-ViT of its authors (yitu-opensource/T2T-ViT)",
        ("t2t_vit_*",),
        lambda shapes: f"{STEM}.attention1.w" in shapes or f"{STEM}.attention1.attn.qkv.weight" in shapes,
        eamlp,
        _preprocess,
        prefer_ema=True,
        adapt=_sized,
    )
)
