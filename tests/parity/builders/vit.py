"""ViT of timm and of vit_jax."""

from mixwise.config import BackboneConfig, pair
from mixwise.models.vit import vit
from parity.case import Case, Vector, builder, channels_last, from_format, map_tokens, tokens


def inter(config: BackboneConfig) -> dict:
    """Where the intermediates are; timm's `norm` does nothing in a model that normalises behind the mean."""
    last = f"stages.0.blocks.{config.stages[0].depth - 1}"
    return {
        "stem": ("stem", map_tokens),
        "block0": ("stages.0.blocks.0", tokens),
        "pre_head": (last if config.pool_first else "norm", tokens),
    }


@builder("timm", "VisionTransformer")
def timm(vector: Vector) -> Case:
    a = dict(vector.arguments)
    config = vit(
        image=a.pop("img_size"),
        patch=pair(a.pop("patch_size")),
        classes=a.pop("num_classes"),
        dim=a.pop("embed_dim"),
        depth=a.pop("depth"),
        heads=a.pop("num_heads"),
        ratio=a.pop("mlp_ratio", 4.0),
        qkv_bias=a.pop("qkv_bias", True),
        layer_scale=a.pop("init_values", None),
        class_token=a.pop("class_token", True),
        class_position=not a.pop("no_embed_class", False),
        pool={"token": "token", "avg": "mean"}[a.pop("global_pool", "token")],
    )
    assert not a, f"arguments without a meaning here: {a}"
    return from_format("timm_vit", config, inter=inter(config))


@builder("timm", "VisionTransformerDistilled")
def timm_distilled(vector: Vector) -> Case:
    a = vector.arguments
    config = vit(
        image=a["img_size"],
        patch=pair(a["patch_size"]),
        classes=a["num_classes"],
        dim=a["embed_dim"],
        depth=a["depth"],
        heads=a["num_heads"],
        ratio=a.get("mlp_ratio", 4.0),
        distilled=True,
    )
    return from_format("timm_vit", config, inter=inter(config))


@builder("vit_jax_vit", "VisionTransformer")
def google(vector: Vector) -> Case:
    a = vector.arguments
    t = a["transformer"]
    mean = {"token": False, "gap": True}[a.get("classifier", "token")]
    config = vit(
        image=vector.size,
        patch=pair(a["patches"]["size"]),
        classes=a["num_classes"],
        dim=a["hidden_size"],
        depth=t["num_layers"],
        heads=t["num_heads"],
        ratio=t["mlp_dim"] / a["hidden_size"],
        gelu="tanh",
        class_token=not mean,
        pool="mean" if mean else "token",
        pool_first=False if mean else None,
        pre_logits=a.get("representation_size") or 0,
    )
    return from_format(
        "google_vit",
        config,
        run=lambda module, x: module(x.permute(0, 3, 1, 2)),
        inter=inter(config) | {"stem": ("stem", channels_last)},
    )
