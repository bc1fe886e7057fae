"""Data sets that come with the installation: no download, no folder."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from mixwise.data.catalog import Catalog, Items
from mixwise.errors import UsageError, unknown


def digits() -> Catalog:
    """1,797 handwritten digits, 8 x 8 grey, from scikit-learn: 1,197 train, 300 val and 300 test, each stratified.

    The split never changes. Values 0 to 16 are scaled to 0 to 255.
    Source: Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits", UCI, the original's test part.

    >>> {split: len(items) for split, items in digits().splits.items()}
    {'train': 1197, 'val': 300, 'test': 300}
    """
    # scikit-learn takes most of a second to import: only who asks for digits pays for it.
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    bunch = load_digits()
    images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
    labels = bunch.target.astype(np.int64)
    rest, test = train_test_split(np.arange(len(labels)), test_size=300, stratify=labels, random_state=0)
    train, val = train_test_split(rest, test_size=300, stratify=labels[rest], random_state=0)
    splits = {}
    for split, chosen in (("train", train), ("val", val), ("test", test)):
        names = tuple(f"digits/{split}/{i:04d}" for i in range(len(chosen)))
        splits[split] = Items(tuple(images[chosen]), labels[chosen], names)
    return Catalog("digits", tuple("0123456789"), splits)


BUILTIN: dict[str, Callable[[], Catalog]] = {"digits": digits}
"""Every built-in data set by name."""


def builtin(name: str) -> Catalog:
    """A built-in data set by name."""
    if name not in BUILTIN:
        raise unknown("built-in data set", name, BUILTIN)
    return BUILTIN[name]()


def export_builtin(name: str, folder: str | Path, *, split: str = "test", count: int = 20) -> list[Path]:
    """Write the first pictures of each class as PNG files `<class>_<index>.png`, to have something to predict on.

    Args:
        name: one of `BUILTIN`.
        folder: created if it is missing.
        split: "train", "val" or "test".
        count: how many files in all; the classes take turns. The index counts within the split.

    Returns: the paths written.
    """
    catalog = builtin(name)
    if split not in catalog.splits:
        raise unknown("split", split, catalog.splits, f"data set {name!r}")
    items = catalog.splits[split]
    if not 0 < count <= len(items):
        raise UsageError(f"export of {name!r}: count must be 1 to {len(items)}, got {count}")
    turn = np.zeros(len(items), np.int64)
    for label in range(len(catalog.classes)):
        mine = items.labels == label
        turn[mine] = np.arange(mine.sum())
    Path(folder).mkdir(parents=True, exist_ok=True)
    written = []
    for index in np.lexsort((items.labels, turn))[:count]:
        path = Path(folder) / f"{catalog.classes[items.labels[index]]}_{index:04d}.png"
        Image.fromarray(np.asarray(items.sources[index])).save(path)
        written.append(path)
    return written
