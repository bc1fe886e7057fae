"""MLP-Mixer: a token MLP and a channel MLP in turn, layer norm in front of both.

    patches → 8–32 × [x + token_mlp(norm(x)), x + mlp(norm(x))] → norm → mean → linear

Source: Tolstikhin et al., "MLP-Mixer: An all-MLP Architecture for Vision", arXiv 2105.01601, section 2 and table 1.

| preset           | patch | dim  | depth | parameters  | GMACs   | ImageNet top-1, trained on                         |
|------------------|-------|------|-------|-------------|---------|----------------------------------------------------|
| mixer_s32_224    | 32    | 512  | 8     | 19,104,624  | 1.002   | 68.70 JFT-300M (paper, table 3)                    |
| mixer_s16_224    | 16    | 512  | 8     | 18,528,264  | 3.777   | 73.83 JFT-300M (paper)                             |
| mixer_b32_224    | 32    | 768  | 12    | 60,293,428  | 3.238   | 75.53 JFT-300M (paper)                             |
| mixer_b16_224    | 16    | 768  | 12    | 59,880,472  | 12.602  | 76.44 ImageNet-1k, 80.64 ImageNet-21k (paper)      |
| mixer_l32_224    | 32    | 1024 | 24    | 206,939,264 | 11.253  | 80.67 JFT-300M (paper)                             |
| mixer_l16_224    | 16    | 1024 | 24    | 208,196,168 | 44.548  | 71.76 ImageNet-1k, 82.89 ImageNet-21k (paper)      |
| mixer_h14_224    | 14    | 1280 | 32    | 432,350,952 | 120.990 | 86.32 JFT-300M (paper)                             |
| gmixer_12_224    | 16    | 384  | 12    | 12,701,080  | 2.659   | –                                                  |
| gmixer_24_224    | 16    | 384  | 24    | 24,721,096  | 5.260   | 78.05 ImageNet-1k (timm's results)                 |

The JFT weights were never released. gmixer is an experiment of timm: both MLPs gated, u · silu(v).

Differs: Google's code has the tanh form of GELU, timm and these presets the erf form (`gelu="tanh"` names the other;
the converter of Google's `.npz` sets it). Stochastic depth rises linearly as in the paper; timm's is constant. Weights
start as in timm and scenic: Xavier uniform in the blocks (Google's own code: LeCun normal), LeCun normal in the stem,
zero in the head (`head_std`). In gmixer the channel MLPs and their biases start as torch's linear layers.

Another resolution: `mixwise.resize`. The paper's expansion of the token MLP (appendix C, which no public code has) is
method="expand"; the default interpolates it. docs/resolution.md compares them.
"""

from typing import Any, Literal

from mixwise.config import BackboneConfig, BranchConfig, Size, StageConfig, pair
from mixwise.models.registry import register_variants


def mlp_mixer(
    *,
    name: str = "mixer",
    image: Size = (224, 224),
    channels: int = 3,
    classes: int = 1000,
    patch: Size = (16, 16),
    dim: int = 512,
    depth: int = 8,
    tokens_hidden: int | None = None,
    ratio: float = 4.0,
    gelu: Literal["erf", "tanh"] = "erf",
    gated: bool = False,
    head_std: float = 0.0,
    drop_path: float = 0.0,
) -> BackboneConfig:
    """The config of an MLP-Mixer.

    Args:
        tokens_hidden: width of the token MLP, D_S; None: half of dim.
        ratio: width of the channel MLP over dim, D_C / C.
        gated: timm's gmixer: both MLPs end in u · silu(v), u and v the halves of their first layer.
        head_std: of the head's weights at the start.
    """
    act = "silu" if gated else {"erf": "gelu", "tanh": "gelu_tanh"}[gelu]
    branches = (
        BranchConfig(
            mixer="token_mlp",
            options={"hidden": tokens_hidden or dim // (1 if gated else 2), "act": act, "gated": gated},
        ),
        BranchConfig(mixer="mlp", options={"ratio": ratio, "act": act, "out_bias": True, "gated": gated}),
    )
    return BackboneConfig(
        name=name,
        image=pair(image),
        channels=channels,
        classes=classes,
        patch=pair(patch),
        stages=(StageConfig(depth=depth, dim=dim, branches=branches),),
        stem_init="lecun",
        head_options={"std": head_std},
        init="own" if gated else "flax",
        drop_path=drop_path,
    )


VARIANTS: dict[str, dict[str, Any]] = {
    "mixer_s32_224": {"patch": 32, "dim": 512, "depth": 8},
    "mixer_s16_224": {"patch": 16, "dim": 512, "depth": 8},
    "mixer_b32_224": {"patch": 32, "dim": 768, "depth": 12},
    "mixer_b16_224": {"patch": 16, "dim": 768, "depth": 12},
    "mixer_l32_224": {"patch": 32, "dim": 1024, "depth": 24},
    "mixer_l16_224": {"patch": 16, "dim": 1024, "depth": 24},
    "mixer_h14_224": {"patch": 14, "dim": 1280, "depth": 32},
    "gmixer_12_224": {"patch": 16, "dim": 384, "depth": 12, "gated": True},
    "gmixer_24_224": {"patch": 16, "dim": 384, "depth": 24, "gated": True},
}
register_variants(mlp_mixer, VARIANTS)
