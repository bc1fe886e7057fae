"""The forms that a data set comes in, one a file; `read_listing` finds out which one it is."""

import os
from pathlib import Path

import numpy as np
from PIL import Image

from mixwise.data.builtin import BUILTIN, builtin
from mixwise.data.layout import read_folders
from mixwise.data.layouts.arrays import read_arrays
from mixwise.data.layouts.huggingface import is_saved, read_saved
from mixwise.data.layouts.shards import find_shards, is_pattern, read_shards
from mixwise.data.layouts.table import named_pictures, read_split_tables, read_table, split_tables
from mixwise.data.layouts.text import LISTS, TEXT_TABLES
from mixwise.data.layouts.torchvision_sets import PREFIX, read_torchvision, with_absolute_root
from mixwise.data.listing import Listing, from_items
from mixwise.data.source import Named, Stored

__all__ = ["located", "read_listing", "unlabelled"]

TABLES = (*TEXT_TABLES, *LISTS, ".parquet", ".pq")

_FILES = (*TABLES, ".tar", ".npz")
"""Endings of files that are data sets, not pictures."""


def located(source: str | Path) -> str:
    """A data source as it is found from anywhere: paths become absolute, names of data sets stay.

    >>> located("digits")
    'digits'
    """
    text = str(source)
    if text in BUILTIN:
        return text
    if text.startswith(PREFIX):
        return with_absolute_root(text)
    return os.path.abspath(os.path.expanduser(text))


def read_listing(source: str | Path) -> Listing:
    """All pictures of a data set with the names of their labels. Raises `UsageError` where there is none."""
    text = str(source)
    if text in BUILTIN:
        catalog = builtin(text)
        hint = f"{text!r} is the built-in data set; for the folder of that name write ./{text}"
        notes = [hint] if Path(text).is_dir() else []
        return Listing(from_items(catalog.splits, catalog.classes), notes, order=catalog.classes)
    if text.startswith(PREFIX):
        return read_torchvision(text)
    path = Path(source).expanduser()
    if path.is_dir():
        return _read_folder(path)
    suffix = path.suffix.lower()
    if suffix == ".tar" and (path.is_file() or is_pattern(path)):
        return read_shards(path)
    if path.is_file() and suffix == ".npz":
        return read_arrays(path)
    if path.is_file() and suffix in TABLES:
        return read_table(path)
    return read_folders(path)


def unlabelled(path: Path) -> list[str | Stored]:
    """The pictures in a table, list, tar, array file or folder of tars, whether labelled or not; else nothing.

    A picture that only ends like one of these is no such file.
    """
    if path.is_dir():
        if not is_saved(path) and not find_shards(path):
            return []
    elif path.suffix.lower() not in _FILES or _is_picture(path):
        return []
    rows = named_pictures(path) if path.suffix.lower() in TABLES else read_listing(path).rows
    return [Named(row.source, f"{path}/{row.name}") if np.ndim(row.source) else row.source for row in rows]  # type: ignore


def _is_picture(path: Path) -> bool:
    try:
        with Image.open(path):
            return True
    except (OSError, ValueError):
        return False


def _read_folder(path: Path) -> Listing:
    if is_saved(path):
        return read_saved(path)
    if find_shards(path):
        return read_shards(path)
    tables = split_tables(path, TABLES)
    if tables:
        return read_split_tables(path, tables)
    listing = read_folders(path)
    beside = [entry for entry in sorted(path.iterdir()) if entry.suffix.lower() in (*TEXT_TABLES, ".parquet", ".pq")]
    if beside:
        listing.notes.append(
            f"classes are the names of folders; {beside[0].name} was not read: where the labels stand in it, give "
            f"{beside[0]} instead"
        )
    return listing
