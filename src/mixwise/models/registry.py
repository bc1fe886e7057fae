"""Models by name: a preset is a function from keyword changes to a config."""

import fnmatch
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from pydantic import ValidationError

from mixwise.backbone import Backbone
from mixwise.blocks import Stage
from mixwise.config import BackboneConfig, ModelConfig
from mixwise.config.base import in_words
from mixwise.device import shapes_only
from mixwise.errors import UsageError, unknown
from mixwise.mixers import MIXERS, Mixer, keyword_options
from mixwise.model import Model, build
from mixwise.models import compact, house

Preset = Callable[..., ModelConfig]

PRESETS: dict[str, Preset] = {}
"""Presets that are not made for every mixer: the papers' own."""


def register_preset(name: str, preset: Preset) -> None:
    """Make `preset` known as `name`; its keyword-only arguments are the changes that `create_model` accepts."""
    if name in PRESETS:
        raise UsageError(f"a preset named {name!r} exists already")
    PRESETS[name] = preset


def register_variants(preset: Preset, variants: Mapping[str, Mapping[str, Any]]) -> None:
    """Register one paper's models: each a name and the values that it gives to the keywords of `preset`."""
    for name, values in variants.items():
        register_preset(name, partial(preset, name=name, **values))


def presets() -> dict[str, Preset]:
    """Every preset by name: the house and compact models of every mixer registered by now, and `PRESETS`."""
    found: dict[str, Preset] = {}
    for mixer in MIXERS:
        found |= {f"{mixer}_{size}": partial(house.house, mixer, size) for size in house.SCALES}
        found |= {f"{mixer}_compact_{size}": partial(compact.compact, mixer, size) for size in compact.SCALES}
    return found | PRESETS


def model_config(name: str, **changes: Any) -> ModelConfig:
    """The config of a preset, with changes such as image=(64, 96), channels=1, classes=10."""
    known = presets()
    if name not in known:
        raise unknown("model", name, known)
    allowed = keyword_options(known[name])
    for change in changes:
        if change not in allowed:
            raise unknown("change", change, allowed, f"model {name!r}")
    try:
        return known[name](**changes)
    except ValidationError as error:
        raise in_words(error, ModelConfig, f"model {name!r}") from None


def create_model(name: str, **changes: Any) -> Model:
    """A fresh model by name.

    Args:
        name: one of `list_models()`.
        changes: what differs from the preset: image=(h, w), channels, classes, patch, …; an unknown one raises.

    >>> create_model("token_mlp_nano", image=(32, 32), classes=10)(torch.randn(1, 3, 32, 32)).shape
    torch.Size([1, 10])
    """
    return build(model_config(name, **changes))


def describe(name: str) -> tuple[int, str]:
    """(number of parameters, what mixes its tokens or else what it is) of a preset, without allocating its weights.

    Of the equal blocks of a stage one is built and counted as often as there are blocks.
    """
    config = model_config(name)
    stages = config.stages if isinstance(config, BackboneConfig) else ()
    slim = {"stages": tuple(stage.model_copy(update={"depth": 1}) for stage in stages)} if stages else {}
    with shapes_only():
        model = build(config.model_copy(update=slim))
    count = sum(p.numel() for p in model.parameters())
    if isinstance(model, Backbone):
        for built, stage in zip(model.stages, stages, strict=True):
            count += (stage.depth - 1) * sum(p.numel() for p in cast(Stage, built).blocks[0].parameters())
    mixers = dict.fromkeys(type(m) for m in model.modules() if isinstance(m, Mixer))
    summaries = [(cls.__doc__ or cls.__name__).splitlines()[0] for cls in mixers or [type(model)]]
    return count, " ".join(summaries)


def list_models(pattern: str = "*") -> list[str]:
    """Names of all presets that match a shell pattern, sorted.

    >>> list_models("linear_*o")
    ['linear_compact_nano', 'linear_nano']
    """
    return sorted(fnmatch.filter(presets(), pattern))
