"""House models `<mixer>_{nano,tiny,small,base}`: one skeleton for every token mixer, so that only the mixer differs.

    conv stem → stages of [token mixer, channel MLP] blocks, batch norm → ReLU → mean → layer norm → linear head

| size  | pyramid: depths | dims         | isotropic: depth | dim |
|-------|-----------------|--------------|------------------|-----|
| nano  | 1, 2, 1         | 32, 64, 128  | 4                | 64  |
| tiny  | 2, 4, 2         | 48, 96, 192  | 8                | 128 |
| small | 2, 6, 2         | 64, 128, 256 | 12               | 192 |
| base  | 3, 9, 3         | 96, 192, 384 | 12               | 384 |

They are for comparing mixers, on small data too: hence the overlapping stem and batch norm. Positions are fixed
sine-cosine tables, so that mixers that are blind to order are not handicapped and no weight depends on the image size
unless the mixer's own do.

The layer norm after the mean is what lets isotropic models learn in few steps. Behind a batch norm a token has
variance 1, but the mean over many tokens varies little from picture to picture, and a head that starts small makes next
to nothing of it. Mean → layer norm → head is the order of ConvNeXt (Liu et al., arXiv 2201.03545).
"""

from typing import Any, Literal, NamedTuple

from mixwise.config import BackboneConfig, BranchConfig, Size, StageConfig, pair
from mixwise.errors import unknown


class Scale(NamedTuple):
    """Depths and widths of a size of house model."""

    depths: tuple[int, ...]
    dims: tuple[int, ...]
    depth: int
    dim: int
    drop_path: float


SCALES = {
    "nano": Scale((1, 2, 1), (32, 64, 128), 4, 64, 0.0),
    "tiny": Scale((2, 4, 2), (48, 96, 192), 8, 128, 0.05),
    "small": Scale((2, 6, 2), (64, 128, 256), 12, 192, 0.1),
    "base": Scale((3, 9, 3), (96, 192, 384), 12, 384, 0.2),
}


def default_patch(image: Size) -> Size:
    """The largest power of two per axis that still leaves at least 12 tokens: 8 → 1, 32 → 2, 128 → 8, 224 → 16."""

    def patch(side: int) -> int:
        p = 1
        while side / (2 * p) >= 12:
            p *= 2
        return p

    return patch(image[0]), patch(image[1])


def house(
    mixer: str,
    size: str,
    *,
    image: Size = (128, 128),
    channels: int = 3,
    classes: int = 1000,
    patch: Size | None = None,
    layout: Literal["pyramid", "isotropic"] = "pyramid",
    norm: str = "batch",
    drop_path: float | None = None,
    options: dict[str, Any] | None = None,
    mlp_ratio: float = 4.0,
) -> BackboneConfig:
    """The config of a house model.

    Args:
        mixer: name of the token mixer.
        size: nano, tiny, small or base.
        image: (height, width), or one side.
        patch: total stride of the stem; None: `default_patch(image)`.
        layout: pyramid (three stages, each on a grid half as fine) or isotropic (one stage).
        options: the mixer's own options.
    """
    scale, image = SCALES[size], pair(image)
    if layout not in ("pyramid", "isotropic"):
        raise unknown("layout", layout, ("pyramid", "isotropic"))
    branches = (
        BranchConfig(mixer=mixer, options=options or {}),
        BranchConfig(mixer="mlp", options={"ratio": mlp_ratio}),
    )
    if layout == "pyramid":
        stages = tuple(
            StageConfig(depth=depth, dim=dim, branches=branches)
            for depth, dim in zip(scale.depths, scale.dims, strict=True)
        )
    else:
        stages = (StageConfig(depth=scale.depth, dim=scale.dim, branches=branches),)
    return BackboneConfig.parse(
        {
            "name": f"{mixer}_{size}",
            "image": image,
            "channels": channels,
            "classes": classes,
            "stem": "conv",
            "patch": patch or default_patch(image),
            "stages": stages,
            "norm": norm,
            "final_act": "relu",
            "pooled_norm": "layer",
            "positions": "sincos",
            "drop_path": scale.drop_path if drop_path is None else drop_path,
        }
    )
