"""EAMLP and T2T-ViT: a tokens-to-token stem, then blocks of multi-head external attention or of self-attention.

    t2t → class token, sinusoids → 7–24 × [x + mix(norm(x)), x + mlp(norm(x))] → norm → class token → linear

Sources: Guo et al., "Beyond Self-attention: External Attention", arXiv 2105.02358, and its code (EAMLP, T2T-ViT with
external attention); Yuan et al., "Tokens-to-Token ViT", arXiv 2101.11986, section 3 (T2T-ViT, the control).

| preset | stem | blocks, heads | dim | depth | parameters | GMACs | ImageNet-1k top-1 |
|---|---|---|---|---|---|---|---|
| eamlp_7_224 | external | external, 16 | 256 | 7 | 6,096,206 | 1.465 | 71.66 at 384 pixels (log of the released run) |
| eamlp_10_224 | external | external, 16 | 256 | 10 | 8,489,678 | 2.007 | – |
| eamlp_12_224 | external | external, 16 | 256 | 12 | 10,085,326 | 2.369 | – |
| eamlp_14_224 | external | external, 24 | 384 | 14 | 29,801,422 | 6.450 | 78.9 (quoted by Vision Permutator) |
| eamlp_19_224 | external | external, 28 | 448 | 19 | 54,470,798 | 11.598 | 79.4 (quoted by Vision Permutator) |
| eamlp_24_224 | external | external, 32 | 512 | 24 | 89,355,726 | 18.820 | – |
| t2t_ea_7_224 | external | attention, 4 | 256 | 7 | 4,195,790 | 1.062 | – |
| t2t_ea_14_224 | external | attention, 6 | 384 | 14 | 21,405,902 | 4.699 | 81.7 (quoted by hyper.ai) |
| t2t_ea_19_224 | external | attention, 7 | 448 | 19 | 39,025,166 | 8.395 | – |
| t2t_vit_7_224 | performer | attention, 4 | 256 | 7 | 4,255,694 | 1.147 | 71.7 (T2T-ViT's repository) |
| t2t_vit_14_224 | performer | attention, 6 | 384 | 14 | 21,465,806 | 4.783 | 81.5 (T2T-ViT's repository) |
| t2t_vit_19_224 | performer | attention, 7 | 448 | 19 | 39,085,070 | 8.480 | 81.9 (T2T-ViT's repository) |
| t2t_vit_t_14_224 | attention | attention, 6 | 384 | 14 | 21,465,422 | 6.089 | – |

All were trained on ImageNet-1k alone; weights were released for EAMLP-7 at 384 pixels and for T2T-ViT.

Parameters are those that are trained. The authors' code stores the fixed position table among them, 197 · dim numbers
at 224 pixels, and so has 6,146,638 for eamlp_7_224, 50,432 more; here the table is computed, for any image size.
T2T-ViT's code also stores the random features of its performer, 4,096 numbers in all that are not trained (a buffer
here): with both, 21,545,550 for t2t_vit_14_224. Its stem has performer attention, as the model of that name in the
authors' code; `t2t_vit_t_14_224` is their variant with self-attention there.

EAMLP-7 needs 384 pixels and 4.293 GMACs, about four times as many, to reach what T2T-ViT-7 reaches at 224: attention
can be left out altogether, at a price. Multi-head external attention costs more than self-attention below
2 · dim + 256 tokens.

Differs: the outputs are those of the authors' code, which takes square images only. It has biases that cannot matter
(in front of the slot logits) and adds 1e-9 to the sum over slots (`eps`; None: as in the paper's formula, without). The
hybrid `t2t_ea_*` is the first version of the paper; the released code has no switch for it. A variant with batch norm
(`norm="batch"`) is said to be in the paper, but is not in the code.
"""

from typing import Any, Literal

from mixwise.config import BackboneConfig, BranchConfig, Size
from mixwise.mixers.attention import head_count
from mixwise.models.registry import register_variants


def _model(
    *,
    name: str,
    image: Size,
    channels: int,
    classes: int,
    dim: int,
    depth: int,
    ratio: float,
    mix: BranchConfig,
    stem: dict[str, Any],
    norm: str,
    drop_path: float,
) -> BackboneConfig:
    branches = (mix, BranchConfig(mixer="mlp", options={"ratio": ratio, "out_bias": True}))
    return BackboneConfig.parse(
        {
            "name": name,
            "image": image,
            "channels": channels,
            "classes": classes,
            "stem": "t2t",
            "stem_options": {**stem, "norm_eps": 1e-5},
            "stages": ({"depth": depth, "dim": dim, "branches": branches},),
            "norm": norm,
            "norm_eps": 1e-5,
            "positions": "sinusoid",
            "class_token": True,
            "pool": "token",
            "drop_path": drop_path,
            "init": "normal",
        }
    )


def _external_stem(width: int, memory: int, eps: float | None, dropout: float) -> dict[str, Any]:
    options = {"memory": memory, "eps": eps}
    return {"mixer": "external_attention", "options": options, "width": width, "dropout": dropout}


def _self_attention(dim: int, heads: int | None) -> BranchConfig:
    return BranchConfig(mixer="attention", options={"heads": head_count(dim, heads, width=64), "out_bias": True})


def eamlp(
    *,
    name: str = "eamlp",
    image: Size = (224, 224),
    channels: int = 3,
    classes: int = 1000,
    dim: int = 384,
    depth: int = 14,
    heads: int | None = None,
    coef: int = 4,
    memory: int | None = None,
    ratio: float = 3.0,
    eps: float | None = 1e-9,
    token_width: int = 64,
    token_memory: int = 128,
    token_dropout: float = 0.1,
    norm: str = "layer",
    drop_path: float = 0.1,
) -> BackboneConfig:
    """The config of an EAMLP.

    Args:
        heads: of a block before widening by coef; None: 64 wide.
        coef: how many times wider the blocks' external attention is.
        memory: slots of a block; None: 256 // coef.
        ratio: width of the channel MLP over dim.
        eps: added to every sum over slots; None: nothing.
        token_width, token_memory: channels and slots of the stem.
        token_dropout: in the stem; the code's variants `T2t_vit_t_*` have 0 and are otherwise the same.
    """
    options = {"heads": head_count(dim, heads, width=64), "coef": coef, "memory": memory, "eps": eps, "bias": True}
    return _model(
        name=name,
        image=image,
        channels=channels,
        classes=classes,
        dim=dim,
        depth=depth,
        ratio=ratio,
        mix=BranchConfig(mixer="multihead_external_attention", options=options, norm_bias=True),
        stem=_external_stem(token_width, token_memory, eps, token_dropout),
        norm=norm,
        drop_path=drop_path,
    )


def t2t_ea(
    *,
    name: str = "t2t_ea",
    image: Size = (224, 224),
    channels: int = 3,
    classes: int = 1000,
    dim: int = 384,
    depth: int = 14,
    heads: int | None = None,
    ratio: float = 3.0,
    eps: float | None = 1e-9,
    token_width: int = 64,
    token_memory: int = 128,
    token_dropout: float = 0.1,
    norm: str = "layer",
    drop_path: float = 0.1,
) -> BackboneConfig:
    """The config of a T2T-ViT with external attention in the stem alone; arguments as in `eamlp`."""
    return _model(
        name=name,
        image=image,
        channels=channels,
        classes=classes,
        dim=dim,
        depth=depth,
        ratio=ratio,
        mix=_self_attention(dim, heads),
        stem=_external_stem(token_width, token_memory, eps, token_dropout),
        norm=norm,
        drop_path=drop_path,
    )


def t2t_vit(
    *,
    name: str = "t2t_vit",
    image: Size = (224, 224),
    channels: int = 3,
    classes: int = 1000,
    dim: int = 384,
    depth: int = 14,
    heads: int | None = None,
    ratio: float = 3.0,
    token_mixer: Literal["performer", "attention"] = "performer",
    token_width: int = 64,
    norm: str = "layer",
    drop_path: float = 0.1,
) -> BackboneConfig:
    """The config of a T2T-ViT without external attention.

    Args:
        heads: None: 64 wide.
        ratio: width of the channel MLP over dim.
        token_mixer: of the stem: performer (the models without a letter) or attention (those with `t`).
        token_width: channels of the stem.
    """
    rate = 0.1 if token_mixer == "performer" else 0.0
    return _model(
        name=name,
        image=image,
        channels=channels,
        classes=classes,
        dim=dim,
        depth=depth,
        ratio=ratio,
        mix=_self_attention(dim, heads),
        stem={"mixer": token_mixer, "width": token_width, "dropout": rate, "mlp_dropout": rate},
        norm=norm,
        drop_path=drop_path,
    )


SIZES: dict[int, dict[str, Any]] = {
    7: {"dim": 256, "depth": 7, "ratio": 2.0},
    10: {"dim": 256, "depth": 10, "ratio": 2.0},
    12: {"dim": 256, "depth": 12, "ratio": 2.0},
    14: {"dim": 384, "depth": 14, "ratio": 3.0},
    19: {"dim": 448, "depth": 19, "ratio": 3.0},
    24: {"dim": 512, "depth": 24, "ratio": 3.0},
}
"""Width, depth and MLP ratio by the number in the name."""

register_variants(eamlp, {f"eamlp_{n}_224": SIZES[n] for n in SIZES})
register_variants(t2t_ea, {f"t2t_ea_{n}_224": SIZES[n] for n in (7, 14, 19)})
register_variants(t2t_vit, {f"t2t_vit_{n}_224": SIZES[n] for n in (7, 14, 19)})
register_variants(t2t_vit, {"t2t_vit_t_14_224": {**SIZES[14], "token_mixer": "attention"}})
