"""The feed-forward-only model."""

from mixwise.config import pair
from mixwise.models.ff_only import ff_only
from parity.case import Case, Vector, builder, from_format, tokens


@builder("ffonly", "LinearVisionTransformer")
def official(vector: Vector) -> Case:
    a = vector.arguments
    config = ff_only(
        image=vector.size,
        patch=pair(a["patch_size"]),
        classes=a["num_classes"],
        dim=a["embed_dim"],
        depth=a["depth"],
        ratio=a["mlp_ratio"],
        token_ratio=a["mlp_ratio"],
        position_grid=tuple(a["learned_positional_encoding_size"]),
    )
    inter = {"stem": ("stem", tokens), "block0": ("stages.0.blocks.0", tokens), "pre_head": ("norm", tokens)}
    return from_format("ff_only", config, inter=inter)
