"""A golden vector and what is compared with it."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mixwise.config import ModelConfig
from mixwise.model import build
from mixwise.weights.mapping import FORMATS, Entry, to_native


@dataclass(frozen=True)
class Vector:
    """One `.npz` with its `.json`."""

    path: Path
    meta: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> "Vector":
        return cls(path, json.loads(path.read_text(encoding="utf-8")))

    @property
    def key(self) -> tuple[str, str]:
        """(system, class), by which a builder is found."""
        return self.meta["system"], self.meta["source"]["class"].split(" ")[0]

    @property
    def arguments(self) -> Mapping[str, Any]:
        return self.meta["arguments"]

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the input images."""
        shape, layout = self.meta["input"]["shape"], self.meta["input"]["layout"]
        return (shape[1], shape[2]) if layout == "NHWC" else (shape[2], shape[3])

    def arrays(self) -> dict[str, np.ndarray]:
        with np.load(self.path.with_suffix(".npz"), allow_pickle=False) as file:
            return {name: file[name] for name in file.files}


def tokens(x: Tensor) -> Tensor:
    """Tokens stay tokens."""
    return x


def map_tokens(x: Tensor) -> Tensor:
    """A map (b, c, h, w) as tokens (b, h·w, c)."""
    return x.flatten(2).transpose(1, 2)


def channels_last(x: Tensor) -> Tensor:
    """A map (b, c, h, w) as (b, h, w, c)."""
    return x.permute(0, 2, 3, 1)


def first(x: Any) -> Tensor:
    """Of a stage's (tokens, grid): the tokens."""
    return x[0]


@dataclass(frozen=True)
class Case:
    """Our module for a vector, its key table, and how inputs, outputs and intermediates correspond."""

    make: Callable[[], nn.Module]
    """A fresh module."""
    entries: list[Entry]
    run: Callable[[nn.Module, Tensor], Tensor] = lambda module, x: module(x)
    """The input in the official layout → the output in the official layout."""
    inter: Mapping[str, tuple[str, Callable[[Any], Tensor]]] = field(default_factory=dict)
    """Name of an intermediate → path of our module, and how its output becomes the official layout."""
    ignored: Callable[[str], bool] = lambda name: False
    deploy: list[Entry] | None = None
    """Key table of the official re-parameterised form, for our re-parameterised module."""
    make_deploy: Callable[[], nn.Module] | None = None
    """A fresh module for these keys; None: our re-parameterised module has them."""
    reparameterize: Callable[[nn.Module], nn.Module] = lambda module: module.reparameterize()

    def loaded(self, state: Mapping[str, Tensor], *, double: bool = False) -> nn.Module:
        """Our module with the official weights, in evaluation mode."""
        return self._load(self.make(), self.entries, state, double)

    def loaded_deploy(self, state: Mapping[str, Tensor], *, double: bool = False) -> nn.Module:
        """Our module with the official re-parameterised weights."""
        assert self.deploy is not None
        module = self.reparameterize(self.make().eval()) if self.make_deploy is None else self.make_deploy()
        return self._load(module, self.deploy, state, double)

    def _load(self, module: nn.Module, entries: list[Entry], state: Mapping[str, Tensor], double: bool) -> nn.Module:
        if double:
            module, state = module.double(), {n: t.double() if t.is_floating_point() else t for n, t in state.items()}
        module.load_state_dict(to_native(entries, state, module.state_dict(), self.ignored))
        return module.eval()


def from_format(name: str, config: ModelConfig, **others: Any) -> Case:
    """A whole model, through the table of the format that `convert` uses."""
    form = FORMATS[name]
    return Case(lambda: build(config), form.entries(config), **others)


BUILDERS: dict[tuple[str, str], Callable[[Vector], Case]] = {}


def builder(system: str, cls: str) -> Callable[[Callable[[Vector], Case]], Callable[[Vector], Case]]:
    """Register how vectors of a system and class are built here."""

    def add(function: Callable[[Vector], Case]) -> Callable[[Vector], Case]:
        BUILDERS[system, cls] = function
        return function

    return add


def as_tensors(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, Tensor]:
    """The arrays under a prefix, without it."""
    return {n.removeprefix(prefix): torch.from_numpy(a.copy()) for n, a in arrays.items() if n.startswith(prefix)}
