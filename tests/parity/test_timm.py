"""Live against the installed timm with random weights, both directions: every preset that timm has too."""

import pytest
import timm
import torch
from torch import nn

from mixwise.model import build
from mixwise.models import list_models, model_config
from mixwise.weights.mapping import FORMATS, foreign_shapes, to_foreign, to_native
from mixwise.weights.verify import timm_has
from testing_weights import lively

SHARED = [name for name in list_models() if timm_has(name)]
RUN_BELOW = 32e6
"""Parameters up to which both models run; larger ones are compared by shapes, on the meta device."""


def form_of(name: str):
    """The timm format that holds a preset."""
    forms = [
        f
        for key, f in FORMATS.items()
        if key.startswith("timm_") and any(name in list_models(pattern) for pattern in f.presets)
    ]
    assert len(forms) == 1, f"{name} belongs to {[f.name for f in forms]}"
    return forms[0]


def official(name: str) -> nn.Module:
    """timm's model with a head: two of its ViTs have none by default, because their best known weights have none."""
    return timm.create_model(name, num_classes=1000)


def config_of(name: str, form):
    """The preset as `convert` has it for a timm file: where timm differs from the paper's code, timm's side."""
    with torch.device("meta"):
        theirs = official(name).state_dict()
    return form.adapt(model_config(name), {key: tuple(tensor.shape) for key, tensor in theirs.items()})


def count(name: str) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in build(model_config(name)).parameters())


def close(ours: nn.Module, theirs: nn.Module, x: torch.Tensor) -> bool:
    with torch.no_grad():
        wanted = theirs(x)
        return float((ours(x) - wanted).abs().max()) <= 1e-5 * max(1.0, float(wanted.abs().max()))


@pytest.mark.parametrize("name", SHARED)
def test_same_shapes(name):
    form = form_of(name)
    config = config_of(name, form)
    with torch.device("meta"):
        theirs = {k: tuple(v.shape) for k, v in official(name).state_dict().items()}
        ours = build(config).state_dict()
    assert foreign_shapes(form.entries(config), ours) == theirs


@pytest.mark.parametrize("name", [n for n in SHARED if count(n) < RUN_BELOW])
def test_same_output_both_ways(name):
    form = form_of(name)
    config = config_of(name, form)
    theirs, ours = lively(official(name)).eval(), build(config).eval()
    entries = form.entries(config)
    x = torch.randn(1, 3, *config.image, generator=torch.Generator().manual_seed(0))
    ours.load_state_dict(to_native(entries, theirs.state_dict(), ours.state_dict(), lambda key: False))
    assert close(ours, theirs, x)
    back = official(name).eval()
    back.load_state_dict(to_foreign(entries, lively(ours, seed=5).state_dict()))
    assert close(ours, back, x)
