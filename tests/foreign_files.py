"""Small models under names that the formats know, and their files as other people write them."""

import argparse
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from mixwise.model import Model, build
from mixwise.models import model_config
from mixwise.models.mlp_mixer import mlp_mixer
from mixwise.models.registry import PRESETS
from mixwise.models.resmlp import resmlp
from mixwise.weights.mapping import FORMATS, to_foreign
from testing_weights import lively

SMALL = {"image": (32, 48), "patch": 8, "dim": 24, "depth": 2, "classes": 5}
PRESETS_HERE = {
    "resmlp_small": partial(resmlp, **{"name": "resmlp_small", **SMALL}),
    "resmlp_deeper": partial(resmlp, **{"name": "resmlp_deeper", **SMALL, "depth": 3}),
    "mixer_small": partial(mlp_mixer, **{"name": "mixer_small", **SMALL}),
}


@contextmanager
def small_presets() -> Iterator[None]:
    """The presets exist inside."""
    with pytest.MonkeyPatch.context() as patch:
        for name, preset in PRESETS_HERE.items():
            patch.setitem(PRESETS, name, preset)
        yield


def small(form: str = "timm_resmlp", name: str = "resmlp_small", **changes) -> tuple[Model, dict[str, Tensor]]:
    """A model with lively weights, and its state under the keys of a format."""
    config = FORMATS[form].adapt(model_config(name, **changes), {})
    model = lively(build(config)).eval()
    return model, to_foreign(FORMATS[form].entries(config), model.state_dict())


def write(path: Path, content, kind: str) -> Path:
    """Write a state, or for PyTorch anything, in one of the containers."""
    if kind == "safetensors":
        save_file(content, path)
    elif kind == "npz":
        with open(path, "wb") as file:
            np.savez(file, **{name: tensor.numpy() for name, tensor in content.items()})
    else:
        torch.save(content, path, _use_new_zipfile_serialization=kind == "zip")
    return path


@contextmanager
def fake_yacs():
    """yacs, which writes RepMLP's settings and is not installed here."""
    module = types.ModuleType("yacs.config")

    class CfgNode(dict):
        def __init__(self, values: dict) -> None:
            super().__init__(values)
            self.__dict__["__immutable__"] = False

    CfgNode.__module__, CfgNode.__qualname__ = "yacs.config", "CfgNode"
    module.CfgNode = CfgNode
    sys.modules["yacs"], sys.modules["yacs.config"] = types.ModuleType("yacs"), module
    try:
        yield CfgNode
    finally:
        del sys.modules["yacs"], sys.modules["yacs.config"]


def script_arguments() -> argparse.Namespace:
    """What training scripts keep beside the weights."""
    return argparse.Namespace(model="x", lr=0.1, output=Path("runs"), best=np.float64(0.5))
