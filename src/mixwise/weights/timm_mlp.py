"""timm's `mlp_mixer` family (Mixer, gMixer, ResMLP, gMLP), and the authors' ResMLP files.

timm drops no key and renames few: its Mixer block is norm1, mlp_tokens, norm2, mlp_channels, its ResMLP block has
linear_tokens and the layer scales ls1 and ls2, its gMLP block norm, mlp_channels with the gate inside.
"""

from typing import Any

from mixwise.config import BackboneConfig, ModelConfig
from mixwise.weights.mapping import Entry, Format, module, register_format, same, shaped

INCEPTION = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def _mixer_block(ours: str, theirs: str) -> list[Entry]:
    token = [
        same(f"{ours}.0.mixer.{'wb'[kind]}{layer}", f"{theirs}.mlp_tokens.fc{layer}.{('weight', 'bias')[kind]}")
        for layer in (1, 2)
        for kind in (0, 1)
    ]
    channel = [e for n in ("fc1", "fc2") for e in module(f"{ours}.1.mixer.{n}", f"{theirs}.mlp_channels.{n}")]
    norms = module(f"{ours}.0.norm", f"{theirs}.norm1") + module(f"{ours}.1.norm", f"{theirs}.norm2")
    return token + channel + norms


def _affine(ours: str, theirs: str, shape: tuple[int, ...]) -> list[Entry]:
    return [
        shaped(f"{ours}.{mine}", f"{theirs}.{name}", (-1,), shape)
        for mine, name in (("weight", "alpha"), ("bias", "beta"))
    ]


def _resmlp(
    config: BackboneConfig, *, stem: str, linear: str, mlp: str, scales: tuple[str, str], shape: tuple[int, ...]
) -> list[Entry]:
    entries = module("stem.proj", f"{stem}.proj")
    for i in range(config.stages[0].depth):
        ours, theirs = f"stages.0.blocks.{i}", f"blocks.{i}"
        entries += module(f"{ours}.0.mixer", f"{theirs}.{linear}")
        entries += [e for n in ("fc1", "fc2") for e in module(f"{ours}.1.mixer.{n}", f"{theirs}.{mlp}.{n}")]
        for branch, scale in enumerate(scales):
            entries.append(same(f"{ours}.{branch}.scale", f"{theirs}.{scale}"))
            entries += _affine(f"{ours}.{branch}.norm", f"{theirs}.norm{branch + 1}", shape)
    return entries + _affine("norm", "norm", shape) + _head(config)


def _head(config: BackboneConfig) -> list[Entry]:
    return module("head", "head") if config.classes else []


def timm_mixer(config: BackboneConfig) -> list[Entry]:
    """Keys of timm's Mixer and gMixer."""
    entries = module("stem.proj", "stem.proj")
    for i in range(config.stages[0].depth):
        entries += _mixer_block(f"stages.0.blocks.{i}", f"blocks.{i}")
    return entries + module("norm", "norm") + _head(config)


def timm_resmlp(config: BackboneConfig) -> list[Entry]:
    """Keys of timm's ResMLP."""
    return _resmlp(
        config, stem="stem", linear="linear_tokens", mlp="mlp_channels", scales=("ls1", "ls2"), shape=(1, 1, -1)
    )


def deit_resmlp(config: BackboneConfig) -> list[Entry]:
    """Keys of the authors' ResMLP (facebookresearch/deit); `attn` there is the linear layer along the tokens."""
    return _resmlp(config, stem="patch_embed", linear="attn", mlp="mlp", scales=("gamma_1", "gamma_2"), shape=(-1,))


def timm_gmlp(config: BackboneConfig) -> list[Entry]:
    """Keys of timm's gMLP."""
    entries = module("stem.proj", "stem.proj")
    for i in range(config.stages[0].depth):
        ours, theirs = f"stages.0.blocks.{i}.0", f"blocks.{i}"
        entries += module(f"{ours}.norm", f"{theirs}.norm")
        for mine, name in (("fc1", "fc1"), ("norm", "gate.norm"), ("fc2", "fc2")):
            entries += module(f"{ours}.mixer.{mine}", f"{theirs}.mlp_channels.{name}")
        entries += module(f"{ours}.mixer", f"{theirs}.mlp_channels.gate.proj")
    return entries + module("norm", "norm") + _head(config)


def _imagenet(config: ModelConfig) -> dict[str, Any]:
    return IMAGENET | {"crop_pct": 0.875}


def _inception(config: ModelConfig) -> dict[str, Any]:
    return (IMAGENET if config.name.startswith("gmixer") else INCEPTION) | {"crop_pct": 0.875}


register_format(
    Format(
        "timm_mixer",
        "MLP-Mixer and gMixer of timm",
        ("mixer_*", "gmixer_*"),
        lambda shapes: "blocks.0.mlp_tokens.fc1.weight" in shapes,
        timm_mixer,
        _inception,
    )
)
register_format(
    Format(
        "timm_resmlp",
        "ResMLP of timm",
        ("resmlp_*",),
        lambda shapes: "blocks.0.linear_tokens.weight" in shapes,
        timm_resmlp,
        _imagenet,
    )
)
register_format(
    Format(
        "timm_gmlp",
        "gMLP of timm",
        ("gmlp_*16_224",),
        lambda shapes: "blocks.0.mlp_channels.gate.proj.weight" in shapes,
        timm_gmlp,
        _inception,
    )
)
register_format(
    Format(
        "deit_resmlp",
        "ResMLP of its authors (facebookresearch/deit)",
        ("resmlp_*",),
        lambda shapes: "blocks.0.gamma_1" in shapes and len(shapes.get("blocks.0.attn.weight", ())) == 2,
        deit_resmlp,
        _imagenet,
    )
)
