"""Reading other people's checkpoints: what is in the file, without ever running code from it."""

import pickle
import re
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from mixwise.errors import MixwiseError

RAW = ("model", "state_dict", "net", "module")
"""Names under which training scripts keep the weights."""
EMA = ("model_ema", "state_dict_ema", "ema")
"""Names under which they keep a running average of them."""
WRAPPERS = ("module.", "_orig_mod.", "model.", "net.")
"""What data-parallel training, torch.compile and training loops put in front of every key."""
TREES = ("opt/target/", "target/", "params/")
"""Where Flax training states keep the weights; what stands beside belongs to the optimiser."""

SIGNATURES = (
    (b"\x89HDF", "an HDF5 file (Keras), a format that mixwise does not read"),
    (b"GGUF", "a GGUF file, a format that mixwise does not read"),
    (b"\x93NUMPY", "a single NumPy array, not a checkpoint"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself: fetch it with `git lfs pull`"),
    (b"\x1f\x8b", "a gzip archive: unpack it and give the file inside"),
    (b"<", "a web page, not a checkpoint: the download went to the page instead of the file"),
    (b"{", "a text file, not a checkpoint"),
)
"""First bytes of files that are often given by mistake, and what to say of them."""
TORCH_LEGACY = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""The number that opens a PyTorch file from before 1.6, behind the two bytes of the pickle protocol."""


class Checkpoint(NamedTuple):
    """The tensors of a file, plain names."""

    raw: dict[str, Tensor]
    ema: dict[str, Tensor] | None
    """The averaged weights, where the file has them too."""


class Inert:
    """Stands in for a harmless class that training scripts leave in their files; takes anything, does nothing."""

    def __new__(cls, *values: Any) -> "Inert":
        return super().__new__(cls)

    def __init__(self, *values: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass


class InertMapping:
    """As `Inert`, for dictionaries with a class of their own; what comes out is an ordered dictionary."""

    def __new__(cls, *values: Any) -> Any:
        return OrderedDict()


STAND_INS: list[Any] = [
    (Inert, "argparse.Namespace"),
    (Inert, "numpy.dtype"),
    (Inert, "numpy.core.multiarray.scalar"),
    (Inert, "numpy._core.multiarray.scalar"),
    (Inert, "pathlib.PosixPath"),
    (Inert, "pathlib.WindowsPath"),
    (InertMapping, "yacs.config.CfgNode"),
]
"""Settings and numbers beside the weights in the files of DeiT, timm (Namespace) and RepMLP (CfgNode). The classes
named are never looked up: the unpickler gets the stand-ins, and refuses every other name."""


def read_checkpoint(path: Path) -> Checkpoint:
    """The weights of a `.safetensors`, `.npz` or PyTorch file, told apart by content.

    PyTorch files are read with `weights_only=True`: a pickle that would run code is refused.
    Raises `MixwiseError` for what cannot be read.
    """
    if path.is_dir():
        inside = sorted(p.name for p in path.iterdir() if p.suffix in (".safetensors", ".npz", ".pth", ".pt", ".bin"))
        hint = f": give a file in it, such as {path / inside[0]}" if inside else " without checkpoints"
        raise MixwiseError(f"{path} is a folder{hint}")
    if not path.is_file():
        raise MixwiseError(f"no file at {path}")
    try:
        with path.open("rb") as file:
            start = file.read(64)
    except OSError as error:
        raise MixwiseError(f"cannot read {path}: {error.strerror or error}") from None
    if not start:
        raise MixwiseError(f"{path} is empty")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pickle protocols, storages of old files: nothing a user can act on
            return _unwrap(_load(path, start), path)
    except MixwiseError:
        raise
    except pickle.UnpicklingError as error:
        raise _refusal(path, start, str(error)) from None
    except Exception as error:  # a damaged file can raise anything: struct, zlib, codec and memory errors too
        reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
        raise MixwiseError(f"{path} is damaged or cut short, or not a checkpoint ({reason})") from None


def _load(path: Path, start: bytes) -> Any:
    if start[8:9] == b"{" and not start.startswith(b"PK"):
        return load_file(path)
    for signature, what in SIGNATURES:
        if start.lstrip().startswith(signature):
            raise MixwiseError(f"{path} is {what}")
    if start.startswith(b"PK"):
        if not zipfile.is_zipfile(path):
            raise MixwiseError(f"{path} is cut short: the table of contents at its end is missing")
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
        if names and all(name.endswith(".npy") for name in names):
            return _load_npz(path)
        if any(name.endswith("constants.pkl") for name in names):
            raise MixwiseError(
                f"{path} is a TorchScript program, not plain weights: in a program that you trust, "
                "save torch.jit.load(FILE).state_dict() with torch.save"
            )
    with torch.serialization.safe_globals(STAND_INS):
        return torch.load(path, map_location="cpu", weights_only=True)


def _load_npz(path: Path) -> dict[str, Tensor]:
    """The arrays of an `.npz`; bfloat16 of Flax comes as two raw bytes, text is left out."""
    found = {}
    with np.load(path, allow_pickle=False) as arrays:
        for name in arrays.files:
            try:
                array = arrays[name]
            except ValueError as error:
                if "allow_pickle" not in str(error):
                    raise
                raise MixwiseError(f"{path} holds Python objects under {name!r}, which are never opened") from None
            if array.dtype.kind in "US":
                continue
            if array.dtype.str == "|V2":
                found[name] = torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
            else:
                found[name] = torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("=")))
    return found


def _refusal(path: Path, start: bytes, message: str) -> MixwiseError:
    """The sentence for a pickle that was not opened."""
    named = re.search(r"GLOBAL ([\w.]+) (?:was|whose)", message)
    if start.startswith(b"PK") or start[2:].startswith(TORCH_LEGACY) or named:
        what = f"{named[1]}, which is no tensor" if named else "more than tensors"
        return MixwiseError(
            f"{path} was not opened: it holds {what}, and unpickling that could run code. In a program that you "
            "trust, save the weights alone: torch.save(model.state_dict(), FILE)"
        )
    if start[:1] == b"\x80":
        return MixwiseError(
            f"{path} was not opened: it is a plain pickle (as of Jittor or Paddle), and unpickling it could run code. "
            "In a program that you trust, save its arrays with numpy.savez(FILE, **arrays)"
        )
    return MixwiseError(f"{path} is not a checkpoint: neither safetensors, npz nor a PyTorch file")


def _unwrap(content: Any, path: Path) -> Checkpoint:
    """Out of the dictionaries of training scripts."""
    if not isinstance(content, Mapping):
        raise MixwiseError(f"{path} holds a {type(content).__name__}, not a dictionary of weights")
    raw, ema = (next((s for n in names if (s := _state(content.get(n)))), None) for names in (RAW, EMA))
    if raw is None and ema is None:
        raw = _state(content)
    if raw is None and ema is None:
        states = {str(name): state for name, value in content.items() if (state := _state(value))}
        if len(states) > 1:
            raise MixwiseError(f"{path} has several sets of weights ({', '.join(states)}): save the one that you mean")
        raw = next(iter(states.values()), None)
    if raw is None and ema is None:
        names = ", ".join(map(str, list(content)[:8])) or "none"
        raise MixwiseError(f"{path} has no weights: its entries are {names}")
    average = None if ema is None else _plain(ema, path)
    return Checkpoint(_plain(raw, path) if raw is not None else average or {}, average)


def _state(value: Any) -> Mapping[str, Any] | None:
    """A dictionary with tensors in it, or the one that it wraps."""
    if not isinstance(value, Mapping):
        return None
    inner = next((s for name in RAW if (s := _state(value.get(name)))), None)
    return inner or (value if any(isinstance(v, Tensor) for v in value.values()) else None)


def _plain(content: Mapping[str, Any], path: Path) -> dict[str, Tensor]:
    """Tensors alone, each with a storage of its own, under the model's own names."""
    state = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    for tree in TREES:
        if any(name.startswith(tree) for name in state):
            state = {name.removeprefix(tree): value for name, value in state.items() if name.startswith(tree)}
    if any(name.startswith("module.") for name in state):
        state.pop("n_averaged", None)  # the counter of torch's AveragedModel
    while wrapper := next((w for w in WRAPPERS if state and all(n.startswith(w) for n in state)), None):
        state = {name.removeprefix(wrapper): value for name, value in state.items()}
    for name, value in state.items():
        if value.layout != torch.strided or value.is_quantized or value.is_complex() or value.is_meta:
            raise MixwiseError(f"{path}: {name} is {value.dtype}, {value.layout}: only plain dense weights are read")
    return {name: value.detach().clone() for name, value in state.items()}
