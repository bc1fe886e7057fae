"""Arrays in one .npz file: pictures and labels under their usual names, with or without train_ and test_."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mixwise.data.listing import Listing, Row, marked, numbered, numbers_to_names, split_name
from mixwise.data.source import Encoded
from mixwise.errors import UsageError

_ROLES = {
    "image": ("image", "images", "x", "img", "imgs", "picture", "pictures", "data"),
    "encoded": ("jpeg", "jpegs", "jpg", "png", "pngs", "encoded"),
    "offset": ("offset", "offsets"),
    "label": ("label", "labels", "y", "target", "targets", "class", "subject", "subjects", "identity"),
    "classes": ("classes", "class_names", "label_names", "names"),
}
"""What the arrays of a file may be called, in any case."""


def read_arrays(path: Path) -> Listing:
    """The pictures of an .npz file: arrays (n, h, w), (n, h, w, c) or (n, c, h, w), or encoded files one after another.

    Raises `UsageError` where the arrays cannot be told apart, do not fit each other or hold pickled objects.
    """
    try:
        file = np.load(path, allow_pickle=False)
        arrays = {name: file[name] for name in file.files if _role(name) is not None}
    except Exception as error:
        raise UsageError(f"{path} cannot be read as arrays: {error}; objects in pickles are never loaded") from None
    parts: dict[str, dict[str, np.ndarray]] = {}
    for name, array in arrays.items():
        split, role = _role(name) or ("", "")
        if role in parts.setdefault(split, {}):
            raise UsageError(f"{path} has two arrays that may be the {role} of {split or 'all'}; one is {name!r}")
        parts[split][role] = array
    classes = tuple(map(str, parts.get("", {}).pop("classes", np.array([])).tolist()))
    parts = {split: part for split, part in parts.items() if part.keys() & {"image", "encoded"}}
    if not parts:
        shown = ", ".join(f"{name} {file[name].shape}" for name in file.files)
        raise UsageError(f"{path} has no array of pictures; it has {shown or 'nothing'}; call them 'image' and 'label'")
    listing = Listing([], order=classes)
    for split, part in parts.items():
        _add(listing, path, split, part, classes)
    if not classes:
        listing.order = numbered({name for row in listing.rows for name in row.labels or ()})
    return listing


def _role(name: str) -> tuple[str, str] | None:
    """(split or "", role) of an array by its name; None for another one.

    >>> _role("x_train"), _role("test_label"), _role("shot")
    (('train', 'image'), ('test', 'label'), None)
    """
    words = re.split(r"[_\-./ ]", name.lower())
    split = next(((i, found) for i in (0, -1) if len(words) > 1 and (found := split_name(words[i]))), None)
    if split is not None:
        del words[split[0]]
    role = next((role for role, names in _ROLES.items() if "_".join(words) in names), None)
    return None if role is None else ("" if split is None else split[1], role)


def _add(listing: Listing, path: Path, split: str, part: Mapping[str, np.ndarray], classes: tuple[str, ...]) -> None:
    where = f"{path.name}, {split or 'all'}"
    encoded = "encoded" in part
    sources: list[Any] = list(
        _encoded(path, where, split, part) if encoded else _pictures(where, part["image"], listing.notes)
    )
    labels: list[Any] = [None] * len(sources)
    if "label" in part:
        labels = list(_labels(where, part["label"], classes, listing))
    if len(labels) != len(sources):
        raise UsageError(f"{where}: {len(sources)} pictures and {len(labels)} labels")
    for i, source in enumerate(sources):
        listing.rows.append(Row(source, f"{split}/{i:05d}".lstrip("/"), labels[i], split or "train"))


def _labels(where: str, values: np.ndarray, classes: tuple[str, ...], listing: Listing) -> list[tuple[str, ...]]:
    if values.ndim == 2 and values.shape[1] > 1:
        if not np.isin(values, (0, 1)).all():
            raise UsageError(f"{where}: labels of shape {values.shape} must be 0 and 1, a column a class")
        names = classes or tuple(map(str, range(values.shape[1])))
        if len(names) != values.shape[1]:
            raise UsageError(f"{where}: {len(names)} classes are named, and the labels have {values.shape[1]} columns")
        found, several = marked(where, values, names, listing.notes)
        listing.several = listing.several or several
        return found
    flat = values.reshape(-1)
    if flat.dtype.kind in "US":
        return [(str(name),) for name in flat.tolist()]
    if flat.dtype.kind == "f" and (flat == np.rint(flat)).all():
        flat = flat.astype(np.int64)
    if flat.dtype.kind not in "iub":
        raise UsageError(f"{where}: labels must be whole numbers or names, got {flat.dtype}")
    return [(name,) for name in numbers_to_names(where, [int(value) for value in flat.tolist()], classes)]


def _encoded(path: Path, where: str, split: str, part: Mapping[str, np.ndarray]) -> list[Encoded]:
    data, offsets = part["encoded"], part.get("offset")
    if offsets is None or data.dtype != np.uint8 or data.ndim != 1:
        raise UsageError(f"{where}: encoded pictures need one row of bytes and an 'offset' array of n + 1 places")
    places = offsets.astype(np.int64).tolist()
    names = (f"{path}/{split}/{i:05d}".replace("//", "/") for i in range(len(places) - 1))
    return [Encoded(data, a, b, name) for a, b, name in zip(places[:-1], places[1:], names, strict=True)]


def _pictures(where: str, images: np.ndarray, notes: list[str]) -> list[np.ndarray]:
    """One array a picture, each a view, in a form that `decode` takes."""
    shape = images.shape
    if images.ndim == 4 and shape[1] in (1, 3, 4) and shape[3] not in (1, 3, 4):
        images = images.transpose(0, 2, 3, 1)
    if images.ndim not in (3, 4) or (images.ndim == 4 and images.shape[3] not in (1, 3, 4)):
        raise UsageError(
            f"{where}: pictures must be (n, h, w), (n, h, w, c) or (n, c, h, w) with c 1, 3 or 4, got {shape}"
        )
    if images.dtype.kind in "iuf" and images.dtype not in (np.uint8, np.uint16) and images.size:
        low, high = images.min(), images.max()
        if images.dtype.kind != "f" or low < 0 or high > 1:
            if not (low >= 0 and high <= 255):
                allowed = "0 to 1 or 0 to 255"
                raise UsageError(f"{where}: values must be {allowed}, got {low:.4g} to {high:.4g} in {images.dtype}")
            notes.append(f"{where}: {images.dtype} up to {high:.4g}, read as 0 to 255")
            images = np.rint(images).astype(np.uint8)
    return list(images)
