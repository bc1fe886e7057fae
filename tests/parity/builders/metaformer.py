"""PoolFormer v1, the hybrids, the MetaFormer baselines; the authors' code and timm's."""

from typing import Any

from mixwise.assemble import stage_grids
from mixwise.models.metaformer import VARIANTS, metaformer
from mixwise.models.poolformer import poolformer
from parity.case import Case, Vector, builder, channels_last, first, from_format, tokens

MIXERS = {"Pooling": "pool", "Identity": "identity", "Attention": "attention", "SpatialFc": "linear"}
NORMS = {"GroupNorm": "group1", "LayerNormChannel": "layer", "BatchNorm2d": "batch", "Identity": "none"}
V1 = {"layers", "embed_dims", "mlp_ratios", "downsamples", "num_classes", "pool_size", "use_layer_scale"}
HYBRID = {"token_mixers", "norm", "add_pos_embs"}
BASELINE = {"depths", "dims", "num_classes", "num_tokens"}


def as_map(x: Any) -> Any:
    """Tokens as (b, c, n): the official map with its rows strung together."""
    return x.transpose(1, 2)


MAPS = {
    "stem": ("stem", lambda x: x),
    "stage0": ("stages.0", lambda x: as_map(first(x))),
    "features": ("stages.3", lambda x: as_map(first(x))),
    "pre_head": ("norm", as_map),
}
LAST = {
    "stem": ("stem", channels_last),
    "block0": ("stages.0.blocks.0", tokens),
    "features": ("stages.3", first),
    "pre_head": ("norm", tokens),
}


def named(mixer: str | dict[str, Any]) -> str:
    return MIXERS[mixer if isinstance(mixer, str) else mixer["name"]]


def v1_arguments(vector: Vector) -> dict[str, Any]:
    a = vector.arguments
    wider = [before != after for before, after in zip(a["embed_dims"], a["embed_dims"][1:], strict=False)]
    return {
        "image": vector.size,
        "depths": a["layers"],
        "dims": a["embed_dims"],
        "ratio": a["mlp_ratios"],
        "downsample": (True, *(asked or forced for asked, forced in zip(a["downsamples"], wider, strict=False))),
        "classes": a["num_classes"],
        "pool_size": a.get("pool_size", 3),
        "layer_scale": 1e-5 if a.get("use_layer_scale", True) else None,
    }


@builder("poolformer", "PoolFormer")
def v1(vector: Vector) -> Case:
    assert set(vector.arguments) <= V1
    return from_format("poolformer", poolformer(**v1_arguments(vector)), inter=MAPS)


@builder("poolformer", "MetaFormer")
def hybrid(vector: Vector) -> Case:
    a = vector.arguments
    assert set(a) <= V1 | HYBRID
    embeddings = a["add_pos_embs"] or [None] * len(a["layers"])
    config = poolformer(
        **v1_arguments(vector),
        mixers=tuple(map(named, a["token_mixers"])),
        positions=tuple(e is not None for e in embeddings),
        norm=NORMS[a["norm"]],
    )
    grids = stage_grids(config)
    assert all(e is None or tuple(e) == grid for e, grid in zip(embeddings, grids, strict=True))
    return from_format("poolformer", config, inter=MAPS)


@builder("metaformer", "MetaFormer")
def baseline(vector: Vector) -> Case:
    a = vector.arguments
    assert set(a) <= BASELINE
    return from_format(
        "metaformer",
        metaformer(**preset(vector)),
        inter=LAST,
        frozen=lambda name: vector.meta["variant"] == "randformer" and name.endswith(".0.mixer.weight"),
    )


@builder("timm", "MetaFormer")
def timm(vector: Vector) -> Case:
    assert set(vector.arguments) <= BASELINE
    if vector.meta["variant"] == "poolformer":
        a = vector.arguments
        sizes = {"depths": a["depths"], "dims": a["dims"], "classes": a["num_classes"], "image": vector.size}
        return from_format("timm_metaformer", poolformer(**sizes, readout="timm"), inter=MAPS)
    values = preset(vector)
    values |= {"head_options": {"eps": 1e-6}} if values.get("head") == "mlp" else {}
    return from_format("timm_metaformer", metaformer(**values), inter=MAPS)


def preset(vector: Vector) -> dict[str, Any]:
    """The values of the variant's smallest preset, with the vector's sizes."""
    a = vector.arguments
    smallest = next(values for name, values in VARIANTS.items() if name.startswith(f"{vector.meta['variant']}_"))
    return smallest | {
        "image": vector.size,
        "depths": a["depths"],
        "dims": a["dims"],
        "classes": a["num_classes"],
    }
