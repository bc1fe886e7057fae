"""Class names for weights that come without them."""

import json
from collections import Counter
from pathlib import Path

from timm.data import ImageNetInfo, infer_imagenet_subset

from mixwise.errors import UsageError


def imagenet_names(classes: int) -> tuple[tuple[str, ...], str] | None:
    """(names, which ImageNet) by the number of classes, as timm lists them; None where no ImageNet has so many.

    A name that several classes share gets its WordNet number: "crane (n02012849)".
    """
    subset = infer_imagenet_subset({"num_classes": classes})
    if subset is None:
        return None
    info = ImageNetInfo(subset)
    names, numbers = info.label_descriptions(), info.label_names()
    counts = Counter(names)
    unique = (f"{n} ({w})" if counts[n] > 1 else n for n, w in zip(names, numbers, strict=True))
    return tuple(unique), subset


def default_names(classes: int) -> tuple[tuple[str, ...], str]:
    """Names for so many classes, and where they come from: an ImageNet's, else the digits "0", "1", …"""
    found = imagenet_names(classes)
    if found is not None:
        return found[0], f"the class names are those of {found[1]}, by the number of classes; --labels gives others"
    if not classes:
        return (), "the file has no head: the model gives features; --new-head makes an untrained head"
    return tuple(map(str, range(classes))), "the classes have no names: they are called by their number; --labels names"


def read_labels(path: Path) -> tuple[str, ...]:
    """Class names in the order of the outputs: a line each, a JSON list, or a JSON object of number and name."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the labels of {path}: {error}") from None
    names = _from_json(text, path) if text.lstrip()[:1] in ("{", "[") else text.rstrip("\n").split("\n")
    names = [name.strip() for name in names]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if "" in names:
        raise UsageError(f"{path}: line {names.index('') + 1} is empty; each line is the name of one class")
    if twice:
        raise UsageError(f"{path}: the name {twice[0]!r} stands more than once")
    return tuple(names)


def _from_json(text: str, path: Path) -> list[str]:
    try:
        data = json.loads(text)
        found = [data[str(i)] for i in range(len(data))] if isinstance(data, dict) else data
    except (json.JSONDecodeError, KeyError) as error:
        raise UsageError(
            f"{path} is no JSON list of names, and no object of numbers from 0 and names ({error})"
        ) from None
    names = [item[-1] if isinstance(item, list) and item else item for item in found]  # ["n01440764", "tench"]
    if not all(isinstance(name, str) for name in names):
        raise UsageError(f"{path}: every class name must be text")
    return names
