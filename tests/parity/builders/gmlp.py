"""gMLP and aMLP of lucidrains, images and text."""

from mixwise.config import pair
from mixwise.models.gmlp import gmlp
from mixwise.models.gmlp_text import gmlp_text
from parity.case import Case, Vector, builder, from_format, map_tokens, tokens


def _common(vector: Vector) -> dict:
    a = vector.arguments
    assert a.get("heads", 1) == 1, "gates with several heads have no equal here"
    return {
        "dim": a["dim"],
        "depth": a["depth"],
        "ratio": float(a.get("ff_mult", 4)),
        "tiny_attention": a.get("attn_dim") or 0,
        "gate_init": "uniform",
        "norm_eps": 1e-5,
    }


@builder("gmlp", "gMLPVision")
def vision(vector: Vector) -> Case:
    a = vector.arguments
    config = gmlp(
        image=pair(a["image_size"]),
        patch=pair(a["patch_size"]),
        classes=a["num_classes"],
        channels=a.get("channels", 3),
        **_common(vector),
    )
    inter = {"stem": ("stem", map_tokens), "block0": ("stages.0.blocks.0", tokens), "pre_head": ("norm", tokens)}
    return from_format("lucidrains_gmlp", config, inter=inter)


@builder("gmlp", "gMLP")
def text(vector: Vector) -> Case:
    a = vector.arguments
    assert not a.get("circulant_matrix"), "a lower triangular W has no equal here"
    assert not a.get("shift_tokens"), "shifted tokens have no equal here"
    config = gmlp_text(
        vocabulary=a["num_tokens"],
        length=a["seq_len"],
        causal=a.get("causal", False),
        toeplitz=False,
        head="linear",
        tied=False,
        **_common(vector),
    )
    inter = {"stem": ("embed", tokens), "block0": ("blocks.0", tokens), "pre_head": ("norm", tokens)}
    return from_format("lucidrains_gmlp_text", config, inter=inter)
