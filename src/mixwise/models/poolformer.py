"""PoolFormer: average pooling in place of attention; and the hybrids of its ablation.

    conv 7 × 7, stride 4 → 4 stages of [x + γ1 · pool(norm(x)), x + γ2 · mlp(norm(x))], conv 3 × 3 in between
    → norm → mean → linear

Source: Yu et al., "MetaFormer Is Actually What You Need for Vision", arXiv 2111.11418, section 3 and tables 1, 2 and 5;
code and weights of sail-sg/poolformer.

| preset              | depths     | dims               | γ    | parameters | GMACs  | ImageNet-1k top-1        |
|---------------------|------------|--------------------|------|------------|--------|--------------------------|
| poolformer_s12      | 2 2 6 2    | 64 128 320 512     | 1e-5 | 11,915,176 | 1.812  | 77.2 (paper), 77.24 timm |
| poolformer_s24      | 4 4 12 4   | 64 128 320 512     | 1e-5 | 21,388,968 | 3.392  | 80.3 (paper), 80.29 timm |
| poolformer_s36      | 6 6 18 6   | 64 128 320 512     | 1e-6 | 30,862,760 | 4.972  | 81.4 (paper), 81.43 timm |
| poolformer_m36      | 6 6 18 6   | 96 192 384 768     | 1e-6 | 56,172,520 | 8.759  | 82.1 (paper), 82.10 timm |
| poolformer_m48      | 8 8 24 8   | 96 192 384 768     | 1e-6 | 73,473,448 | 11.533 | 82.5 (paper), 82.46 timm |
| metaformer_id_s12   | 2 2 6 2    | 64 128 320 512     | 1e-5 | 11,915,176 | 1.812  | 74.3 (paper, table 5)    |
| metaformer_pppa_s12 | 2 2 6 2    | 64 128 320 512     | 1e-5 | 14,038,440 | 1.920  | 78.3 (paper, table 5)    |
| metaformer_ppaa_s12 | 2 2 6 2    | 64 128 320 512     | 1e-5 | 16,535,592 | 2.549  | 81.0 (paper, table 5)    |
| metaformer_pppf_s12 | 2 2 6 2    | 64 128 320 512     | 1e-5 | 11,919,978 | 1.815  | 77.5 (paper, table 5)    |
| metaformer_ppff_s12 | 2 2 6 2    | 64 128 320 512     | 1e-5 | 12,150,474 | 1.888  | 77.9 (paper, table 5)    |

All trained on ImageNet-1k alone; "timm" is timm's own measurement of its copy of the weights. The patch (total stride
of the stem) is 4. The letters of a hybrid are its stages: P pooling, A attention with learned positions in front of the
first such stage, F a linear layer along the tokens without bias. id, pppf and ppff have the norm of PoolFormer in all
stages, pppa and ppaa a layer norm per token. Those with A or F belong to one image size. GMACs: convolutions and matrix
products.

The norm takes mean and variance over tokens and channels together: GroupNorm with one group, which is not LayerNorm.
The shift of the norm in front of a pooling has no effect (pool(x) - x removes any constant per channel); it is kept,
because the papers' counts have it.

Differs: nothing by default. timm reads out in another order, mean before norm and a layer norm with eps 1e-6
(`readout="timm"`), so its logits differ for equal weights; and all its convolutions start as a truncated normal
(`stem_init="normal"`), where the authors leave stem and downsampling at torch's own start.
"""

from typing import Any, Literal

from mixwise.config import BackboneConfig, Size, pair
from mixwise.errors import UsageError, unknown
from mixwise.models.registry import register_variants


def per_stage(option: str, value: Any, stages: int) -> tuple[Any, ...]:
    """One entry a stage: a sequence as it is, checked; a single value for all.

    >>> per_stage("ratio", 4.0, 2)
    (4.0, 4.0)
    """
    values = tuple(value) if isinstance(value, list | tuple) else (value,) * stages
    if len(values) != stages:
        raise UsageError(f"{option} needs one entry for each of the {stages} stages, got {value}")
    return values


def poolformer(
    *,
    name: str = "poolformer",
    image: Size = (224, 224),
    channels: int = 3,
    classes: int = 1000,
    patch: Size = (4, 4),
    depths: tuple[int, ...] = (2, 2, 6, 2),
    dims: tuple[int, ...] = (64, 128, 320, 512),
    mixers: str | tuple[str, ...] = "pool",
    positions: tuple[bool, ...] | None = None,
    downsample: bool | tuple[bool, ...] = True,
    pool_size: int = 3,
    ratio: float | tuple[float, ...] = 4.0,
    norm: str = "group1",
    norm_eps: float = 1e-5,
    layer_scale: float | None = 1e-5,
    readout: Literal["official", "timm"] = "official",
    stem_init: Literal["torch", "normal"] = "torch",
    drop_path: float = 0.0,
) -> BackboneConfig:
    """The config of a PoolFormer or of a hybrid.

    Args:
        patch: stride of the stem.
        depths, dims: blocks and width of each stage.
        mixers: token mixer of each stage (the paper has pool, identity, attention and linear); one for all.
        positions: where learned positions stand in front of a stage; None: in front of the first with attention.
        downsample: whether a stage halves the grid of the one before; the first entry means nothing.
        pool_size: side of the window; the paper's ablation has 5, 7 and 9 too.
        ratio: width of the channel MLP over dim.
        norm: group1; the ablation also has layer, batch and none.
        norm_eps: of all norms.
        layer_scale: γ at the start; None: none.
        readout: official is norm → mean, timm is mean → layer norm with eps 1e-6.
        stem_init: whether stem and downsampling start at torch's own start (the authors) or as all others (timm).
    """
    if readout not in ("official", "timm"):
        raise unknown("readout", readout, ("official", "timm"))
    stages = len(depths)
    kinds = per_stage("mixers", mixers, stages)
    if pool_size != 3 and "pool" not in kinds:
        raise UsageError(f"pool_size={pool_size} belongs to the mixer 'pool', and the mixers are {kinds}")
    first = tuple("attention" in kinds and i == kinds.index("attention") for i in range(stages))
    places = per_stage("positions", first if positions is None else positions, stages)
    halved, ratios = per_stage("downsample", downsample, stages), per_stage("ratio", ratio, stages)
    options = {"pool": {"size": pool_size}, "attention": {"out_bias": True}, "linear": {"bias": False}}
    return BackboneConfig.parse(
        {
            "name": name,
            "image": pair(image),
            "channels": channels,
            "classes": classes,
            "patch": pair(patch),
            "stem_options": {"kernel": 7, "padding": 2},
            "stages": [
                {
                    "depth": depth,
                    "dim": dim,
                    "branches": [
                        {"mixer": kinds[i], "options": options.get(kinds[i], {})},
                        {"mixer": "mlp", "options": {"ratio": ratios[i], "out_bias": True}},
                    ],
                    "downsample": "patch" if halved[i] else "none",
                    "downsample_options": {"kernel": 3, "padding": 1} if halved[i] else {},
                    "positions": places[i],
                }
                for i, (depth, dim) in enumerate(zip(depths, per_stage("dims", dims, stages), strict=True))
            ],
            "norm": norm,
            "norm_eps": norm_eps,
            "norm_bias": True,
            "layer_scale": layer_scale,
            "init": "normal",
            "stem_init": stem_init,
            "drop_path": drop_path,
        }
        | ({"final_norm": "layer", "final_eps": 1e-6, "pool_first": True} if readout == "timm" else {})
    )


S36 = {"depths": (6, 6, 18, 6), "layer_scale": 1e-6}
MEDIUM = {"dims": (96, 192, 384, 768), "layer_scale": 1e-6}
P, A, F = "pool", "attention", "linear"
VARIANTS: dict[str, dict[str, Any]] = {
    "poolformer_s12": {},
    "poolformer_s24": {"depths": (4, 4, 12, 4)},
    "poolformer_s36": S36,
    "poolformer_m36": S36 | MEDIUM,
    "poolformer_m48": MEDIUM | {"depths": (8, 8, 24, 8)},
    "metaformer_id_s12": {"mixers": "identity"},
    "metaformer_pppa_s12": {"mixers": (P, P, P, A), "norm": "layer"},
    "metaformer_ppaa_s12": {"mixers": (P, P, A, A), "norm": "layer"},
    "metaformer_pppf_s12": {"mixers": (P, P, P, F)},
    "metaformer_ppff_s12": {"mixers": (P, P, F, F)},
}
register_variants(poolformer, VARIANTS)
