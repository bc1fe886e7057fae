"""RepMLP's pure MLP for CIFAR-10: RepMLPs in turn with 1 × 1 convolutions, and the ConvNet it is compared with.

    conv 1 × 1 → 3 stages of [mixer, conv 1 × 1, mixer, conv 1 × 1], max pool 2 × 2 between them → mean → linear

ReLU behind every mixer and every convolution with its batch norm; the last 1 × 1 convolution of a stage has the width
of the next. Mixers are RepMLPs of 2021 in windows of 8 × 8 with 2 groups, or 3 × 3 convolutions with a batch norm.

Source: Ding et al., "RepMLP", arXiv 2105.01883, section 4.1, figure 3 and table 1. There is no official code: this is a
reconstruction that meets the published cost of both nets to the digit.

| preset            | dims        | parameters | re-parameterised | MMACs  | re-parameterised | CIFAR-10 top-1 (paper) |
|-------------------|-------------|------------|------------------|--------|------------------|------------------------|
| repmlp_cifar      | 16, 32, 64  | 22.84 M    | 22.38 M          | 118.87 | 52.81            | 91.11                  |
| repmlp_cifar_conv | 32, 64, 128 | 0.44 M     | 0.44 M           | 65.11  | 65.11            | 91.99                  |

The paper's other rows: no local perceptron `kernels=()`, no global one `global_perceptron=False`, a 9 × 9 convolution
in place of the RepMLP `repmlp_cifar_conv` with `kernel=9, dims=(16, 32, 64)`.

Differs: the paper counts 0.50 M parameters for the ConvNet; where the rest is, it does not say. The kernels 1, 3, 5, 7
are those that the paper names for windows above 7, not said for this net.
"""

from collections import OrderedDict
from typing import Any, Literal

from torch import nn

from mixwise.config import RepMLPBlockConfig, RepMLPPlainConfig, Size, pair
from mixwise.errors import UsageError
from mixwise.model import register_architecture
from mixwise.models.maps import ConvNorm, MapModel
from mixwise.models.registry import register_variants
from mixwise.models.repmlp_v1 import RepMLPV1


@register_architecture(RepMLPPlainConfig)
class RepMLPPlain(MapModel):
    """RepMLPs or convolutions in turn with 1 × 1 convolutions, no shortcuts.

    Raises `UsageError` where the windows do not tile the map of a stage, or a convolution's groups do not divide it.

    >>> mixwise.create_model("repmlp_cifar", image=(16, 32), window=4)(torch.randn(2, 3, 16, 32)).shape
    torch.Size([2, 10])
    """

    config: RepMLPPlainConfig

    def __init__(self, config: RepMLPPlainConfig) -> None:
        size, stages = config.image, []
        for i, dim in enumerate(config.dims):
            stage: dict[str, nn.Module] = {"pool": nn.MaxPool2d(2)} if i else {}
            size = (size[0] // 2, size[1] // 2) if i else size
            for k in range(config.depth):
                last = k == config.depth - 1 and i < len(config.dims) - 1
                stage |= {f"mixer{k}": _mixer(config, dim, size), f"act{k}": nn.ReLU()}
                stage |= {f"conv{k}": ConvNorm(dim, config.dims[i + 1] if last else dim), f"relu{k}": nn.ReLU()}
            stages.append(nn.Sequential(OrderedDict(stage)))
        stem = nn.Sequential(OrderedDict(conv=ConvNorm(config.channels, config.dims[0]), relu=nn.ReLU()))
        super().__init__(config, stem, stages, dim=config.dims[-1], fixed_size=config.block is not None)


def _mixer(config: RepMLPPlainConfig, dim: int, size: Size) -> nn.Module:
    if config.block is not None:
        return RepMLPV1(dim, dim, size, config.block)
    if dim % config.groups:
        raise UsageError(f"{config.name}: groups must divide the width {dim}, got {config.groups}")
    assert config.kernel is not None
    return ConvNorm(dim, dim, config.kernel, groups=config.groups)


def repmlp_cifar(
    *,
    name: str = "repmlp_cifar",
    image: Size = (32, 32),
    channels: int = 3,
    classes: int = 10,
    dims: tuple[int, ...] = (16, 32, 64),
    depth: int = 2,
    window: Size = (8, 8),
    groups: int = 2,
    kernels: tuple[int, ...] = (1, 3, 5, 7),
    global_perceptron: bool = True,
    reduce: int = 1,
    init: Literal["default", "orthogonal"] = "default",
) -> RepMLPPlainConfig:
    """The config of the pure MLP.

    Args:
        dims: width of each stage; the map is halved between them.
        depth: RepMLPs in each stage.
        window: (h, w) that FC3 works in; it must tile the map of every stage.
        groups: of FC3 and its convolutions.
        kernels: of the local perceptron.
        global_perceptron: whether there are FC1 and FC2.
        reduce: width of the global perceptron over its hidden width.
        init: of FC3.
    """
    block = {"window": window, "groups": groups, "kernels": kernels, "reduce": reduce, "init": init}
    return RepMLPPlainConfig(
        name=name,
        image=pair(image),
        channels=channels,
        classes=classes,
        dims=dims,
        depth=depth,
        block=RepMLPBlockConfig.parse(block | {"global_perceptron": global_perceptron}, name),
    )


def repmlp_cifar_conv(
    *,
    name: str = "repmlp_cifar_conv",
    image: Size = (32, 32),
    channels: int = 3,
    classes: int = 10,
    dims: tuple[int, ...] = (32, 64, 128),
    depth: int = 2,
    kernel: int = 3,
    groups: int = 1,
) -> RepMLPPlainConfig:
    """The config of the ConvNet: `depth` convolutions of size `kernel` in each stage in place of the RepMLPs."""
    return RepMLPPlainConfig(
        name=name,
        image=pair(image),
        channels=channels,
        classes=classes,
        dims=dims,
        depth=depth,
        kernel=kernel,
        groups=groups,
    )


VARIANTS: dict[str, dict[str, Any]] = {"repmlp_cifar": {}}
register_variants(repmlp_cifar, VARIANTS)
register_variants(repmlp_cifar_conv, {"repmlp_cifar_conv": {}})
