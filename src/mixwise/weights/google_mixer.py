"""Google's released MLP-Mixer weights: `.npz` files of vit_jax and big_vision.

Flax stores dense kernels input-first and convolution kernels as (rows, columns, in, out). Their GELU is the tanh form.
"""

from typing import Any

from mixwise.config import BackboneConfig, ModelConfig
from mixwise.weights.mapping import Entry, Format, Shapes, hwio, register_format, same, transposed


def dense(ours: str, theirs: str) -> list[Entry]:
    """A Flax dense layer as a linear layer."""
    return [transposed(f"{ours}.weight", f"{theirs}/kernel"), same(f"{ours}.bias", f"{theirs}/bias")]


def layer_norm(ours: str, theirs: str) -> list[Entry]:
    """A Flax layer norm."""
    return [same(f"{ours}.weight", f"{theirs}/scale"), same(f"{ours}.bias", f"{theirs}/bias")]


def google_mixer(config: BackboneConfig) -> list[Entry]:
    """Keys of the released files."""
    entries = [hwio("stem.proj.weight", "stem/kernel"), same("stem.proj.bias", "stem/bias")]
    for i in range(config.stages[0].depth):
        ours, theirs = f"stages.0.blocks.{i}", f"MixerBlock_{i}"
        for branch in (0, 1):
            entries += layer_norm(f"{ours}.{branch}.norm", f"{theirs}/LayerNorm_{branch}")
            entries += dense(f"{ours}.1.mixer.fc{branch + 1}", f"{theirs}/channel_mixing/Dense_{branch}")
            entries += [
                transposed(f"{ours}.0.mixer.w{branch + 1}", f"{theirs}/token_mixing/Dense_{branch}/kernel"),
                same(f"{ours}.0.mixer.b{branch + 1}", f"{theirs}/token_mixing/Dense_{branch}/bias"),
            ]
    entries += layer_norm("norm", "pre_head_layer_norm")
    return entries + (dense("head", "head") if config.classes else [])


def _tanh(config: ModelConfig, shapes: Shapes) -> ModelConfig:
    paths = ("stages.0.branches.0.options.act", "stages.0.branches.1.options.act")
    return config.changed(dict.fromkeys(paths, "gelu_tanh"))


def _preprocess(config: ModelConfig) -> dict[str, Any]:
    return {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5), "fit": "squash", "filter": "bilinear"}


register_format(
    Format(
        "google_mixer",
        "MLP-Mixer .npz of Google (vision_transformer, big_vision)",
        ("mixer_*",),
        lambda shapes: "MixerBlock_0/token_mixing/Dense_0/kernel" in shapes,
        google_mixer,
        _preprocess,
        adapt=_tanh,
    )
)
