"""Data sets that `datasets` saved to disk with `save_to_disk`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mixwise.data.listing import Listing, Row, label_text, numbered, numbers_to_names, split_name
from mixwise.data.source import Stored
from mixwise.errors import UsageError

_IMAGE = ("image", "img", "picture", "pixel_values")
_LABEL = ("label", "labels", "fine_label", "class", "category", "target", "tags", "objects")


@dataclass(frozen=True, slots=True, eq=False)
class Cell(Stored):
    """A picture in a row of a table that stays on disk."""

    table: Any
    index: int
    column: str
    name: str

    def read(self) -> bytes | np.ndarray:
        value = self.table[self.index][self.column]
        if not isinstance(value, dict):
            return np.asarray(value, np.uint8)
        return value["bytes"] if value.get("bytes") is not None else Path(value["path"]).read_bytes()

    def __str__(self) -> str:
        return self.name


def is_saved(folder: Path) -> bool:
    """Whether a folder is what `save_to_disk` makes."""
    return (folder / "dataset_dict.json").is_file() or (
        (folder / "state.json").is_file() and (folder / "dataset_info.json").is_file()
    )


def read_saved(folder: Path) -> Listing:
    """The pictures of a saved `Dataset` or `DatasetDict`; only labels are read, pictures stay on disk.

    Raises `UsageError` without the package, and where no column holds pictures.
    """
    try:
        import datasets
    except ImportError:
        raise UsageError(
            f"{folder} was saved by Hugging Face datasets, and reading it needs them: pip install 'mixwise[datasets]'"
        ) from None
    saved = datasets.load_from_disk(str(folder))
    tables = dict(saved) if isinstance(saved, datasets.DatasetDict) else {"train": saved}
    listing = Listing([])
    ordered: dict[str, None] = {}
    for part, table in tables.items():
        split = split_name(part)
        if split is None:
            listing.notes.append(f"the split {part!r} was passed over: it is none of train, val and test")
            continue
        if part != split:
            listing.notes.append(f"{part} is the {split} split")
        column = _named(table, _IMAGE, "Image", folder)
        if type(table.features[column]).__name__ == "Image":
            table = table.cast_column(column, datasets.Image(decode=False))
        labels, names, several = _labels(table, folder)
        listing.several = listing.several or several
        ordered |= dict.fromkeys(names)
        for i, mine in enumerate(labels):
            name = f"{split}/{i:06d}"
            listing.rows.append(Row(Cell(table, i, column, f"{folder}/{name}"), name, mine, split))
    if not listing.rows:
        raise UsageError(
            f"{folder} holds none of the splits train, val and test, only {', '.join(tables) or 'nothing'}"
        )
    seen = {name for row in listing.rows for name in row.labels or ()}
    listing.order = tuple(ordered) or numbered(seen)
    return listing


def _named(table: Any, names: tuple[str, ...], kind: str, folder: Path) -> str:
    """The column of a kind of feature, or else with one of these names."""
    features = table.features
    found = [name for name in features if type(features[name]).__name__ == kind]
    found = found or [name for name in names if name in features]
    if not found:
        raise UsageError(f"{folder} has no column of pictures; its columns are {', '.join(features)}")
    return found[0]


def _labels(table: Any, folder: Path) -> tuple[list[tuple[str, ...] | None], tuple[str, ...], bool]:
    """(labels of each row, class names in their own order, whether there may be several)."""
    features = table.features
    classes = [name for name in features if type(features[name]).__name__ == "ClassLabel"]
    found = [*(name for name in _LABEL if name in classes), *classes, *(name for name in _LABEL if name in features)]
    if not found:
        return [None] * len(table), (), False
    column = found[0]
    feature = features[column]
    inner = getattr(feature, "feature", feature)
    names = tuple(getattr(inner, "names", None) or ())
    values = list(table[column])
    several = any(isinstance(value, list) for value in values)
    rows: list[tuple[str, ...] | None] = []
    for value in values:
        mine = (value or []) if several else [value]
        if names and all(isinstance(each, int) for each in mine):
            rows.append(tuple(numbers_to_names(str(folder), mine, names)))
        else:
            said = tuple(filter(None, map(label_text, mine)))
            rows.append(said if said or several else None)
    return rows, names, several
