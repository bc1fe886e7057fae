"""MetaFormer baselines: IdentityFormer, RandFormer, PoolFormerV2, ConvFormer, CAFormer.

    conv 7 × 7, stride 4 → norm → 4 stages of [ρ1 · x + mixer(norm(x)), ρ2 · x + mlp(norm(x))], norm → conv 3 × 3 in
    between → mean → norm → linear or MLP head

Source: Yu et al., "MetaFormer Baselines for Vision", arXiv 2210.13452 (TPAMI 46(2), 2024), section 3; code and weights
of sail-sg/metaformer.

| preset             | depths    | dims            | parameters | GMACs  | ImageNet-1k top-1   |
|--------------------|-----------|-----------------|------------|--------|---------------------|
| identityformer_s12 | 2 2 6 2   | 64 128 320 512  | 11,891,712 | 1.812  | 74.6                |
| identityformer_s24 | 4 4 12 4  | 64 128 320 512  | 21,341,464 | 3.392  | 78.2                |
| identityformer_s36 | 6 6 18 6  | 64 128 320 512  | 30,791,216 | 4.972  | 79.3                |
| identityformer_m36 | 6 6 18 6  | 96 192 384 768  | 56,077,168 | 8.759  | 80.0                |
| identityformer_m48 | 8 8 24 8  | 96 192 384 768  | 73,346,056 | 11.533 | 80.4                |
| randformer_s12     | 2 2 6 2   | 64 128 320 512  | 11,891,712 | 1.888  | 76.6                |
| randformer_s24     | 4 4 12 4  | 64 128 320 512  | 21,341,464 | 3.545  | 78.2                |
| randformer_s36     | 6 6 18 6  | 64 128 320 512  | 30,791,216 | 5.201  | 79.5                |
| randformer_m36     | 6 6 18 6  | 96 192 384 768  | 56,077,168 | 9.035  | 81.2                |
| randformer_m48     | 8 8 24 8  | 96 192 384 768  | 73,346,056 | 11.902 | 81.4                |
| poolformerv2_s12   | 2 2 6 2   | 64 128 320 512  | 11,891,712 | 1.812  | 78.0                |
| poolformerv2_s24   | 4 4 12 4  | 64 128 320 512  | 21,341,464 | 3.392  | 80.7                |
| poolformerv2_s36   | 6 6 18 6  | 64 128 320 512  | 30,791,216 | 4.972  | 81.6                |
| poolformerv2_m36   | 6 6 18 6  | 96 192 384 768  | 56,077,168 | 8.759  | 82.2                |
| poolformerv2_m48   | 8 8 24 8  | 96 192 384 768  | 73,346,056 | 11.533 | 82.6                |
| convformer_s18     | 3 3 9 3   | 64 128 320 512  | 26,774,448 | 3.941  | 83.0; 83.7 from 21k |
| convformer_s36     | 3 12 18 3 | 64 128 320 512  | 40,012,152 | 7.640  | 84.1; 85.4 from 21k |
| convformer_m36     | 3 12 18 3 | 96 192 384 576  | 57,051,640 | 12.842 | 84.5; 86.1 from 21k |
| convformer_b36     | 3 12 18 3 | 128 256 512 768 | 99,882,616 | 22.629 | 84.8; 87.0 from 21k |
| caformer_s18       | 3 3 9 3   | 64 128 320 512  | 26,341,656 | 4.107  | 83.6; 84.1 from 21k |
| caformer_s36       | 3 12 18 3 | 64 128 320 512  | 39,297,102 | 7.972  | 84.5; 85.8 from 21k |
| caformer_m36       | 3 12 18 3 | 96 192 384 576  | 56,204,878 | 13.241 | 85.2; 86.6 from 21k |
| caformer_b36       | 3 12 18 3 | 128 256 512 768 | 98,753,614 | 23.160 | 85.5; 87.4 from 21k |

Accuracies: the authors' README, at 224 pixels, trained on ImageNet-1k alone; "from 21k": on ImageNet-21k first. The
patch (total stride of the stem) is 4. GMACs at 224, attention in full.

Stages 3 and 4 have factors ρ on the shortcuts, 1 and 2 do not. No layer in a block has a bias, no norm in front of a
branch a shift. The first three families normalise over tokens and channels together and have a linear head; ConvFormer
and CAFormer normalise each token and have an MLP head. RandFormer mixes by frozen matrices in stages 3 and 4, which its
parameters above leave out (235,298 numbers in S12, 941,192 in M48), and belongs to one image size. CAFormer has
attention there, with heads 32 wide whatever the width of the stage.

Differs: StarReLU starts at relu(x)² as in the authors' code; the paper derives other constants
(`act="star_relu_normal"`). The norm in the MLP head has eps 1e-5 as the authors' code; timm has 1e-6, and its dropout
stands in front of that head (`head_options`). The authors keep maps (b, h, w, c), which are the tokens here.
"""

from typing import Any, Literal

from mixwise.config import BackboneConfig, Size, pair
from mixwise.models.poolformer import per_stage
from mixwise.models.registry import register_variants


def metaformer(
    *,
    name: str = "metaformer",
    image: Size = (224, 224),
    channels: int = 3,
    classes: int = 1000,
    patch: Size = (4, 4),
    depths: tuple[int, ...] = (2, 2, 6, 2),
    dims: tuple[int, ...] = (64, 128, 320, 512),
    mixers: str | tuple[str, ...] = "pool",
    ratio: float = 4.0,
    act: Literal["star_relu", "star_relu_normal", "relu", "gelu"] = "star_relu",
    norm: str = "group1",
    norm_eps: float = 1e-6,
    layer_scale: float | None = None,
    res_scale: float | tuple[float | None, ...] | None = (None, None, 1.0, 1.0),
    head: Literal["linear", "mlp"] = "linear",
    head_options: dict[str, Any] | None = None,
    drop_path: float = 0.0,
) -> BackboneConfig:
    """The config of a MetaFormer baseline.

    Args:
        patch: stride of the stem.
        depths, dims: blocks and width of each stage.
        mixers: token mixer of each stage (the paper has identity, random, pool, separable_conv and attention); one for
            all.
        ratio: width of the channel MLP over dim.
        act: of the channel MLP and of the separable convolution. star_relu starts at relu(x)² as the authors' code,
            star_relu_normal where the paper derives it, 0.8944 relu(x)² - 0.4472.
        norm: in front of the branches, without a shift.
        norm_eps: of these norms.
        layer_scale: start of a factor on the branches; the paper's ablation compares it with res_scale.
        res_scale: start ρ of the factor on the shortcuts of each stage; None: no factor.
        head_options: of the head; for mlp: ratio, eps (authors 1e-5, timm 1e-6), dropout, input_dropout.
    """
    stages = len(depths)
    kinds, factors = per_stage("mixers", mixers, stages), per_stage("res_scale", res_scale, stages)
    options: dict[str, Any] = {"separable_conv": {"act": act}, "attention": {"head_dim": 32}}
    mlp = {"mixer": "mlp", "options": {"ratio": ratio, "act": act, "bias": False}}
    plain = {"norm_bias": False, "eps": 1e-6}
    return BackboneConfig.parse(
        {
            "name": name,
            "image": pair(image),
            "channels": channels,
            "classes": classes,
            "patch": pair(patch),
            "stem_options": {"kernel": 7, "padding": 2, "norm": "layer"} | plain,
            "stages": [
                {
                    "depth": depth,
                    "dim": dim,
                    "branches": [{"mixer": kinds[i], "options": options.get(kinds[i], {})}, mlp],
                    "downsample": "patch",
                    "downsample_options": {"kernel": 3, "padding": 1, "pre_norm": "layer"} | plain,
                    "res_scale": factors[i],
                }
                for i, (depth, dim) in enumerate(zip(depths, per_stage("dims", dims, stages), strict=True))
            ],
            "norm": norm,
            "norm_eps": norm_eps,
            "norm_bias": False,
            "final_norm": "layer",
            "final_eps": 1e-6,
            "pool_first": True,
            "layer_scale": layer_scale,
            "head": head,
            "head_options": head_options or {},
            "init": "normal",
            "stem_init": "normal",
            "drop_path": drop_path,
        }
    )


BASIC = {
    "identityformer": "identity",
    "randformer": ("identity", "identity", "random", "random"),
    "poolformerv2": "pool",
}
MEDIUM = (96, 192, 384, 768)
BASIC_SIZES: dict[str, dict[str, Any]] = {
    "s12": {},
    "s24": {"depths": (4, 4, 12, 4)},
    "s36": {"depths": (6, 6, 18, 6)},
    "m36": {"depths": (6, 6, 18, 6), "dims": MEDIUM},
    "m48": {"depths": (8, 8, 24, 8), "dims": MEDIUM},
}
COMMON = {
    "convformer": "separable_conv",
    "caformer": ("separable_conv", "separable_conv", "attention", "attention"),
}
COMMON_SIZES: dict[str, dict[str, Any]] = {
    "s18": {"depths": (3, 3, 9, 3)},
    "s36": {"depths": (3, 12, 18, 3)},
    "m36": {"depths": (3, 12, 18, 3), "dims": (96, 192, 384, 576)},
    "b36": {"depths": (3, 12, 18, 3), "dims": (128, 256, 512, 768)},
}
VARIANTS: dict[str, dict[str, Any]] = {
    **{f"{kind}_{size}": {"mixers": BASIC[kind]} | values for kind in BASIC for size, values in BASIC_SIZES.items()},
    **{
        f"{kind}_{size}": {"mixers": COMMON[kind], "norm": "layer", "head": "mlp"} | values
        for kind in COMMON
        for size, values in COMMON_SIZES.items()
    },
}
register_variants(metaformer, VARIANTS)
