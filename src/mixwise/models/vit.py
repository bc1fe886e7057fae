"""ViT and DeiT: attention between tokens and a channel MLP in turn. The control that every other mixer is held against.

    patches, class token → + positions → 12–32 × [x + attention(norm(x)), x + mlp(norm(x))] → norm → token → linear

Source: Dosovitskiy et al., "ViT", arXiv 2010.11929, section 3; Touvron et al., "DeiT", arXiv 2012.12877, section 4, and
"DeiT III", arXiv 2204.07118; Steiner et al., "AugReg", arXiv 2106.10270. Names are timm's.

| preset                           | patch | dim  | depth | heads | parameters  | GMACs   | ImageNet top-1, trained on |
|----------------------------------|-------|------|-------|-------|-------------|---------|----------------------------|
| vit_tiny_patch16_224             | 16    | 192  | 12    | 3     | 5,717,416   | 1.254   | 75.45 IN-21k (timm)        |
| vit_small_patch16_224            | 16    | 384  | 12    | 6     | 22,050,664  | 4.599   | 81.40 IN-21k (timm)        |
| vit_small_patch32_224            | 32    | 384  | 12    | 6     | 22,878,952  | 1.143   | 76.01 IN-21k (timm)        |
| vit_base_patch16_224             | 16    | 768  | 12    | 12    | 86,567,656  | 17.564  | 84.53 IN-21k (timm)        |
| vit_base_patch16_384             | 16    | 768  | 12    | 12    | 86,859,496  | 55.484  | 86.01 IN-21k (timm)        |
| vit_base_patch32_224             | 32    | 768  | 12    | 12    | 88,224,232  | 4.409   | 80.73 IN-21k (timm)        |
| vit_base_patch8_224              | 8     | 768  | 12    | 12    | 86,576,872  | 78.148  | –                          |
| vit_large_patch16_224            | 16    | 1024 | 24    | 16    | 304,326,632 | 61.555  | 85.86 IN-21k (timm)        |
| vit_large_patch32_224            | 32    | 1024 | 24    | 16    | 306,535,400 | 15.378  | –                          |
| vit_huge_patch14_224             | 14    | 1280 | 32    | 16    | 632,045,800 | 167.295 | –                          |
| deit_tiny_patch16_224            | 16    | 192  | 12    | 3     | 5,717,416   | 1.254   | 72.2 IN-1k (paper)         |
| deit_small_patch16_224           | 16    | 384  | 12    | 6     | 22,050,664  | 4.599   | 79.8 IN-1k (paper)         |
| deit_base_patch16_224            | 16    | 768  | 12    | 12    | 86,567,656  | 17.564  | 81.8 IN-1k (paper)         |
| deit_base_patch16_384            | 16    | 768  | 12    | 12    | 86,859,496  | 55.484  | 83.1 IN-1k (paper)         |
| deit_tiny_distilled_patch16_224  | 16    | 192  | 12    | 3     | 5,910,800   | 1.261   | 74.5 IN-1k (paper)         |
| deit_small_distilled_patch16_224 | 16    | 384  | 12    | 6     | 22,436,432  | 4.624   | 81.2 IN-1k (paper)         |
| deit_base_distilled_patch16_224  | 16    | 768  | 12    | 12    | 87,338,192  | 17.657  | 83.4 IN-1k (paper)         |
| deit_base_distilled_patch16_384  | 16    | 768  | 12    | 12    | 87,630,032  | 55.591  | 85.2 IN-1k (paper)         |
| deit3_small_patch16_224          | 16    | 384  | 12    | 6     | 22,059,496  | 4.599   | 81.4 IN-1k (README)        |
| deit3_medium_patch16_224         | 16    | 512  | 12    | 8     | 38,849,512  | 7.991   | 83.0 IN-1k (README)        |
| deit3_base_patch16_224           | 16    | 768  | 12    | 12    | 86,585,320  | 17.564  | 83.8 IN-1k (README)        |
| deit3_large_patch16_224          | 16    | 1024 | 24    | 16    | 304,374,760 | 61.555  | 84.9 IN-1k (README)        |
| deit3_huge_patch14_224           | 14    | 1280 | 32    | 16    | 632,126,440 | 167.295 | 85.2 IN-1k (README)        |

IN-21k (timm): AugReg's weights, measured by timm. README: of facebookresearch/deit. Distilled: from a RegNetY-16GF.
Trained on ImageNet-1k alone, AugReg reaches 78.84 (S/16) and 79.15 (B/16) in timm's measurement, the ViT paper 77.9
(B/16, seen at 384 pixels). Google's weights want pixels in -1…1, DeiT's the mean and deviation of ImageNet: the
header that the converter writes says which.

Differs: vit_* start as in Google's code (`init="jax"`: Xavier uniform for query, key and value one by one; timm's
mode of that name draws them as one matrix, √2 smaller), deit_* as in DeiT's. The GELU is the erf form as in timm and
DeiT; Google's code has the tanh form (`gelu="tanh"`; the converter of its `.npz` sets it). The tanh layer that the
first ViT was pre-trained with is `pre_logits`; AugReg and all presets have none. A distilled model answers with the
mean of its two heads in training too; `model.head.both` gives them apart. The bias of the keys cancels in the softmax
and is kept because every checkpoint has it.
"""

from typing import Any, Literal

from mixwise.config import BackboneConfig, BranchConfig, Size, StageConfig, pair
from mixwise.errors import UsageError, unknown
from mixwise.layers import gelu_form
from mixwise.mixers.attention import head_count
from mixwise.models.registry import register_variants

STARTS: dict[str, dict[str, Any]] = {
    "jax": {"init": "flax", "class_token_std": 0.0, "stem": "lecun", "head": 0.0},
    "timm": {"init": "normal", "class_token_std": 1e-6, "stem": "torch", "head": 0.02},
    "deit": {"init": "normal", "class_token_std": 0.02, "stem": "torch", "head": 0.02},
    "moco": {"init": "xavier", "class_token_std": 1e-6, "stem": "torch", "head": None},
}
"""How the weights start, by the code that does it so: branches, class token, stem, head."""


def vit(
    *,
    name: str = "vit",
    image: Size = (224, 224),
    channels: int = 3,
    classes: int = 1000,
    patch: Size = (16, 16),
    dim: int = 192,
    depth: int = 12,
    heads: int | None = None,
    ratio: float = 4.0,
    gelu: Literal["erf", "tanh"] = "erf",
    qkv_bias: bool = True,
    class_token: bool = True,
    class_position: bool = True,
    pool: Literal["token", "mean"] = "token",
    pool_first: bool | None = None,
    distilled: bool = False,
    pre_logits: int = 0,
    layer_scale: float | None = None,
    init: Literal["jax", "timm", "deit", "moco"] = "jax",
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    drop_path: float = 0.0,
    drop_path_schedule: Literal["linear", "constant"] = "linear",
) -> BackboneConfig:
    """The config of a ViT.

    Args:
        heads: None: 64 channels each, or the next width that divides dim.
        ratio: width of the channel MLP over dim.
        class_token: False: patches alone, with pool="mean" (big_vision's default).
        class_position: False: the class token has no position, it is added after them (big_vision, DeiT III).
        pool: what is read out: the class token, or the mean over the patches.
        pool_first: whether the last norm stands behind the mean (timm) or in front (vit_jax, big_vision); None: behind.
        distilled: DeiT's second token and second head, for the labels of a teacher.
        pre_logits: width of a tanh layer in front of the head; 0: none.
        layer_scale: start of a factor per channel on each branch; None: no factor. DeiT III has 1e-6.
        init: whose start of the weights, see `STARTS`.
        dropout: behind the positions, the attention and in both places of the MLP, as in vit_jax and DeiT.
        attention_dropout: of the attention's weights.
        drop_path: linear: rising from 0 to it. constant: the same everywhere, as in DeiT III.

    Raises `UsageError` for a read-out that contradicts itself.
    """
    if init not in STARTS:
        raise unknown("init", init, STARTS)
    if pool == "token" and pool_first is not None:
        raise UsageError("pool_first is about pool='mean'; for a single token the order changes nothing")
    if distilled and (pool != "token" or pre_logits):
        raise UsageError("a distilled model reads its two tokens with two linear heads: no pool='mean', no pre_logits")
    start = STARTS[init]
    act = {"none": "gelu", "tanh": "gelu_tanh"}[gelu_form(gelu)]
    attention = {"heads": head_count(dim, heads, width=64), "qkv_bias": qkv_bias, "out_bias": True}
    branches = (
        BranchConfig(mixer="attention", options=attention | {"dropout": attention_dropout, "out_dropout": dropout}),
        BranchConfig(mixer="mlp", options={"ratio": ratio, "act": act, "out_bias": True, "dropout": dropout}),
    )
    return BackboneConfig(
        name=name,
        image=pair(image),
        channels=channels,
        classes=classes,
        patch=pair(patch),
        stem_init=start["stem"],
        stages=(StageConfig(depth=depth, dim=dim, branches=branches),),
        positions="learned",
        prefix_positions=class_position,
        position_dropout=dropout,
        class_token=class_token,
        class_token_std=start["class_token_std"],
        distill_token=distilled,
        pool="prefix" if distilled else pool,
        pool_first=pool == "mean" and pool_first is not False,
        head="distilled" if distilled else "hidden" if pre_logits else "linear",
        head_options={"std": start["head"]} | ({"hidden": pre_logits} if pre_logits else {}),
        init=start["init"],
        layer_scale=layer_scale,
        drop_path=drop_path,
        drop_path_schedule=drop_path_schedule,
    )


TINY, SMALL, BASE = {"dim": 192}, {"dim": 384}, {"dim": 768}
LARGE, HUGE = {"dim": 1024, "depth": 24}, {"dim": 1280, "depth": 32, "heads": 16}
DEIT = {"init": "deit"}
DEIT3 = {"init": "deit", "layer_scale": 1e-6, "class_position": False, "drop_path_schedule": "constant"}

VARIANTS: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": TINY,
    "vit_small_patch16_224": SMALL,
    "vit_small_patch32_224": SMALL | {"patch": 32},
    "vit_base_patch16_224": BASE,
    "vit_base_patch16_384": BASE | {"image": 384},
    "vit_base_patch32_224": BASE | {"patch": 32},
    "vit_base_patch8_224": BASE | {"patch": 8},
    "vit_large_patch16_224": LARGE,
    "vit_large_patch32_224": LARGE | {"patch": 32},
    "vit_huge_patch14_224": HUGE | {"patch": 14},
    "deit_tiny_patch16_224": TINY | DEIT,
    "deit_small_patch16_224": SMALL | DEIT,
    "deit_base_patch16_224": BASE | DEIT,
    "deit_base_patch16_384": BASE | DEIT | {"image": 384},
    "deit_tiny_distilled_patch16_224": TINY | DEIT | {"distilled": True},
    "deit_small_distilled_patch16_224": SMALL | DEIT | {"distilled": True},
    "deit_base_distilled_patch16_224": BASE | DEIT | {"distilled": True},
    "deit_base_distilled_patch16_384": BASE | DEIT | {"image": 384, "distilled": True},
    "deit3_small_patch16_224": SMALL | DEIT3,
    "deit3_medium_patch16_224": {"dim": 512} | DEIT3,
    "deit3_base_patch16_224": BASE | DEIT3,
    "deit3_large_patch16_224": LARGE | DEIT3,
    "deit3_huge_patch14_224": HUGE | DEIT3 | {"patch": 14},
}
register_variants(vit, VARIANTS)
