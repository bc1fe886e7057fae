"""The authors' MetaFormer baselines (sail-sg/metaformer), and what all files of that family share.

`downsample_layers.0` is the stem, `downsample_layers.1` … the convolutions between stages; a block is `stages.i.j` with
norm1, token_mixer, norm2, mlp and in stages 3 and 4 the factors on the shortcuts. A random matrix is in the file. An
IdentityFormer's file has the keys and shapes of a PoolFormerV2's: name the model.
"""

from typing import Any

from mixwise.config import BackboneConfig, BranchConfig, ModelConfig, StageConfig
from mixwise.weights.mapping import Entry, Format, batch_norm, module, register_format, same, squeezed

PREPROCESS = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225), "crop_pct": 1.0, "filter": "bicubic"}


def norm_entries(kind: str, ours: str, theirs: str, *, bias: bool = True) -> list[Entry]:
    """A norm by its name in the config."""
    if kind == "batch":
        return [e for e in batch_norm(ours, theirs) if bias or not e.native.endswith(".bias")]
    return [] if kind == "none" else module(ours, theirs, bias=bias)


def star_relu(act: str, ours: str, theirs: str) -> list[Entry]:
    """The two scalars of a StarReLU; nothing for an activation without parameters."""
    if not act.startswith("star_relu"):
        return []
    return [same(f"{ours}.scale", f"{theirs}.scale"), same(f"{ours}.shift", f"{theirs}.bias")]


def token_mixer(branch: BranchConfig, ours: str, theirs: str, *, axes: int) -> list[Entry]:
    """A token mixer; `axes` of size 1 behind the pointwise weights of a separable convolution."""
    if branch.mixer == "separable_conv":
        return [
            squeezed(f"{ours}.fc1.weight", f"{theirs}.pwconv1.weight", axes),
            *star_relu(branch.options.get("act", "star_relu"), f"{ours}.act", f"{theirs}.act1"),
            same(f"{ours}.conv.weight", f"{theirs}.dwconv.weight"),
            squeezed(f"{ours}.fc2.weight", f"{theirs}.pwconv2.weight", axes),
        ]
    if branch.mixer == "attention":
        bias = branch.options.get("out_bias", False)
        return [same(f"{ours}.qkv.weight", f"{theirs}.qkv.weight"), *module(f"{ours}.out", f"{theirs}.proj", bias=bias)]
    tables: dict[str, list[Entry]] = {
        "identity": [],
        "linear": [same(f"{ours}.weight", f"{theirs}.fc.weight")],
        "pool": [],
        "random": [same(f"{ours}.weight", f"{theirs}.random_matrix")],
    }
    return tables[branch.mixer]


def channel_mlp(branch: BranchConfig, ours: str, theirs: str, *, axes: int) -> list[Entry]:
    """The channel MLP; `axes` of size 1 behind its weights where it is written as 1 × 1 convolutions."""
    entries = []
    for layer, bias in (("fc1", branch.options.get("bias", True)), ("fc2", branch.options.get("out_bias", False))):
        entries.append(squeezed(f"{ours}.{layer}.weight", f"{theirs}.{layer}.weight", axes))
        entries += [same(f"{ours}.{layer}.bias", f"{theirs}.{layer}.bias")] if bias else []
    return entries + star_relu(branch.options.get("act", "gelu"), f"{ours}.act", f"{theirs}.act")


def block(
    config: BackboneConfig,
    stage: StageConfig,
    ours: str,
    theirs: str,
    *,
    axes: tuple[int, int],
    layer_scale: str = "layer_scale{}.scale",
) -> list[Entry]:
    """One block.

    Args:
        axes: of size 1 behind the pointwise weights of the token mixer and behind those of the MLP.
        layer_scale: how the factor of branch {} is called.
    """
    token, channel = stage.branches
    entries = token_mixer(token, f"{ours}.0.mixer", f"{theirs}.token_mixer", axes=axes[0])
    entries += channel_mlp(channel, f"{ours}.1.mixer", f"{theirs}.mlp", axes=axes[1])
    for i, branch in enumerate(stage.branches):
        kind, bias = branch.norm or config.norm, config.norm_bias is not False
        entries += norm_entries(kind, f"{ours}.{i}.norm", f"{theirs}.norm{i + 1}", bias=bias)
        if config.layer_scale is not None:
            entries.append(same(f"{ours}.{i}.scale", f"{theirs}.{layer_scale.format(i + 1)}"))
        if stage.res_scale is not None:
            entries.append(same(f"{ours}.{i}.res_scale", f"{theirs}.res_scale{i + 1}.scale"))
    return entries


def head(config: BackboneConfig, theirs: str) -> list[Entry]:
    """The linear or the MLP head."""
    if not config.classes:
        return []
    if config.head == "linear":
        return module("head", theirs)
    return [e for name in ("fc1", "norm", "fc2") for e in module(f"head.{name}", f"{theirs}.{name}")]


def metaformer(config: BackboneConfig) -> list[Entry]:
    """Keys of the authors' baselines."""
    entries = module("stem.proj", "downsample_layers.0.conv")
    entries += module("stem.norm", "downsample_layers.0.post_norm", bias=False)
    for i, stage in enumerate(config.stages):
        if i:
            entries += module(f"stages.{i}.downsample.proj", f"downsample_layers.{i}.conv")
            entries += module(f"stages.{i}.downsample.pre_norm", f"downsample_layers.{i}.pre_norm", bias=False)
        for j in range(stage.depth):
            entries += block(config, stage, f"stages.{i}.blocks.{j}", f"stages.{i}.{j}", axes=(0, 0))
    return entries + module("norm", "norm") + head(config, "head")


def _preprocess(config: ModelConfig) -> dict[str, Any]:
    return PREPROCESS


register_format(
    Format(
        "metaformer",
        "MetaFormer baselines .pth of their authors (sail-sg/metaformer)",
        ("poolformerv2_*", "identityformer_*", "randformer_*", "convformer_*", "caformer_*"),
        lambda shapes: "downsample_layers.0.conv.weight" in shapes,
        metaformer,
        _preprocess,
    )
)
