"""Reading other people's checkpoints: what is in the file, without ever running code from it."""

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from mixwise.errors import MixwiseError

RAW = ("model", "state_dict", "net", "module")
"""Names under which training scripts keep the weights."""
EMA = ("model_ema", "state_dict_ema", "ema")
"""Names under which they keep a running average of them."""


class Checkpoint(NamedTuple):
    """The tensors of a file, plain names."""

    raw: dict[str, Tensor]
    ema: dict[str, Tensor] | None
    """The averaged weights, where the file has them too."""


def read_checkpoint(path: Path) -> Checkpoint:
    """The weights of a `.safetensors`, `.npz` or PyTorch file, told apart by content.

    PyTorch files are read with `weights_only=True`: a pickle that would run code is refused.
    Raises `MixwiseError` for what cannot be read.
    """
    try:
        with path.open("rb") as file:
            start = file.read(16)
    except OSError as error:
        raise MixwiseError(f"cannot read {path}: {error.strerror or error}") from None
    if not start:
        raise MixwiseError(f"{path} is empty")
    try:
        content = _load(path, start)
    except pickle.UnpicklingError as error:
        reason = str(error).split("\n")[0]
        raise MixwiseError(
            f"{path} is not plain weights: it is not a PyTorch file at all, or a pickle that holds other objects than "
            f"tensors, which could run code and is never opened ({reason})"
        ) from None
    except (SafetensorError, zipfile.BadZipFile, EOFError, OSError, RuntimeError, ValueError, KeyError) as error:
        raise MixwiseError(
            f"{path} is damaged or cut short, or not a checkpoint ({str(error).splitlines()[0]})"
        ) from None
    return _unwrap(content, path)


def _load(path: Path, start: bytes) -> Any:
    if start[8:9] == b"{" and not start.startswith(b"PK"):
        return load_file(path)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if all(name.endswith(".npy") for name in archive.namelist()):
                with np.load(path, allow_pickle=False) as arrays:
                    return {name: torch.from_numpy(np.array(arrays[name])) for name in arrays.files}
    return torch.load(path, map_location="cpu", weights_only=True)


def _unwrap(content: Any, path: Path) -> Checkpoint:
    """Out of the dictionaries of training scripts, without the `module.` of data-parallel training."""
    if not isinstance(content, Mapping):
        raise MixwiseError(f"{path} holds a {type(content).__name__}, not a dictionary of weights")
    for name in RAW:
        if isinstance(content.get(name), Mapping) and _tensors(content[name]):
            average = next((content[e] for e in EMA if isinstance(content.get(e), Mapping)), None)
            return Checkpoint(_plain(content[name]), None if average is None else _plain(average))
    if not _tensors(content):
        raise MixwiseError(f"{path} has no weights: its entries are {', '.join(map(str, list(content)[:8]))}")
    return Checkpoint(_plain(content), None)


def _tensors(content: Mapping[str, Any]) -> bool:
    return any(isinstance(value, Tensor) for value in content.values())


def _plain(content: Mapping[str, Any]) -> dict[str, Tensor]:
    """Tensors alone, each with a storage of its own, under names without a common `module.` in front."""
    state = {str(name): value.detach().clone() for name, value in content.items() if isinstance(value, Tensor)}
    while state and all(name.startswith("module.") for name in state):
        state = {name.removeprefix("module."): value for name, value in state.items()}
    return state
