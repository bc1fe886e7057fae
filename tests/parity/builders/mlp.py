"""MLP-Mixer, ResMLP."""

from mixwise.config import pair
from mixwise.models.mlp_mixer import mlp_mixer
from mixwise.models.resmlp import resmlp
from parity.case import Case, Vector, builder, channels_last, from_format, map_tokens, tokens

ISOTROPIC = {"stem": ("stem", map_tokens), "block0": ("stages.0.blocks.0", tokens), "pre_head": ("norm", tokens)}


@builder("timm", "MlpMixer")
def timm(vector: Vector) -> Case:
    a = vector.arguments
    common = {"image": a["img_size"], "patch": a["patch_size"], "classes": a["num_classes"], "dim": a["embed_dim"]}
    if vector.meta["variant"] == "resmlp":
        config = resmlp(**common, depth=a["num_blocks"], ratio=a["mlp_ratio"])
        return from_format("timm_resmlp", config, inter=ISOTROPIC)
    hidden, ratio = a["mlp_ratio"]
    config = mlp_mixer(**common, depth=a["num_blocks"], tokens_hidden=round(hidden * a["embed_dim"]), ratio=ratio)
    return from_format("timm_mixer", config, inter=ISOTROPIC)


@builder("resmlp", "resmlp_models")
def deit(vector: Vector) -> Case:
    a = vector.arguments
    config = resmlp(
        image=a["img_size"],
        patch=a["patch_size"],
        classes=a["num_classes"],
        dim=a["embed_dim"],
        depth=a["depth"],
        layer_scale=a["init_scale"],
    )
    return from_format("deit_resmlp", config, inter=ISOTROPIC)


@builder("vit_jax_mixer", "MlpMixer")
def google(vector: Vector) -> Case:
    a = vector.arguments
    config = mlp_mixer(
        image=vector.size,
        patch=pair(a["patches"]["size"]),
        classes=a["num_classes"],
        dim=a["hidden_dim"],
        depth=a["num_blocks"],
        tokens_hidden=a["tokens_mlp_dim"],
        ratio=a["channels_mlp_dim"] / a["hidden_dim"],
        gelu="tanh",
    )
    return from_format(
        "google_mixer",
        config,
        run=lambda module, x: module(x.permute(0, 3, 1, 2)),
        inter=ISOTROPIC
        | {
            "stem": ("stem", channels_last),
            "token_mixing0": ("stages.0.blocks.0.0.mixer", lambda x: x.transpose(1, 2)),
        },
    )
