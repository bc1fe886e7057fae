"""RepMLP-Res50: a ResNet-50 in which the stride-1 blocks of two stages have a RepMLP of 2021.

    conv 7 × 7, max pool → 4 stages of relu(shortcut(x) + body(x)) → mean → linear

    plain       conv 1 × 1, conv 3 × 3 (stride), conv 1 × 1, ReLU between them; width / 4
    bottleneck  conv 1 × 1, conv 3 × 3 to width / 4r, RepMLP, conv 3 × 3, conv 1 × 1
    light       conv 1 × 1 to width / 8, RepMLP, conv 1 × 1

Source: Ding et al., "RepMLP", arXiv 2105.01883, section 4.2 and appendix A; DingXiaoH/RepMLP before December 2021
(repmlp_resnet.py). Batch norm behind every convolution; the stages with RepMLPs are the second and third (c3, c4).

| preset                 | block           | parameters, folded | GMACs, folded | ImageNet-1k top-1             |
|------------------------|-----------------|--------------------|---------------|-------------------------------|
| repmlp_res50_224       | bottleneck, g 8 | 41.07 M, 40.87 M   | 3.95, 3.89    | 78.55 (paper)                 |
| repmlp_res50_light_224 | light, g 4      | 87.04 M, 86.14 M   | 3.30, 3.08    | 77.01 (PaddleViT)             |

Trained on ImageNet-1k. The light block of the paper has 8 groups (`groups=8`: 58.35 M, folded 57.87 M; 77.14); code and
released weights have 4.
At 320 pixels the paper has windows of 10 and kernels 1, 3, 5, 7: `image=320, window=10, kernels=(1, 3, 5, 7)`, with
groups (8, 16), (8, 8) or (4, 8) in the two stages.

Differs: nothing.
"""

from collections import OrderedDict
from typing import Any, Literal

from torch import Tensor, nn

from mixwise.config import RepMLPBlockConfig, RepMLPResNetConfig, RepMLPStageConfig, Size, pair
from mixwise.errors import UsageError
from mixwise.model import register_architecture
from mixwise.models.maps import ConvNorm, MapModel
from mixwise.models.registry import register_variants
from mixwise.models.repmlp_v1 import RepMLPV1


class Residual(nn.Module):
    """relu(shortcut(x) + body(x)) on maps (b, dim, h, w) → (b, out, h / stride, w / stride)."""

    def __init__(self, dim: int, out: int, body: dict[str, nn.Module], *, stride: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(OrderedDict(body))
        same = dim == out and stride == 1
        self.shortcut: nn.Module = nn.Identity() if same else ConvNorm(dim, out, stride=stride)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.shortcut(x) + self.body(x))


def plain(dim: int, mid: int, out: int, *, stride: int = 1) -> Residual:
    """The block of a ResNet-50, with the stride on its 3 × 3 convolution."""
    body = {
        "conv1": ConvNorm(dim, mid),
        "relu1": nn.ReLU(),
        "conv2": ConvNorm(mid, mid, 3, stride=stride),
        "relu2": nn.ReLU(),
        "conv3": ConvNorm(mid, out),
    }
    return Residual(dim, out, body, stride=stride)


def bottleneck(dim: int, mid: int, out: int, size: Size, config: RepMLPBlockConfig, *, squeeze: int) -> Residual:
    """The block with a RepMLP of width mid / squeeze between two 3 × 3 convolutions, on maps of one size."""
    if mid % squeeze:
        raise UsageError(f"RepMLP bottleneck: squeeze must divide the width {mid}, got {squeeze}")
    narrow = mid // squeeze
    body = {
        "conv1": ConvNorm(dim, mid),
        "relu1": nn.ReLU(),
        "conv2": ConvNorm(mid, narrow, 3),
        "relu2": nn.ReLU(),
        "repmlp": RepMLPV1(narrow, narrow, size, config),
        "relu3": nn.ReLU(),
        "conv4": ConvNorm(narrow, mid, 3),
        "relu4": nn.ReLU(),
        "conv5": ConvNorm(mid, out),
    }
    return Residual(dim, out, body)


def light(dim: int, mid: int, out: int, size: Size, config: RepMLPBlockConfig) -> Residual:
    """The block with a RepMLP between two 1 × 1 convolutions, on maps of one size."""
    body = {
        "conv1": ConvNorm(dim, mid),
        "relu1": nn.ReLU(),
        "repmlp": RepMLPV1(mid, mid, size, config),
        "relu2": nn.ReLU(),
        "conv3": ConvNorm(mid, out),
    }
    return Residual(dim, out, body)


def _stage(config: RepMLPStageConfig, dim: int, stride: int, size: Size) -> nn.Sequential:
    blocks: list[nn.Module] = []
    out = config.dim
    for i in range(config.depth):
        step = stride if i == 0 else 1
        if config.block is None or step != 1:
            blocks.append(plain(dim, out // 4, out, stride=step))
        elif config.light:
            blocks.append(light(dim, out // 8, out, size, config.block))
        else:
            blocks.append(bottleneck(dim, out // 4, out, size, config.block, squeeze=config.squeeze))
        dim = out
    return nn.Sequential(*blocks)


@register_architecture(RepMLPResNetConfig)
class RepMLPResNet(MapModel):
    """A ResNet with RepMLPs in its stride-1 blocks of some stages.

    Raises `UsageError` where the windows do not tile the map of a stage.

    >>> model = mixwise.create_model("repmlp_res50_224", image=(96, 32), window=(3, 1), classes=5, depths=(1, 2, 2, 1))
    >>> model(torch.randn(2, 3, 96, 32)).shape
    torch.Size([2, 5])
    """

    config: RepMLPResNetConfig

    def __init__(self, config: RepMLPResNetConfig) -> None:
        stem = {
            "conv": ConvNorm(config.channels, config.width, 7, stride=2),
            "relu": nn.ReLU(),
            "pool": nn.MaxPool2d(3, 2, 1),
        }
        size, dim, stages = config.image, config.width, []
        for _ in range(2):
            size = ((size[0] + 1) // 2, (size[1] + 1) // 2)
        for i, stage in enumerate(config.stages):
            if i:
                size = ((size[0] + 1) // 2, (size[1] + 1) // 2)
            stages.append(_stage(stage, dim, 2 if i else 1, size))
            dim = stage.dim
        fixed = any(isinstance(m, RepMLPV1) for stage in stages for m in stage.modules())
        super().__init__(config, nn.Sequential(OrderedDict(stem)), stages, dim=dim, fixed_size=fixed)


def repmlp_resnet(
    *,
    name: str = "repmlp_resnet",
    image: Size = (224, 224),
    channels: int = 3,
    classes: int = 1000,
    depths: tuple[int, ...] = (3, 4, 6, 3),
    dims: tuple[int, ...] = (256, 512, 1024, 2048),
    where: tuple[int, ...] = (2, 3),
    light: bool = False,
    squeeze: tuple[int, ...] | None = None,
    groups: int | tuple[int, ...] = 8,
    window: Size = (7, 7),
    kernels: tuple[int, ...] = (1, 3, 5),
    reduce: int | tuple[int, ...] = 1,
    init: Literal["default", "orthogonal"] = "default",
) -> RepMLPResNetConfig:
    """The config of a RepMLP-ResNet.

    Args:
        where: stages with RepMLPs, counted from 1; 2 and 3 are the paper's c3 and c4.
        light: light blocks instead of bottlenecks.
        squeeze: r of the bottlenecks, one for each stage in `where`; None: 2 and 4.
        groups: of FC3 and its convolutions, one number or one for each stage in `where`.
        window: (h, w) that FC3 works in; it must tile the maps of these stages.
        kernels: of the local perceptron.
        reduce: width of the global perceptron over its hidden width, one number or one for each stage in `where`.
        init: of FC3.

    Raises `UsageError` where the lists do not fit.
    """
    if len(depths) != len(dims) or any(not 1 <= s <= len(depths) for s in where) or len(set(where)) < len(where):
        raise UsageError(
            f"{name}: depths and dims need one entry a stage and where names some of them, got "
            f"{len(depths)} depths, {len(dims)} dims and where={where}"
        )
    if light and squeeze is not None:
        raise UsageError(f"{name}: squeeze is about bottlenecks, and light=True")
    each = {
        "squeeze": (1,) * len(where) if light else (2, 4) if squeeze is None else squeeze,
        "groups": (groups,) * len(where) if isinstance(groups, int) else groups,
        "reduce": (reduce,) * len(where) if isinstance(reduce, int) else reduce,
    }
    for option, values in each.items():
        if len(values) != len(where):
            raise UsageError(f"{name}: {option} needs one entry for each stage in where={where}, got {values}")
    stages = []
    for i, (depth, dim) in enumerate(zip(depths, dims, strict=True), start=1):
        if i not in where:
            stages.append(RepMLPStageConfig(depth=depth, dim=dim))
            continue
        r, g, s = (each[option][where.index(i)] for option in ("squeeze", "groups", "reduce"))
        block = RepMLPBlockConfig.parse(
            {"window": window, "groups": g, "kernels": kernels, "reduce": s, "init": init}, name
        )
        stages.append(RepMLPStageConfig(depth=depth, dim=dim, block=block, light=light, squeeze=r))
    return RepMLPResNetConfig(name=name, image=pair(image), channels=channels, classes=classes, stages=tuple(stages))


VARIANTS: dict[str, dict[str, Any]] = {
    "repmlp_res50_224": {},
    "repmlp_res50_light_224": {"light": True, "groups": 4},
}
register_variants(repmlp_resnet, VARIANTS)
