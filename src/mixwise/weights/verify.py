"""What is checked before a converted model is believed, and the sentences that say so."""

from collections.abc import Mapping
from typing import Any

import timm
import torch
from torch import Tensor, nn

from mixwise.config import ModelConfig, VisionConfig
from mixwise.errors import MixwiseError
from mixwise.model import Model
from mixwise.weights.identify import native_state, preset_names
from mixwise.weights.mapping import FORMATS, Entry, Format, to_foreign

TOLERANCE = 1e-5
"""Largest difference of two float32 implementations, relative to the largest output."""
ROUNDED = 5e-3
"""Largest relative difference of a constant that a format stores and the model computes, such as fixed positions."""
EXACT = 1e-10
"""The same in float64, asked where float32 alone is too coarse to tell rounding from a mistake."""


def round_trip(entries: list[Entry], model: nn.Module, state: Mapping[str, Tensor]) -> str:
    """The model's weights written back through the table must be the file's, to the bit."""
    back = to_foreign(entries, model.state_dict())
    worst, where = 0.0, ""
    for name, tensor in state.items():
        if name not in back or torch.equal(back[name], tensor):
            continue
        gap = relative(back[name].double(), tensor.double())
        if not gap <= worst:
            worst, where = gap, name
    if not worst <= ROUNDED:
        raise MixwiseError(f"written back, {where} differs by {worst:.1e}: the key table does not invert")
    if worst:
        return f"written back, every tensor is the file's to {worst:.0e} (relative; {where})"
    return "written back, every tensor is the file's bit for bit"


def check_numbers(state: Mapping[str, Tensor]) -> None:
    """Every number of a file must be one."""
    for name, tensor in state.items():
        if not tensor.isfinite().all():
            raise MixwiseError(f"{name} has infinite or undefined numbers: the weights are damaged")


def finite(model: Model) -> str:
    """One forward pass on noise must give finite numbers."""
    noise = model.example()
    noise = noise.to(next(model.parameters()).dtype) if noise.is_floating_point() else noise
    with torch.inference_mode():
        answer = model(noise)
    if not answer.isfinite().all():
        raise MixwiseError("the converted model gives infinite or undefined numbers: the weights are damaged")
    return "finite output"


def timm_has(name: str) -> bool:
    """Whether timm itself has a model of this name, not through `mixwise.timm`."""
    return bool(timm.is_model(name)) and timm.model_entrypoint(name).__module__.startswith("timm.")


def timm_format(config: ModelConfig) -> Format | None:
    """The format of timm's files for a model that timm has too."""
    if timm_has(config.name):
        for form in FORMATS.values():
            if form.name.startswith("timm_") and holds(form, config):
                return form
    return None


def holds(form: Format, config: ModelConfig) -> bool:
    """Whether a format's table covers exactly the weights of a model, and the preset is one of its own."""
    if config.name not in preset_names(form):
        return False
    try:
        return set(native_state(config)) == {entry.native for entry in form.entries(config)}
    except (AttributeError, KeyError, IndexError):
        return False


def timm_model(config: VisionConfig) -> nn.Module:
    """The model of the same name in timm, for the same images and classes, in evaluation mode."""
    known = timm.get_pretrained_cfg(config.name)
    settings: dict[str, Any] = {"num_classes": config.classes, "in_chans": config.channels}
    if known is None or tuple(known.input_size[1:]) != config.image:
        try:
            return timm.create_model(config.name, img_size=config.image, **settings).eval()
        except TypeError:  # a model for any size
            pass
    return timm.create_model(config.name, **settings).eval()


def timm_gap(model: Model, state: Mapping[str, Tensor]) -> float:
    """The largest difference of the outputs of a model and timm's with a state of timm's keys, relative, on noise.

    Raises whatever timm raises for weights that are not its own.
    """
    assert isinstance(model.config, VisionConfig)
    theirs = timm_model(model.config)
    theirs.load_state_dict(state)
    images = model.example(2)
    gap = _gap(model, theirs, images)
    if gap > TOLERANCE:
        exact = _gap(model.double(), theirs.double(), images.double())
        model.float()
        gap = gap if exact > EXACT else exact
    return gap


def _gap(ours: nn.Module, theirs: nn.Module, images: Tensor) -> float:
    with torch.inference_mode():
        return relative(ours(images), theirs(images))


def relative(found: Tensor, wanted: Tensor) -> float:
    """max |found - wanted| over max |wanted|; absolute where everything wanted is 0."""
    if found.shape != wanted.shape:
        return float("inf")
    scale = float(wanted.abs().max()) if wanted.numel() else 1.0
    return float((found - wanted).abs().max()) / (scale or 1.0) if wanted.numel() else 0.0


def compare_with_timm(form: Format, model: Model, notes: list[str]) -> str | None:
    """Compare with the installed timm where it has the model: the sentence for it, or None.

    A file in timm's own format must agree; one of the authors' may differ by a choice of timm's, which `notes` says.
    """
    peer = timm_format(model.config)
    if peer is None:
        return None
    name, own = model.config.name, form.name.startswith("timm_")
    try:
        gap = timm_gap(model, to_foreign(peer.entries(model.config), model.state_dict()))
    except (RuntimeError, ValueError, TypeError, AssertionError) as error:
        notes.append(f"timm's {name} could not be built for comparison ({str(error).splitlines()[0]})")
        return None
    if gap <= TOLERANCE:
        return f"equal to timm's {name} on noise: max |Δ| {gap:.1e} (relative, limit {TOLERANCE:.0e})"
    if own:
        raise MixwiseError(
            f"timm's {name} gives other outputs with these weights: max |Δ| {gap:.1e} (relative, limit {TOLERANCE:.0e})"
        )
    notes.append(f"timm's {name} computes something else with these weights (max |Δ| {gap:.1e}, relative)")
    return None
