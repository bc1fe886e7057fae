"""ResMLP: one linear layer along the tokens and a channel MLP in turn; an affine map where others have a norm.

    patches → 12–36 × [x + γ1 · linear(affine(x)), x + γ2 · mlp(affine(x))] → affine → mean → linear

Source: Touvron et al., "ResMLP: Feedforward networks for image classification with data-efficient training",
arXiv 2105.03404, section 2 and tables 1 and 4; weights of facebookresearch/deit.

| preset | patch | dim | depth | γ at start | parameters | GMACs | ImageNet-1k top-1 (paper) |
|---|---|-----|---|---|---|---|---|
| resmlp_12_224 | 16 | 384 | 12 | 0.1 | 15,350,872 | 3.010 | 76.6, distilled 77.8 |
| resmlp_24_224 | 16 | 384 | 24 | 1e-5 | 30,020,680 | 5.961 | 79.4, distilled 80.8 |
| resmlp_36_224 | 16 | 384 | 36 | 1e-6 | 44,690,488 | 8.913 | 79.7, distilled 81.0 |
| resmlp_b24_224 | 16 | 768 | 24 | 1e-6 | 115,736,776 | 23.021 | 81.0 (never released) |
| resmlp_big_24_224 | 8 | 768 | 24 | 1e-6 | 129,138,280 | 100.231 | 81.0, distilled 83.6, ImageNet-22k 84.4 |
| resmlp_12_p14_224 | 14 | 384 | 12 | 0.1 | 15,607,912 | 3.984 | 76.9 |
| resmlp_12_p8_224 | 8 | 384 | 12 | 0.1 | 22,051,624 | 13.989 | 79.1 |

What the authors' code calls B24 has patch 8 (`resmlp_big_24_224`, timm's name); the paper's table has patch 16.

Differs: the paper's equations have a shift behind each branch, its listing and both codes only the factor γ; so has
this. All weights start as in the authors' code: truncated normal with deviation 0.02, the stem as torch's convolutions.
timm starts otherwise (Xavier, the head at zero). γ of the 12-layer models starts at 0.1 as the authors have it; timm
has 1e-4 (`layer_scale`).

Another resolution: the paper has no rule; `mixwise.resize` stretches the rows as filters (docs/resolution.md).
"""

from typing import Any

from mixwise.config import BackboneConfig, BranchConfig, Size, StageConfig, pair
from mixwise.models.registry import register_variants


def resmlp(
    *,
    name: str = "resmlp",
    image: Size = (224, 224),
    channels: int = 3,
    classes: int = 1000,
    patch: Size = (16, 16),
    dim: int = 384,
    depth: int = 12,
    layer_scale: float = 0.1,
    ratio: float = 4.0,
    norm: str = "affine",
    drop_path: float = 0.0,
) -> BackboneConfig:
    """The config of a ResMLP.

    Args:
        layer_scale: γ at the start.
        ratio: width of the channel MLP over dim.
        norm: affine; the paper's ablations also have layer (77.7 instead of 76.6 at 12 layers) and batch.
        drop_path: constant over the blocks, as in the authors' code.
    """
    branches = (BranchConfig(mixer="linear"), BranchConfig(mixer="mlp", options={"ratio": ratio, "out_bias": True}))
    return BackboneConfig(
        name=name,
        image=pair(image),
        channels=channels,
        classes=classes,
        patch=pair(patch),
        stages=(StageConfig(depth=depth, dim=dim, branches=branches),),
        norm=norm,
        init="normal",
        layer_scale=layer_scale,
        drop_path=drop_path,
        drop_path_schedule="constant",
    )


VARIANTS: dict[str, dict[str, Any]] = {
    "resmlp_12_224": {},
    "resmlp_24_224": {"depth": 24, "layer_scale": 1e-5},
    "resmlp_36_224": {"depth": 36, "layer_scale": 1e-6},
    "resmlp_b24_224": {"depth": 24, "dim": 768, "layer_scale": 1e-6},
    "resmlp_big_24_224": {"depth": 24, "dim": 768, "patch": 8, "layer_scale": 1e-6},
    "resmlp_12_p14_224": {"patch": 14},
    "resmlp_12_p8_224": {"patch": 8},
}
register_variants(resmlp, VARIANTS)
