"""One resolver for every verb: what does this name or path mean?"""

import difflib
from pathlib import Path

from mixwise.errors import MixwiseError
from mixwise.model import Model
from mixwise.weights.native import Header, load_file, read_header

BEST = "model.safetensors"
"""The best weights of a run folder."""
LAST = "last.safetensors"
"""The weights after the last epoch."""


def resolve(path: str | Path) -> Path:
    """The weights file that `path` means: itself, or the best weights of a run folder."""
    path = Path(path).expanduser()
    if path.is_dir():
        for name in (BEST, LAST):
            if (path / name).is_file():
                return path / name
        raise MixwiseError(f"{path} is a folder without {BEST}: not a run folder, or its first epoch is not finished")
    if path.is_file():
        return path
    siblings = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, siblings, n=1)
    hint = f"; did you mean {path.parent / near[0]}?" if near else ""
    raise MixwiseError(f"no model at {path}: expected a run folder or a .safetensors file{hint}")


def is_model(path: str | Path) -> bool:
    """Whether `path` is a run folder or a weights file, and not data."""
    path = Path(path).expanduser()
    return any((path / name).is_file() for name in (BEST, LAST)) or (path.is_file() and path.suffix == ".safetensors")


def load(path: str | Path) -> Model:
    """The model of a run folder or a `.safetensors` file, on the CPU in evaluation mode.

    It takes normalised images; `Predictor(path)` also reads, resizes and normalises pictures and names the classes.
    """
    return load_file(resolve(path))[0]


def info(path: str | Path) -> Header:
    """What the weights of a run folder or file say about themselves."""
    return read_header(resolve(path))
