"""RepMLP-ResNet of the first RepMLP paper (DingXiaoH/RepMLP before December 2021), both forms.

The training form has a batch norm behind every layer. Their conversion folds them all, and the convolutions beside FC3
into it: exactly our re-parameterised form. The number of groups is read from the file; released weights have 4.
"""

from typing import Any

from mixwise.config import ModelConfig, RepMLPResNetConfig, RepMLPStageConfig
from mixwise.weights.mapping import Entry, Format, Shapes, batch_norm, module, register_format, same
from mixwise.weights.timm_mlp import IMAGENET


def conv_norm(ours: str, theirs: str, *, fused: bool) -> list[Entry]:
    """A convolution with its batch norm, or the one with a bias that they become."""
    if fused:
        return module(ours, f"{theirs}.conv")
    return [same(f"{ours}.conv.weight", f"{theirs}.conv.weight"), *batch_norm(f"{ours}.norm", f"{theirs}.bn")]


def repmlp_v1(
    ours: str, theirs: str, *, groups: int, kernels: tuple[int, ...], several: bool, fused: bool
) -> list[Entry]:
    """Keys of one RepMLP behind a prefix with its dot; `several`: it has windows, and so a global perceptron."""
    entries = []
    if several:
        for layer in ("fc1", "fc2"):
            entries += module(f"{ours}context.{layer}", f"{theirs}fc1_fc2.{layer}")
    entries.append(
        Entry(
            f"{ours}fc3.weight",
            (f"{theirs}fc3.weight",),
            lambda x: x.reshape(groups, -1, x.shape[1]),
            lambda x: (x.reshape(-1, x.shape[-1], 1, 1),),
        )
    )
    if fused:
        read, write = lambda x: x.reshape(groups, -1), lambda x: (x.reshape(-1),)
        return [*entries, Entry(f"{ours}fc3.bias", (f"{theirs}fc3.bias",), read, write)]
    entries += batch_norm(f"{ours}context.norm", f"{theirs}avg.bn") if several else []
    entries += batch_norm(f"{ours}norm", f"{theirs}fc3_bn")
    for i, kernel in enumerate(kernels):
        entries += conv_norm(f"{ours}local.{i}", f"{theirs}repconv{kernel}", fused=False)
    return entries


BODIES = {
    "plain": {"conv1": "conv1", "conv2": "conv2", "conv3": "conv3"},
    "light": {"conv1": "light_conv1", "repmlp": "light_repmlp", "conv3": "light_conv3"},
    "bottleneck": {
        "conv1": "btnk_conv1",
        "conv2": "btnk_conv2",
        "repmlp": "btnk_repmlp",
        "conv4": "btnk_conv4",
        "conv5": "btnk_conv5",
    },
}
"""The parts of each kind of block, ours and theirs."""


def residual(
    ours: str,
    theirs: str,
    kind: str,
    *,
    projected: bool,
    fused: bool,
    groups: int = 1,
    kernels: tuple[int, ...] = (),
    several: bool = False,
) -> list[Entry]:
    """Keys of one residual block of a kind of `BODIES`, behind a prefix with its dot."""
    entries = conv_norm(f"{ours}shortcut", f"{theirs}shortcut", fused=fused) if projected else []
    for mine, name in BODIES[kind].items():
        if mine == "repmlp":
            entries += repmlp_v1(
                f"{ours}body.{mine}.",
                f"{theirs}{name}.",
                groups=groups,
                kernels=kernels,
                several=several,
                fused=fused,
            )
        else:
            entries += conv_norm(f"{ours}body.{mine}", f"{theirs}{name}", fused=fused)
    return entries


def _kind(stage: RepMLPStageConfig, stride: int) -> str:
    if stage.block is None or stride != 1:
        return "plain"
    return "light" if stage.light else "bottleneck"


def repmlp_resnet(config: RepMLPResNetConfig) -> list[Entry]:
    """Keys of the authors' files: the training form, or the converted one for a re-parameterised config."""
    fused = config.form == "reparameterized"
    entries, dim = conv_norm("stem.conv", "stage0.0", fused=fused), config.width
    for s, stage in enumerate(config.stages):
        step = 4 << s
        for b in range(stage.depth):
            stride = 2 if s and b == 0 else 1
            options: dict[str, Any] = {}
            if stage.block is not None:
                several = config.image != (stage.block.window[0] * step, stage.block.window[1] * step)
                options = {"groups": stage.block.groups, "kernels": stage.block.kernels, "several": several}
            entries += residual(
                f"stages.{s}.{b}.",
                f"stage{s + 1}.{b}.",
                _kind(stage, stride),
                projected=dim != stage.dim or stride != 1,
                fused=fused,
                **options,
            )
            dim = stage.dim
    return entries + (module("head", "linear") if config.classes else [])


def _adapt(config: ModelConfig, shapes: Shapes) -> ModelConfig:
    """The form of the file and the groups in it: FC3 is (c·h·w, c·h·w / groups, 1, 1)."""
    changes: dict[str, Any] = {"form": "reparameterized" if "stage0.0.conv.bias" in shapes else "trainable"}
    if isinstance(config, RepMLPResNetConfig):
        for s, stage in enumerate(config.stages):
            kind = _kind(stage, 1)
            name = f"stage{s + 1}.{stage.depth - 1}.{BODIES[kind].get('repmlp')}.fc3.weight"
            if stage.block is not None and name in shapes:
                changes[f"stages.{s}.block.groups"] = shapes[name][0] // shapes[name][1]
    return config.changed(changes)


def _crop(config: ModelConfig) -> dict[str, Any]:
    return IMAGENET | {"crop_pct": 0.875, "filter": "bilinear"}


register_format(
    Format(
        "repmlp_v1",
        "RepMLP-ResNet of its authors (DingXiaoH/RepMLP before December 2021), trainable or converted",
        ("repmlp_res50*",),
        lambda shapes: "stage0.0.conv.weight" in shapes and "stage2.1.conv1.conv.weight" not in shapes,
        repmlp_resnet,
        _crop,
        adapt=_adapt,
    )
)
