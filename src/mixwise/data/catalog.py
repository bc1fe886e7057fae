"""What a data set is: pictures with labels in splits."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mixwise.data.source import Stored


@dataclass(frozen=True)
class Items:
    """Pictures and their labels, not yet read."""

    sources: Sequence[str | np.ndarray | Stored]
    """What `decode` reads: a path, an array, or a place inside something larger, one a picture."""
    labels: np.ndarray
    """(n,) int64: positions in the catalog's `classes`. With several labels a picture: (n, classes) float32, 0 or 1."""
    names: tuple[str, ...]
    """What to call each picture: its path below the data folder with forward slashes, or "digits/test/0012"."""

    def __len__(self) -> int:
        return len(self.sources)

    def chosen(self, indices: Sequence[int]) -> "Items":
        """Those at `indices`, in that order."""
        sources = tuple(self.sources[i] for i in indices)
        return Items(sources, self.labels[list(indices)], tuple(self.names[i] for i in indices))


@dataclass(frozen=True)
class Catalog:
    """A data set: its classes, its splits, and what is worth knowing about it."""

    source: str
    classes: tuple[str, ...]
    """Class names in the order of the labels: sorted as text (1, 10, 2), as torchvision's ImageFolder does, where the
    data does not number or order its classes itself."""
    splits: dict[str, Items]
    """Keys among "train", "val" and "test"."""
    notes: tuple[str, ...] = ()
    """Sentences for people: what was chosen, passed over or missing."""
    task: Literal["classify", "multilabel"] = "classify"
    """Whether a picture has one label or any number of them."""
    renamed: tuple[tuple[str, str], ...] = ()
    """Names in the data that `classes` call otherwise, each with what it is called here."""
