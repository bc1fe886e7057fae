"""Tables of pictures: columns path, label and split, or a column a label; from CSV, TSV, Parquet and lists of files."""

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mixwise.data.layout import is_split_tree
from mixwise.data.layouts.text import PATH_TITLES, Cells, column_titled, is_picture_name, read_text
from mixwise.data.listing import Listing, Row, counted, kinds, label_text, listed, marked, split_name
from mixwise.errors import UsageError, printable

_LABEL = (
    "label",
    "labels",
    "class",
    "classes",
    "class_name",
    "classname",
    "category",
    "categories",
    "target",
    "targets",
    "tag",
    "tags",
    "y",
)
_SPLIT = ("split", "set", "subset", "partition")
_PLURAL = ("labels", "classes", "categories", "targets", "tags")

_MARKS = {"0": 0, "1": 1, "0.0": 0, "1.0": 1, "false": 0, "true": 1}
"""What stands in a column that belongs to one label."""


def read_table(path: Path) -> Listing:
    """The pictures that a table names. Paths start at the table's folder, or are absolute.

    Raises `UsageError` where columns cannot be told, rows contradict each other, or no file is there.
    """
    cells, where, rows = _rows(path)
    notes = cells.notes
    split = column_titled(cells.columns, _SPLIT)
    rest = [i for i, name in enumerate(cells.columns) if i not in (where, split) and name]
    labels, several = _labels(path, cells, where, rest, notes)
    parts = ["train" if split is None else (split_name(str(cell[split])) or "") for cell in cells.rows]
    rows = [replace(row, labels=mine, split=part) for row, mine, part in zip(rows, labels, parts, strict=True)]
    rows = _of_splits(path, cells, split, rows, notes)
    rows = _without_repeats(path, rows, notes)
    _note_missing(path, rows, notes)
    return Listing(rows, notes, several=several)


def named_pictures(path: Path) -> list[Row]:
    """The pictures that a table names, one a row in its order, whatever it says about labels and splits."""
    _, _, rows = _rows(path)
    _note_missing(path, rows, [])
    return rows


def _rows(path: Path) -> tuple[Cells, int, list[Row]]:
    """(the table, its column of paths, a picture for each of its rows)."""
    cells = _read_parquet(path) if path.suffix.lower() in (".parquet", ".pq") else read_text(path)
    if not cells.rows:
        raise UsageError(f"{path} has column titles and no rows")
    where = column_titled(cells.columns, PATH_TITLES)
    if where is None:
        where = _only(
            [i for i in range(len(cells.columns)) if all(is_picture_name(str(r[i])) for r in cells.rows[:20])]
        )
    if where is None:
        shown = ", ".join(cells.columns)
        raise UsageError(f"{path}: no column holds the paths of pictures; columns: {shown}; call it 'path'")
    base = "" if path.parent == Path() else str(path.parent)
    names = [str(row[where] or "").replace("\\", "/") for row in cells.rows]
    return cells, where, [Row(os.path.join(base, name), printable(name), None) for name in names]


def split_tables(folder: Path, suffixes: tuple[str, ...]) -> dict[str, Path]:
    """Tables named for a split (train.csv, val.csv) by split, where a folder has them and no split folders."""
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        split = split_name(path.stem)
        if split is not None and path.suffix.lower() in suffixes and path.is_file():
            if split in found:
                raise UsageError(f"{folder} has two tables for the {split} split, {found[split].name} and {path.name}")
            found[split] = path
    return {} if "train" not in found or is_split_tree(folder) else found


def read_split_tables(folder: Path, tables: dict[str, Path]) -> Listing:
    """One table a split, put together."""
    parts = {split: read_table(path) for split, path in tables.items()}
    rows = [replace(row, split=split) for split, part in parts.items() for row in part.rows]
    notes = [f"{tables[split].name} is the {split} split" for split in parts]
    notes += [note for part in parts.values() for note in part.notes]
    return Listing(rows, notes, several=any(part.several for part in parts.values()))


def _read_parquet(path: Path) -> Cells:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise UsageError(
            f"{path}: reading Parquet needs pyarrow; pip install 'mixwise[tables]', or save it as CSV"
        ) from None
    try:
        table = parquet.read_table(path)
    except Exception as error:
        raise UsageError(f"{path} is no Parquet file that can be read: {error}") from None
    columns = [column.to_pylist() for column in table.columns]
    return Cells(list(table.column_names), [list(row) for row in zip(*columns, strict=True)], 1)


def _only(found: list[int]) -> int | None:
    return found[0] if len(found) == 1 else None


def _labels(
    path: Path, cells: Cells, where: int, rest: list[int], notes: list[str]
) -> tuple[list[tuple[str, ...] | None], bool]:
    """(labels of each row, whether there may be several)."""
    column = column_titled(cells.columns, _LABEL)
    marks = [[_MARKS.get(str(row[i]).lower()) for i in rest] for row in cells.rows]
    if column is None and len(rest) > 1 and all(mark is not None for row in marks for mark in row):
        found, several = marked(path.name, np.array(marks), [cells.columns[i] for i in rest], notes)
        return list(found), several
    if column is None:
        column = _only(rest)
    if column is None and not rest:
        return [_folder_name(str(row[where])) for row in cells.rows], False
    if column is None:
        shown = ", ".join(cells.columns)
        raise UsageError(f"{path}: no column holds the labels; columns: {shown}; call it 'label'")
    over = [cells.columns[i] for i in rest if i != column]
    if over:
        notes.append(f"columns of {path.name} that were passed over: {listed(over)}")
    return _written(path, cells, column)


def _written(path: Path, cells: Cells, column: int) -> tuple[list[tuple[str, ...] | None], bool]:
    """What one column says: a name, or names with semicolons between them."""
    labels = [_names(row[column]) for row in cells.rows]
    empty = [i for i, mine in enumerate(labels) if not mine]
    lists = any(isinstance(row[column], list) for row in cells.rows)
    several = lists or any(len(mine) > 1 for mine in labels)
    several = several or (bool(empty) and cells.columns[column].lower() in _PLURAL)
    if empty and len(empty) == len(labels):
        raise UsageError(f"{path}: the column {cells.columns[column]!r} is empty")
    if empty and not several:
        lines = listed([str(cells.first + i) for i in empty], 5)
        raise UsageError(
            f"{path}: {len(empty)} rows have no label: {lines}; where pictures may have several labels or none, "
            "call the column 'labels'"
        )
    return list(labels), several


def _names(cell: Any) -> tuple[str, ...]:
    parts = map(label_text, cell) if isinstance(cell, list) else label_text(cell).split(";")
    return tuple(dict.fromkeys(name for part in parts if (name := part.strip())))


def _folder_name(name: str) -> tuple[str, ...] | None:
    parent = os.path.basename(os.path.dirname(name.replace("\\", "/")))
    return (parent,) if parent not in ("", ".", "..") else None


def _of_splits(path: Path, cells: Cells, split: int | None, rows: list[Row], notes: list[str]) -> list[Row]:
    strange = Counter(
        str(cell[split]) for cell, row in zip(cells.rows, rows, strict=True) if split is not None and not row.split
    )
    if len(rows) == strange.total():
        raise UsageError(f"{path}: no row has a known split, only {kinds(strange)}; known: train, val, test")
    if strange:
        notes.append(f"passed over: {counted(strange.total(), 'row')} of other splits: {kinds(strange)}")
    return [row for row in rows if row.split]


def _without_repeats(path: Path, rows: list[Row], notes: list[str]) -> list[Row]:
    first: dict[tuple[str, str], Row] = {}
    for row in rows:
        before = first.setdefault((row.split, str(row.source)), row)
        if before.labels != row.labels:
            both = " and ".join(";".join(each.labels or ()) or "none" for each in (before, row))
            raise UsageError(
                f"{path}: {row.name} stands there twice with different labels, {both}; several labels of a picture "
                "belong into one row, as cat;dog"
            )
    if len(first) < len(rows):
        repeats = counted(len(rows) - len(first), "row")
        notes.append(f"passed over: {repeats} of {path.name}, the same as another one")
    split: dict[str, str] = {}
    leaks = [row.name for (part, source), row in first.items() if split.setdefault(source, part) != part]
    if leaks:
        notes.append(f"in more than one split: {counted(len(leaks))}: {listed(leaks, 5)}")
    return list(first.values())


def _note_missing(path: Path, rows: list[Row], notes: list[str]) -> None:
    missing = [row for row in rows if not os.path.exists(str(row.source))]
    names = listed([row.name for row in missing], 5)
    if len(missing) == len(rows):
        raise UsageError(
            f"{path} names {len(rows)} pictures, and none of them is there: {names}; relative paths start at "
            f"the table's folder, {path.absolute().parent}"
        )
    if missing:
        notes.append(f"{len(missing)} of {len(rows)} pictures in {path.name} are missing: {names}")
