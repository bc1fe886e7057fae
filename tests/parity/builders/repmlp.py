"""RepMLPNet and RepMLP of 2021."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mixwise.config import RepMLPBlockConfig
from mixwise.mixers import mixer_class
from mixwise.models.maps import fold
from mixwise.models.repmlp_resnet import bottleneck, light
from mixwise.models.repmlp_v1 import RepMLPV1
from mixwise.models.repmlpnet import repmlpnet
from mixwise.weights.mapping import FORMATS
from mixwise.weights.repmlp import injected, repmlp_block
from mixwise.weights.repmlp_v1 import repmlp_v1, residual
from parity.case import Case, Vector, builder, from_format, map_tokens, tokens


def kernels(value: Any) -> tuple[int, ...]:
    """The sizes of the convolutions: a list, one number or nothing."""
    return (value,) if isinstance(value, int) else tuple(value or ())


def on_map(grid: tuple[int, int]) -> Callable[[nn.Module, Tensor], Tensor]:
    """Run a mixer on a map (b, c, h, w)."""
    return lambda mixer, x: mixer(map_tokens(x), grid).transpose(1, 2).reshape(x.shape)


def block(vector: Vector, order: str) -> Case:
    """One RepMLPNet block; with several windows in the order that is asked for."""
    a, grid = vector.arguments, vector.size
    part, dim, sets = (a["h"], a["w"]), a["in_channels"], a.get("num_sharesets", 1)
    ks = kernels(a["reparam_conv_k"])
    options = {"sharesets": sets, "kernels": ks, "reduce": a.get("globalperceptron_reduce", 4)}
    if part != grid:
        options |= {"partition": part} | ({"order": order} if sets < dim else {})

    def table(fused: bool):
        return repmlp_block("", "", sets=sets, kernels=ks, fused=fused)

    return Case(
        lambda: mixer_class("repmlp")(dim, grid[0] * grid[1], grid, **options),
        table(False),
        run=on_map(grid),
        inter={"gate": ("gate", tokens)},
        deploy=table(True),
    )


@builder("repmlpnet", "RepMLPBlock")
def repmlpnet_block(vector: Vector) -> Case:
    return block(vector, "official")


@builder("repmlpnet", "RepMLPNet")
def net(vector: Vector) -> Case:
    a, size = vector.arguments, vector.size
    patch = a.get("patch_size", 4)
    patch = (patch, patch) if isinstance(patch, int) else tuple(patch)
    maps = [(size[0] // patch[0] >> i, size[1] // patch[1] >> i) for i in range(len(a["hs"]))]
    windows = tuple(zip(a["hs"], a["ws"], strict=True))
    several = {} if list(windows) == maps else {"partitions": windows, "order": "official"}
    config = repmlpnet(
        image=size,
        channels=vector.meta["input"]["shape"][1],
        classes=a["num_class"],
        patch=patch,
        depths=a["num_blocks"],
        dims=a["channels"],
        sharesets=a["sharesets_nums"],
        kernels=kernels(a["reparam_conv_k"]),
        reduce=a.get("globalperceptron_reduce", 4),
        **several,
    )
    grid = maps[0]
    fused = config.model_copy(update={"form": "reparameterized"})
    return from_format(
        "repmlpnet",
        config,
        inter={
            "stem": ("stem", tokens),
            "gate0": ("stages.0.blocks.0.0.mixer.gate", tokens),
            "repmlp0": ("stages.0.blocks.0.0.mixer", lambda x: x.transpose(1, 2).unflatten(2, grid)),
            "block0": ("stages.0.blocks.0", lambda x: x.transpose(1, 2).unflatten(2, grid)),
            "pre_head": ("norm", lambda x: x.transpose(1, 2)),
        },
        deploy=FORMATS["repmlpnet"].entries(fused),
        make_deploy=lambda: injected(fused),
    )


def v1(vector: Vector) -> tuple[RepMLPBlockConfig, tuple[int, int], dict[str, Any]]:
    """The config of a RepMLP of 2021, the size of its map, and what its key table needs."""
    a = vector.arguments
    size, window = (a["H"], a["W"]), (a["h"], a["w"])
    options = {"groups": a.get("fc3_groups", 1), "kernels": kernels(a.get("reparam_conv_k"))}
    config = RepMLPBlockConfig(window=window, reduce=a.get("fc1_fc2_reduction", 1), **options)
    return config, size, {**options, "several": size != window}


def folded(module: nn.Module) -> nn.Module:
    """A copy in which everything is folded."""
    module = copy.deepcopy(module)
    with torch.no_grad():
        fold(module)
    return module


@builder("repmlp_v1", "RepMLP")
def v1_block(vector: Vector) -> Case:
    a, (config, size, options) = vector.arguments, v1(vector)
    return Case(
        lambda: RepMLPV1(a["in_channels"], a["out_channels"], size, config),
        repmlp_v1("", "", **options, fused=False),
        inter={"fc3": ("fc3", tokens)} | ({"global": ("context.fc2", tokens)} if options["several"] else {}),
        deploy=repmlp_v1("", "", **options, fused=True),
        reparameterize=lambda block: block.folded(),
    )


def v1_residual(vector: Vector, kind: str, make: Callable[..., nn.Module], **more: Any) -> Case:
    """A residual block around a RepMLP."""
    a, (config, size, options) = vector.arguments, v1(vector)
    dims = a["in_channels"], a["mid_channels"], a["out_channels"]
    options["projected"] = dims[0] != dims[2]
    return Case(
        lambda: make(*dims, size, config, **more),
        residual("", "", kind, **options, fused=False),
        inter={"conv1": ("body.relu1", tokens), "repmlp": ("body.repmlp", tokens)},
        deploy=residual("", "", kind, **options, fused=True),
        reparameterize=folded,
    )


@builder("repmlp_v1", "RepMLPBottleneckBlock")
def v1_bottleneck(vector: Vector) -> Case:
    return v1_residual(vector, "bottleneck", bottleneck, squeeze=vector.arguments["r"])


@builder("repmlp_v1", "RepMLPLightBlock")
def v1_light(vector: Vector) -> Case:
    return v1_residual(vector, "light", light)
