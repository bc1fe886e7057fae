"""timm's ViT and DeiT, distilled too, and the authors' DeiT files (facebookresearch/deit).

DeiT's `.pth` keep a state dict under "model" whose keys are timm's; only DeiT III has its layer scales under other
names (`gamma_1`, `gamma_2`). ViT and DeiT files of one size have the same keys and shapes, but their authors normalise
pictures differently: the preset decides, so name it (`model=`) or leave its name in the file's.
"""

from typing import Any

import torch

from mixwise.config import BackboneConfig, ModelConfig
from mixwise.models.vit import VARIANTS
from mixwise.weights.mapping import Entry, Format, Shapes, module, register_format, same
from mixwise.weights.timm_mlp import IMAGENET, INCEPTION


def _prefix_tokens(config: BackboneConfig) -> list[Entry]:
    names = ("cls_token", "dist_token")[: config.prefix]
    if not names:
        return []
    return [Entry("prefix_tokens", names, lambda *x: torch.cat(x, dim=1), lambda x: x.split(1, dim=1))]


def _block(config: BackboneConfig, ours: str, theirs: str, scales: tuple[str, str]) -> list[Entry]:
    bias = bool(config.stages[0].branches[0].options.get("qkv_bias"))
    entries = module(f"{ours}.0.norm", f"{theirs}.norm1") + module(f"{ours}.1.norm", f"{theirs}.norm2")
    entries += module(f"{ours}.0.mixer.qkv", f"{theirs}.attn.qkv", bias=bias)
    entries += module(f"{ours}.0.mixer.out", f"{theirs}.attn.proj")
    entries += [e for n in ("fc1", "fc2") for e in module(f"{ours}.1.mixer.{n}", f"{theirs}.mlp.{n}")]
    if config.layer_scale is not None:
        entries += [same(f"{ours}.{branch}.scale", f"{theirs}.{scale}") for branch, scale in enumerate(scales)]
    return entries


def _head(config: BackboneConfig) -> list[Entry]:
    if not config.classes:
        return []
    if config.distill_token:
        return module("head.label", "head") + module("head.teacher", "head_dist")
    if config.head == "hidden":
        return module("head.fc1", "pre_logits.fc") + module("head.fc2", "head")
    return module("head", "head")


def _vit(config: BackboneConfig, scales: tuple[str, str]) -> list[Entry]:
    entries = _prefix_tokens(config) + module("stem.proj", "patch_embed.proj") + [same("position.weight", "pos_embed")]
    for i in range(config.stages[0].depth):
        entries += _block(config, f"stages.0.blocks.{i}", f"blocks.{i}", scales)
    return entries + module("norm", "fc_norm" if config.pool_first else "norm") + _head(config)


def timm_vit(config: BackboneConfig) -> list[Entry]:
    """Keys of timm; `norm` is called `fc_norm` where it stands behind the mean."""
    return _vit(config, ("ls1.gamma", "ls2.gamma"))


def deit3(config: BackboneConfig) -> list[Entry]:
    """Keys of the authors' DeiT III."""
    return _vit(config, ("gamma_1", "gamma_2"))


def class_position(config: BackboneConfig, stored: int) -> bool:
    """Whether a table of so many positions has one for the class token too, by the preset's image size."""
    (height, width), (rows, columns) = config.image, config.patch
    return stored != (height // rows) * (width // columns)


def _options(config: Any, shapes: Shapes) -> ModelConfig:
    """What the keys say: class token and its position, read-out, layer scale, head."""
    changes: dict[str, Any] = {}
    if "cls_token" not in shapes:
        changes |= {"class_token": False, "pool": "mean"}
    elif config.prefix:
        changes["prefix_positions"] = class_position(config, shapes.get("pos_embed", (1, 0))[1])
    if "fc_norm.weight" in shapes:
        changes |= {"pool": "mean", "pool_first": True}
    if "blocks.0.ls1.gamma" in shapes or "blocks.0.gamma_1" in shapes:
        changes["layer_scale"] = config.layer_scale or 1e-6
    if "pre_logits.fc.weight" in shapes:
        changes |= {"head": "hidden", "head_options": {"hidden": shapes["pre_logits.fc.weight"][0]}}
    if "head.weight" not in shapes:
        changes["classes"] = 0
    return config.model_copy(update=changes)


def _preprocess(config: Any) -> dict[str, Any]:
    mean = IMAGENET if config.name.startswith("deit") else INCEPTION
    return mean | {"crop_pct": 1.0 if max(config.image) >= 384 else 0.9}


def _caution(config: ModelConfig) -> str | None:
    family, other = ("deit", "vit") if config.name.startswith("deit") else ("vit", "deit")
    if config.name.replace(family, other, 1) not in VARIANTS:
        return None
    return (
        f"ViT and DeiT files look alike and this one was read as {config.name}, normalised as {family}'s: "
        f"if it is {other}'s, name the model"
    )


def _is_vit(shapes: Shapes) -> bool:
    return {"patch_embed.proj.weight", "pos_embed", "blocks.0.attn.qkv.weight", "blocks.0.mlp.fc1.weight"} <= set(
        shapes
    )


register_format(
    Format(
        "timm_vit",
        "ViT and DeiT of timm, DeiT of its authors (facebookresearch/deit)",
        ("deit3_*", "vit_*", "deit_*"),
        lambda shapes: _is_vit(shapes) and "blocks.0.gamma_1" not in shapes,
        timm_vit,
        _preprocess,
        adapt=_options,
        caution=_caution,
    )
)
register_format(
    Format(
        "deit3",
        "DeiT III of its authors (facebookresearch/deit)",
        ("deit3_*",),
        lambda shapes: _is_vit(shapes) and "blocks.0.gamma_1" in shapes,
        deit3,
        _preprocess,
        adapt=_options,
    )
)
