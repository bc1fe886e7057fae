"""Feed-forward-only ViT: where ViT attends, an MLP along the tokens; and the reverse, a model of attention alone.

    patches, class token → + positions → 12–24 × [x + mlp(norm(x)), x + token_mlp(norm_n(x))] → norm → token → linear

Channels come first, and the norm of the token half runs over the n tokens of each channel, with n scales and shifts.
n counts the class token: 197 at 224 pixels and patch 16, 50 at patch 32. The attention-only control has attention in
both halves: between tokens, then between the d channels, each seen as its n values.

Source: Melas-Kyriazi, "Do You Even Need Attention?", arXiv 2105.02723; code lukemelas/do-you-even-need-attention.

| preset                     | patch | dim  | depth | parameters  | GMACs  | ImageNet-1k top-1 (paper)              |
|----------------------------|-------|------|-------|-------------|--------|----------------------------------------|
| ff_tiny_16_224             | 16    | 192  | 12    | 7,676,332   | 1.442  | 61.4                                   |
| ff_base_16_224             | 16    | 768  | 12    | 61,943,020  | 14.132 | 74.9                                   |
| ff_large_32_224            | 32    | 1024 | 24    | 206,363,576 | 10.713 | 71.4 (never released)                  |
| attention_only_tiny_16_224 | 16    | 192  | 12    | 4,039,360   | 1.088  | 28.2 at epoch 100, stopped (no code)   |

Differs: the control was never released. It is rebuilt from what the report says of it (tiny, 4.0 M parameters) with
DeiT-Ti's sizes, tokens first, a norm over the tokens and one head for the channels (197 is prime); without the biases
of query, key and value (`qkv_bias=False`) it has 4,025,356 parameters. The model's README trains with dropout 0.1,
its report without (`dropout`; the presets have 0). Its code decays both position tensors by a slip of a name, where
DeiT spares them (`decay_positions` of the optimiser), and stores 14 × 14 positions whatever the grid, so
`ff_large_32_224` halves them bilinearly on every forward pass; `position_grid=None` stores the grid's own. All linear
layers start normal with std 0.02, the head too; the stem starts as torch has it (`stem_init="normal"`: as the
others). In the last block the second bias of the token MLP has no effect: it adds one number to all channels of the
class token, and the last norm removes it.
"""

from typing import Any, Literal

from mixwise.config import BackboneConfig, BranchConfig, Size, StageConfig, pair
from mixwise.models.registry import register_variants

COMMON: dict[str, Any] = {"positions": "learned", "class_token": True, "pool": "token", "init": "normal"}
"""What the model and its control share: a class token that is read out, and how layers start."""


def ff_only(
    *,
    name: str = "ff_only",
    image: Size = (224, 224),
    channels: int = 3,
    classes: int = 1000,
    patch: Size = (16, 16),
    dim: int = 192,
    depth: int = 12,
    ratio: float = 4.0,
    token_ratio: float = 4.0,
    position_grid: Size | None = None,
    stem_init: Literal["torch", "normal"] = "torch",
    dropout: float = 0.0,
    drop_path: float = 0.0,
) -> BackboneConfig:
    """The config of a feed-forward-only model.

    Args:
        ratio: width of the channel MLP over dim.
        token_ratio: width of the token MLP over the tokens, class token counted.
        position_grid: of the stored positions, stretched to the tokens' grid at run time; None: the tokens' own.
        stem_init: of the stem's convolution; normal: std 0.02 and no bias at the start, as all other layers.
        dropout: behind the positions and in both places of both MLPs.
        drop_path: rising linearly from 0 to it.
    """
    branches = (
        BranchConfig(mixer="mlp", options={"ratio": ratio, "out_bias": True, "dropout": dropout}),
        BranchConfig(mixer="feed_forward", norm="none", options={"ratio": token_ratio, "dropout": dropout}),
    )
    return BackboneConfig(
        name=name,
        image=pair(image),
        channels=channels,
        classes=classes,
        patch=pair(patch),
        stem_init=stem_init,
        stages=(StageConfig(depth=depth, dim=dim, branches=branches),),
        position_grid=None if position_grid is None else pair(position_grid),
        position_dropout=dropout,
        drop_path=drop_path,
        **COMMON,
    )


def attention_only(
    *,
    name: str = "attention_only",
    image: Size = (224, 224),
    channels: int = 3,
    classes: int = 1000,
    patch: Size = (16, 16),
    dim: int = 192,
    depth: int = 12,
    heads: int = 3,
    qkv_bias: bool = True,
    tokens_first: bool = True,
    drop_path: float = 0.0,
) -> BackboneConfig:
    """The config of the attention-only control.

    Args:
        heads: of the attention between tokens; the attention between channels has one.
        qkv_bias: biases of query, key and value, in both.
        tokens_first: False: channels attend before tokens do, as the feed-forward-only model mixes channels first.
        drop_path: rising linearly from 0 to it.
    """
    attention = {"heads": heads, "qkv_bias": qkv_bias, "out_bias": True}
    branches = (
        BranchConfig(mixer="attention", options=attention),
        BranchConfig(mixer="feature_attention", norm="none", options={"qkv_bias": qkv_bias}),
    )
    return BackboneConfig(
        name=name,
        image=pair(image),
        channels=channels,
        classes=classes,
        patch=pair(patch),
        stages=(StageConfig(depth=depth, dim=dim, branches=branches if tokens_first else branches[::-1]),),
        drop_path=drop_path,
        **COMMON,
    )


VARIANTS: dict[str, dict[str, Any]] = {
    "ff_tiny_16_224": {},
    "ff_base_16_224": {"dim": 768},
    "ff_large_32_224": {"patch": 32, "dim": 1024, "depth": 24, "position_grid": (14, 14)},
}
register_variants(ff_only, VARIANTS)
register_variants(attention_only, {"attention_only_tiny_16_224": {}})
