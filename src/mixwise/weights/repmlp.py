"""RepMLPNet of its authors (DingXiaoH/RepMLP), both forms, and of mmpretrain.

The authors' training files hold the weights under `model`, with a batch norm behind each matrix; their `convert.py`
writes the other form, bare, in which the RepMLP blocks are injected (`fc3.bias` instead of `fc3_bn` and `repconv`) and
every other batch norm is left. Here such a file becomes a re-parameterised model: it is loaded into a model with fused
RepMLP blocks, and what it still has of batch norms is folded after that.

mmpretrain has the same tensors under other names. Its 224-pixel evaluation squashes pictures to 256 × 256 before the
crop; the header says crop instead.
"""

from typing import Any, NamedTuple

import torch

from mixwise.blocks import Branch
from mixwise.config import BackboneConfig, ModelConfig
from mixwise.mixers import Mixer
from mixwise.model import Model, build
from mixwise.weights.mapping import Entry, Format, Shapes, batch_norm, module, register_format, same, squeezed
from mixwise.weights.timm_mlp import IMAGENET


class Names(NamedTuple):
    """What a code base calls the parts of a RepMLPNet."""

    stem: str = "conv_embedding.conv"
    stem_norm: str = "conv_embedding.bn"
    body: str = ""
    """In front of everything but stem and head."""
    down: str = "embeds"
    gate: tuple[str, str] = ("gp.fc1", "gp.fc2")
    norms: tuple[str, str] = ("prebn1", "prebn2")
    final: str = "head_norm"
    head: str = "head"


AUTHORS = Names()
MMPRETRAIN = Names(
    "backbone.patch_embed.projection",
    "backbone.patch_embed.norm",
    "backbone.",
    "downsample_layers",
    ("gp.conv1.conv", "gp.conv2.conv"),
    ("norm1", "norm2"),
    "final_norm",
    "head.fc",
)


def matrices(ours: str, theirs: str, sets: int) -> Entry:
    """(S, hw, hw) here, a convolution (S · hw, hw, 1, 1) in S groups there."""
    return Entry(
        ours,
        (theirs,),
        lambda x: x.reshape(sets, -1, x.shape[1]),
        lambda x: (x.reshape(-1, x.shape[-1], 1, 1),),
    )


def repmlp_block(
    ours: str,
    theirs: str,
    *,
    sets: int,
    kernels: tuple[int, ...],
    fused: bool,
    gate: tuple[str, str] = AUTHORS.gate,
) -> list[Entry]:
    """Keys of one RepMLP block, trainable or injected, behind a prefix with its dot."""
    entries = []
    for mine, name in zip(("fc1", "fc2"), gate, strict=True):
        entries.append(squeezed(f"{ours}gate.{mine}.weight", f"{theirs}{name}.weight", 2))
        entries.append(same(f"{ours}gate.{mine}.bias", f"{theirs}{name}.bias"))
    entries.append(matrices(f"{ours}weight", f"{theirs}fc3.weight", sets))
    if fused:
        read, write = lambda x: x.reshape(sets, -1), lambda x: (x.reshape(-1),)
        return [*entries, Entry(f"{ours}bias", (f"{theirs}fc3.bias",), read, write)]
    entries += batch_norm(f"{ours}norm", f"{theirs}fc3_bn")
    for i, kernel in enumerate(kernels):
        local, conv = f"{ours}local.{i}", f"{theirs}repconv{kernel}"
        entries += [same(f"{local}.conv.weight", f"{conv}.conv.weight"), *batch_norm(f"{local}.norm", f"{conv}.bn")]
    return entries


def _net(config: BackboneConfig, names: Names) -> list[Entry]:
    entries = [same("stem.proj.weight", f"{names.stem}.weight"), *batch_norm("stem.norm", names.stem_norm)]
    for s, stage in enumerate(config.stages):
        if s:
            ours, theirs = f"stages.{s}.downsample", f"{names.body}{names.down}.{s - 1}"
            entries.append(same(f"{ours}.proj.weight", f"{theirs}.conv.weight"))
            entries += batch_norm(f"{ours}.norm", f"{theirs}.bn")
        options = stage.branches[0].options
        for b in range(stage.depth):
            ours, theirs = f"stages.{s}.blocks.{b}", f"{names.body}stages.{s}.{b}"
            entries += batch_norm(f"{ours}.0.norm", f"{theirs}.{names.norms[0]}")
            entries += repmlp_block(
                f"{ours}.0.mixer.",
                f"{theirs}.repmlp_block.",
                sets=options["sharesets"],
                kernels=options["kernels"],
                fused=config.form == "reparameterized",
                gate=names.gate,
            )
            entries += batch_norm(f"{ours}.1.norm", f"{theirs}.{names.norms[1]}")
            for layer in (1, 2):
                mine, fc = f"{ours}.1.mixer", f"{theirs}.ffn_block.ffn_fc{layer}"
                entries.append(squeezed(f"{mine}.fc{layer}.weight", f"{fc}.conv.weight", 2))
                entries += batch_norm(f"{mine}.norm{layer}", f"{fc}.bn")
    entries += batch_norm("norm", f"{names.body}{names.final}")
    return entries + (module("head", names.head) if config.classes else [])


def repmlpnet(config: BackboneConfig) -> list[Entry]:
    """Keys of the authors' files: the training form, or the injected form for a re-parameterised config."""
    return _net(config, AUTHORS)


def mmpretrain_repmlp(config: BackboneConfig) -> list[Entry]:
    """Keys of mmpretrain's files."""
    return _net(config, MMPRETRAIN)


def injected(config: BackboneConfig) -> Model:
    """The model as the authors convert it: RepMLP blocks fused, every other batch norm left."""
    model = build(config.model_copy(update={"form": "trainable"}))
    if config.form == "reparameterized":
        with torch.no_grad():
            for branch in model.modules():
                if isinstance(branch, Branch) and isinstance(branch.mixer, Mixer):
                    branch.mixer = branch.mixer.reparameterize()
    return model


def _form(config: ModelConfig, shapes: Shapes) -> ModelConfig:
    fused = any(name.endswith("repmlp_block.fc3.bias") for name in shapes)
    return config.model_copy(update={"form": "reparameterized" if fused else "trainable"})


def _crop(config: ModelConfig) -> dict[str, Any]:
    return IMAGENET | {"crop_pct": 1.0, "filter": "bilinear"}


def _mmpretrain_crop(config: ModelConfig) -> dict[str, Any]:
    return IMAGENET | {"crop_pct": 0.877 if "256" in config.name else 0.875, "filter": "bilinear"}


register_format(
    Format(
        "repmlpnet",
        "RepMLPNet of its authors (DingXiaoH/RepMLP), trainable or converted",
        ("repmlpnet_*",),
        lambda shapes: "stages.0.0.repmlp_block.fc3.weight" in shapes and "conv_embedding.conv.weight" in shapes,
        repmlpnet,
        _crop,
        adapt=_form,
        build=injected,
    )
)
register_format(
    Format(
        "mmpretrain_repmlpnet",
        "RepMLPNet of mmpretrain",
        ("repmlpnet_b*", "repmlpnet_*"),
        lambda shapes: "backbone.stages.0.0.repmlp_block.fc3.weight" in shapes,
        mmpretrain_repmlp,
        _mmpretrain_crop,
        adapt=_form,
        build=injected,
    )
)
