"""Models by name: a preset is a function from keyword changes to a `BackboneConfig`."""

import fnmatch
from collections.abc import Callable
from typing import Any

import torch

from mixwise.backbone import Backbone
from mixwise.config import BackboneConfig
from mixwise.errors import unknown
from mixwise.mixers import MIXERS, keyword_options

Preset = Callable[..., BackboneConfig]

PRESETS: dict[str, Preset] = {}
"""Every preset by name."""


def register_preset(name: str, preset: Preset) -> None:
    """Make `preset` known as `name`; its keyword-only arguments are the changes that `create_model` accepts."""
    PRESETS[name] = preset


def model_config(name: str, **changes: Any) -> BackboneConfig:
    """The config of a preset, with changes such as image=(64, 96), channels=1, classes=10."""
    if name not in PRESETS:
        raise unknown("model", name, PRESETS)
    allowed = keyword_options(PRESETS[name])
    for change in changes:
        if change not in allowed:
            raise unknown("change", change, allowed, f"model {name!r}")
    return PRESETS[name](**changes)


def create_model(name: str, **changes: Any) -> Backbone:
    """A fresh model by name.

    Args:
        name: one of `list_models()`.
        changes: what differs from the preset: image=(h, w), channels, classes, patch, …; an unknown one raises.

    >>> create_model("token_mlp_nano", image=(32, 32), classes=10)(torch.randn(1, 3, 32, 32)).shape
    torch.Size([1, 10])
    """
    return Backbone(model_config(name, **changes))


def describe(name: str) -> tuple[int, str]:
    """(number of parameters, what mixes its tokens) of a preset, without allocating its weights."""
    config = model_config(name)
    with torch.device("meta"):
        model = Backbone(config)
    mixers = dict.fromkeys(b.mixer for stage in config.stages for b in stage.branches if b.mixer in MIXERS)
    summaries = [(MIXERS[mixer].__doc__ or mixer).splitlines()[0] for mixer in mixers]
    return sum(p.numel() for p in model.parameters()), " ".join(summaries)


def list_models(pattern: str = "*") -> list[str]:
    """Names of all presets that match a shell pattern, sorted.

    >>> list_models("linear_*o")
    ['linear_compact_nano', 'linear_nano']
    """
    return sorted(fnmatch.filter(PRESETS, pattern))
