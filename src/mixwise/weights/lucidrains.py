"""gMLP of lucidrains/g-mlp-pytorch: `gMLPVision` and the language model `gMLP`, from version 0.1.0 with one head.

Their gate's W and b have an axis of heads in front, of size 1 here; the patch embedding is a linear layer on patches
flattened as (channel, row, column); all norms have eps 1e-5. The language model has one more `.fn` in its names.

`prob_survival`, `causal`, the activation of the gate and `shift_tokens` leave no trace in a file. Not convertible:
several heads, and `circulant_matrix`, whose W is lower triangular and scaled by row and column.
"""

import math
from collections.abc import Mapping
from typing import Any

from mixwise.config import BackboneConfig, GMLPTextConfig, ModelConfig
from mixwise.errors import MixwiseError
from mixwise.weights.mapping import Entry, Format, Shapes, module, register_format, same, shaped

VISION, TEXT = "layers.0.fn.fn", "layers.0.fn.fn.fn"
"""Where the parts of the first block are."""


def _block(ours: str, residual: str, inner: str, gate: Mapping[str, Any]) -> list[Entry]:
    """One block: ours is a branch, `residual` their pre-norm, `inner` their gMLPBlock."""
    entries = module(f"{ours}.norm", f"{residual}.norm")
    for mine, name in (("fc1", "proj_in.0"), ("norm", "sgu.norm"), ("fc2", "proj_out")):
        entries += module(f"{ours}.mixer.{mine}", f"{inner}.{name}")
    n = gate["tokens"]
    entries.append(shaped(f"{ours}.mixer.weight", f"{inner}.sgu.weight", (n, n), (1, n, n)))
    entries.append(shaped(f"{ours}.mixer.bias", f"{inner}.sgu.bias", (n,), (1, n)))
    if gate["tiny_attention"]:
        entries += module(f"{ours}.mixer.tiny.qkv", f"{inner}.attn.to_qkv", bias=False)
        entries += module(f"{ours}.mixer.tiny.out", f"{inner}.attn.to_out")
    return entries


def lucidrains_gmlp(config: BackboneConfig) -> list[Entry]:
    """Keys of gMLPVision."""
    rows, columns = config.patch
    stage = config.stages[0]
    inputs = (config.channels, rows, columns)
    tokens = config.image[0] // rows * (config.image[1] // columns)
    gate = stage.branches[0].options | {"tokens": tokens}
    entries = [
        shaped("stem.proj.weight", "to_patch_embed.1.weight", (stage.dim, *inputs), (stage.dim, -1)),
        same("stem.proj.bias", "to_patch_embed.1.bias"),
    ]
    for i in range(stage.depth):
        entries += _block(f"stages.0.blocks.{i}.0", f"layers.{i}.fn", f"layers.{i}.fn.fn", gate)
    return entries + module("norm", "to_logits.0") + (module("head", "to_logits.2") if config.classes else [])


def lucidrains_gmlp_text(config: GMLPTextConfig) -> list[Entry]:
    """Keys of the language model gMLP."""
    gate = config.gate | {"tokens": config.length}
    entries = [same("embed.weight", "to_embed.weight")]
    for i in range(config.depth):
        entries += _block(f"blocks.{i}", f"layers.{i}.fn", f"layers.{i}.fn.fn.fn", gate)
    return entries + module("norm", "to_logits.0") + module("out", "to_logits.1")


def _matrix(shapes: Shapes, name: str) -> tuple[int, int]:
    """(rows, columns) of a tensor that a file must have."""
    if name not in shapes:
        raise MixwiseError(f"{name} is missing")
    if len(shapes[name]) != 2:
        raise MixwiseError(f"{name} has the shape {shapes[name]}, expected a matrix")
    rows, columns = shapes[name]
    return rows, columns


def _gate(shapes: Shapes, inner: str) -> dict[str, Any]:
    """What the shapes say about a gate: tokens, ratio, tiny attention. Refuses the forms that have no equal here."""
    weight = shapes.get(f"{inner}.sgu.weight", ())
    if f"{inner}.sgu.circulant_pos_x" in shapes:
        raise MixwiseError(
            "the file was made with circulant_matrix=True: its W is lower triangular and scaled by row and column, "
            "which is neither the paper's Toeplitz matrix nor any W here"
        )
    if len(weight) != 3 or weight[0] != 1:
        raise MixwiseError(
            f"{inner}.sgu.weight has the shape {weight}, expected (1, tokens, tokens): a gate with several heads, or "
            "of another version, has no equal here"
        )
    hidden, dim = _matrix(shapes, f"{inner}.proj_in.0.weight")
    attention = f"{inner}.attn.to_qkv.weight"
    tiny = _matrix(shapes, attention)[0] // 3 if attention in shapes else 0
    return {"tokens": weight[1], "ratio": hidden / dim, "tiny_attention": tiny}


def _depth(shapes: Shapes) -> int:
    return len({name.split(".")[1] for name in shapes if name.startswith("layers.")})


def _adapt_vision(config: Any, shapes: Shapes) -> ModelConfig:
    """Their eps, the file's ratio and width of attention; of the preset without a size the sizes too."""
    gate = _gate(shapes, VISION)
    branch, tokens = "stages.0.branches.0.options", gate["tokens"]
    changes: dict[str, Any] = {"norm_eps": 1e-5, f"{branch}.norm_eps": 1e-5, f"{branch}.ratio": gate["ratio"]}
    general = config.name == "gmlp"
    if general or (gate["tiny_attention"] > 0) == (config.stages[0].branches[0].options["tiny_attention"] > 0):
        changes[f"{branch}.tiny_attention"] = gate["tiny_attention"]
    if general:
        dim, inputs = _matrix(shapes, "to_patch_embed.1.weight")
        channels = 1 if math.isqrt(inputs) ** 2 == inputs else 3
        side = math.isqrt(inputs // channels)
        if config.image[0] // side * (config.image[1] // side) != tokens:
            changes["image"] = 2 * (math.isqrt(tokens) * side,)
        changes |= {"stages.0.dim": dim, "stages.0.depth": _depth(shapes), "channels": channels, "patch": (side, side)}
    return config.changed(changes)


def _adapt_text(config: Any, shapes: Shapes) -> ModelConfig:
    """Every size is in the file; whether it is causal is not, and the preset says it."""
    gate = _gate(shapes, TEXT)
    vocabulary, dim = _matrix(shapes, "to_embed.weight")
    sizes = {"vocabulary": vocabulary, "dim": dim, "depth": _depth(shapes), "length": gate["tokens"]}
    return config.changed(sizes | {f"gate.{option}": gate[option] for option in ("ratio", "tiny_attention")})


def _preprocess(config: Any) -> dict[str, Any]:
    return {"mean": (0.5,) * config.channels, "std": (0.5,) * config.channels}


register_format(
    Format(
        "lucidrains_gmlp",
        "gMLPVision of lucidrains/g-mlp-pytorch",
        ("gmlp_*16_224", "amlp_*16_224", "gmlp"),
        lambda shapes: f"{VISION}.sgu.weight" in shapes and "to_patch_embed.1.weight" in shapes,
        lucidrains_gmlp,
        _preprocess,
        adapt=_adapt_vision,
        notes=("the file does not say its preprocessing: mean and deviation of 0.5 were assumed",),
    )
)
register_format(
    Format(
        "lucidrains_gmlp_text",
        "the language model gMLP of lucidrains/g-mlp-pytorch",
        ("gmlp_text", "gmlp_text_causal"),
        lambda shapes: f"{TEXT}.sgu.weight" in shapes and "to_embed.weight" in shapes,
        lucidrains_gmlp_text,
        lambda config: {},
        adapt=_adapt_text,
        notes=(
            "the file does not say whether the model is causal: gmlp_text was assumed unless model named "
            "gmlp_text_causal; it must have been trained with shift_tokens=0 and without act",
        ),
    )
)
