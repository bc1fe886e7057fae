"""Weights under our own names without the header that says what they are: what timm's scripts write of our models."""

from typing import Any

from mixwise.config import ModelConfig
from mixwise.models import list_models
from mixwise.weights.identify import native_state
from mixwise.weights.mapping import FORMATS, Entry, Format, Shapes, register_format, same

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225), "crop_pct": 0.875}


def bare(config: ModelConfig) -> list[Entry]:
    """Every tensor under its own name."""
    return [same(name, name) for name in native_state(config)]


def usual_preprocessing(config: ModelConfig) -> dict[str, Any]:
    """What the first format of other people says of a preset; where there is none, ImageNet's mean and deviation."""
    for form in FORMATS.values():
        if form.name != "bare" and any(config.name in list_models(pattern) for pattern in form.presets):
            return form.preprocess(config)
    return IMAGENET


def _ours(shapes: Shapes) -> bool:
    return any(name.startswith("stages.0.blocks.0.0.") for name in shapes)


register_format(
    Format(
        "bare",
        "weights of mixwise without their header (timm's scripts)",
        ("*",),
        _ours,
        bare,
        usual_preprocessing,
    )
)
