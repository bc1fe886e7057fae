"""Data sets of torchvision by name, torchvision:CIFAR10:FOLDER; they must lie there already, nothing is downloaded."""

import inspect
import os
import re
from dataclasses import dataclass
from typing import Any

from PIL import Image

from mixwise.data.listing import Listing, Row, numbered, numbers_to_names
from mixwise.data.source import Stored
from mixwise.errors import UsageError, unknown

PREFIX = "torchvision:"

_USE = "torchvision:NAME:FOLDER, and options of the data set behind commas: torchvision:EMNIST:data,split=letters"

_SPLITS = {"train": ("train", "trainval"), "val": ("val", "valid"), "test": ("test",)}
"""How torchvision spells them; the first that a data set takes."""

_LABELS = ("targets", "labels", "_labels", "y")
"""Where its data sets keep all labels, so that no picture is read for them."""


@dataclass(frozen=True, slots=True, eq=False)
class Element(Stored):
    """A picture of a torchvision data set."""

    data: Any
    index: int
    name: str

    def read(self) -> Image.Image:
        return self.data[self.index][0]

    def __str__(self) -> str:
        return self.name


def with_absolute_root(source: str) -> str:
    """The same data set, found from anywhere."""
    name, root, options = _parsed(source)
    return PREFIX + ",".join([f"{name}:{os.path.abspath(root)}", *(f"{k}={v}" for k, v in options.items())])


def read_torchvision(source: str) -> Listing:
    """The pictures of a torchvision data set. Raises `UsageError` for a name that is none and for missing files."""
    import torchvision

    name, root, options = _parsed(source)
    known = [each for each in torchvision.datasets.__all__ if each[0].isupper()]
    if name not in known:
        raise unknown("torchvision data set", name, known, _USE)
    cls = getattr(torchvision.datasets, name)
    parameters = {key for base in cls.__mro__ for key in inspect.signature(base.__init__).parameters}
    if "root" not in inspect.signature(cls).parameters:
        raise UsageError(f"torchvision's {name} reads nothing from a folder")
    listing = Listing([])
    ordered: dict[str, None] = {}
    for split, choices in _choices(parameters - set(options)).items():
        made = (_made(cls, root, options | choice) for choice in choices)
        data = next((data for data in made if data is not None), None)
        if data is None:
            continue
        labels, classes = _labels(name, data)
        ordered |= dict.fromkeys(classes)
        for i, label in enumerate(numbers_to_names(name, labels, classes)):
            listing.rows.append(Row(Element(data, i, f"{name}/{split}/{i:05d}"), f"{split}/{i:05d}", (label,), split))
    listing.order = tuple(ordered) or numbered({name for row in listing.rows for name in row.labels or ()})
    return listing


def _parsed(source: str) -> tuple[str, str, dict[str, str]]:
    """(name, folder, options)."""
    text, *options = re.split(r",(?=\w+=)", source.removeprefix(PREFIX))
    name, colon, root = text.partition(":")
    if not name or not colon or not root:
        raise UsageError(f"{source!r} names no data set and folder; write {_USE}")
    return name, os.path.expanduser(root), dict(option.split("=", 1) for option in options)


def _choices(parameters: set[str]) -> dict[str, list[dict[str, Any]]]:
    """Arguments to try for each split."""
    if "train" in parameters:
        return {"train": [{"train": True}], "test": [{"train": False}]}
    if "split" in parameters:
        return {split: [{"split": name} for name in names] for split, names in _SPLITS.items()}
    return {"train": [{}]}


def _made(cls: Any, root: str, arguments: dict[str, Any]) -> Any:
    """The data set, or None where it has no such split."""
    options = {key: int(value) if str(value).isdecimal() else value for key, value in arguments.items()}
    try:
        return cls(root, **options)
    except ValueError as error:
        if ("split" in options and repr(options["split"]) in str(error)) or "Unknown value" in str(error):
            return None
        raise UsageError(f"torchvision's {cls.__name__} in {root}: {error}") from None
    except (TypeError, AttributeError) as error:
        raise UsageError(f"torchvision's {cls.__name__} takes other options: {error}") from None
    except (RuntimeError, OSError) as error:
        words = "".join(f", {key}={value!r}" for key, value in options.items())
        call = f"torchvision.datasets.{cls.__name__}({root!r}{words}, download=True)"
        raise UsageError(
            f"{cls.__name__} is not complete in {root} ({error}); mixwise downloads nothing, {call} does"
        ) from None


def _labels(name: str, data: Any) -> tuple[list[int], tuple[str, ...]]:
    """(class numbers of all pictures, class names)."""
    kept = (getattr(data, where, None) for where in _LABELS)
    values = next((v for v in kept if v is not None and len(v) == len(data)), None)
    if values is None:
        values = [data[i][1] for i in range(len(data))]  # one picture at a time, none kept
    try:
        labels = [int(value) for value in values]
    except (TypeError, ValueError):
        raise UsageError(f"torchvision's {name} has no single class number for a picture") from None
    found = getattr(data, "classes", None) or getattr(data, "categories", None) or ()
    names = [each if isinstance(each, str) else ", ".join(each) for each in found]
    return labels, tuple(f"{each} ({i})" if names.count(each) > 1 else each for i, each in enumerate(names))
