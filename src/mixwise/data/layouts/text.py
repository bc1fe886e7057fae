"""Text that lists pictures, CSV and its kin and plain lists, as cells; any usual encoding and delimiter."""

import codecs
import csv
import io
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from mixwise.data.layout import IMAGE_EXTENSIONS
from mixwise.data.listing import split_name
from mixwise.errors import UsageError

TEXT_TABLES = (".csv", ".tsv")
LISTS = (".txt", ".lst", ".list")

PATH_TITLES = (
    "path",
    "filepath",
    "file_path",
    "image_path",
    "img_path",
    "filename",
    "file_name",
    "file",
    "image",
    "img",
    "picture",
    "image_name",
    "image_file",
)
"""What the column of pictures is called, `-` and blanks as `_`, in any case."""

_DELIMITERS = (",", "\t", ";", "|")
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


@dataclass
class Cells:
    """A table as it was read: cells are text, or what Parquet holds."""

    columns: list[str]
    rows: list[list[Any]]
    first: int
    """What messages call the first row: its line in the file."""
    notes: list[str] = field(default_factory=list)


def is_picture_name(text: str) -> bool:
    """Whether a cell ends as the name of an image file does."""
    return Path(text.strip()).suffix.lower() in IMAGE_EXTENSIONS


def column_titled(titles: list[str], names: tuple[str, ...]) -> int | None:
    """The column with the first of these titles."""
    written = [title.lower().replace(" ", "_").replace("-", "_") for title in titles]
    return next((written.index(name) for name in names if name in written), None)


def read_text(path: Path) -> Cells:
    """The cells of a CSV or TSV file, or of a list `path label` or `path` a line."""
    text, notes = _decoded(path)
    lines = [line for line in text.splitlines() if line.strip(" \t,;|")]
    if not lines:
        raise UsageError(f"{path} is empty: there is no line in it")
    table = path.suffix.lower() in TEXT_TABLES or _is_table(lines)
    found = _read_table(path, text) if table else _read_list(path, lines)
    found.notes = notes
    return found


def _decoded(path: Path) -> tuple[str, list[str]]:
    data = path.read_bytes()
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            try:
                return data.decode(encoding), []
            except UnicodeDecodeError as error:
                raise UsageError(f"{path} begins as {encoding} text and is none ({error.reason})") from None
    try:
        return data.decode("utf-8"), []
    except UnicodeDecodeError:
        return data.decode("cp1252", "replace"), [f"{path.name} is no UTF-8; read as Windows-1252"]


def _is_table(lines: list[str]) -> bool:
    """Whether a .txt file is a CSV: a delimiter behind the first picture's name, or between column titles."""
    first = next((line for line in lines[:2] if any(mark in line for mark in _DELIMITERS)), None)
    return first is not None and any(
        is_picture_name(cell.strip('" ')) for mark in _DELIMITERS for cell in first.split(mark)[:-1]
    )


def _read_table(path: Path, text: str) -> Cells:
    first = {mark: _rows(path, text, mark, 100) for mark in _DELIMITERS}
    even = [mark for mark in _DELIMITERS if len(first[mark][0]) > 1 and len(set(map(len, first[mark]))) == 1]
    mark = even[0] if even else max(_DELIMITERS, key=lambda mark: len(first[mark][0]))
    rows = _rows(path, text, mark)
    for number, row in enumerate(rows, start=1):
        if len(row) != len(rows[0]):
            raise UsageError(
                f"{path}: row {number} has {len(row)} cells, the first one {len(rows[0])}: {mark.join(row)[:80]}"
            )
    titled = not any(map(is_picture_name, rows[0]))
    columns = rows[0] if titled else _invented(path, rows)
    return Cells(columns, rows[titled:], 1 + titled)


def _rows(path: Path, text: str, mark: str, limit: int | None = None) -> list[list[str]]:
    """The first rows that are not empty, cells without blanks around them."""
    try:
        filled = (row for row in csv.reader(io.StringIO(text, newline=""), delimiter=mark) if any(row))
        return [[cell.strip() for cell in row] for row in islice(filled, limit)]
    except csv.Error as error:
        raise UsageError(f"{path} is no valid CSV: {error}") from None


def _invented(path: Path, rows: list[list[str]]) -> list[str]:
    """Titles for a table without any: which column holds paths, splits and labels."""
    columns = []
    for i, cell in enumerate(rows[0]):
        if is_picture_name(cell) and "path" not in columns:
            columns.append("path")
        else:
            columns.append("split" if all(split_name(row[i]) for row in rows) else "label")
    if columns.count("label") > 1:
        raise UsageError(f"{path} has {len(columns)} columns and no titles: write path,label in its first line")
    return columns


def _read_list(path: Path, lines: list[str]) -> Cells:
    titled = len(lines) > 1 and _is_title(*(line.split() for line in lines[:2]))
    bare = [is_picture_name(line) for line in lines[titled:]]
    if all(bare):
        return Cells(["path"], [[line.strip()] for line in lines[titled:]], 1 + titled)
    rows = []
    for number, (line, alone) in enumerate(zip(lines[titled:], bare, strict=True), start=1 + titled):
        cells = line.strip().split("\t") if "\t" in line.strip() else line.strip().rsplit(None, 1)
        if alone or len(cells) != 2:
            raise UsageError(f"{path}: line {number} is no `path label` as the others are: {line.strip()[:80]!r}")
        rows.append([cell.strip() for cell in cells])
    return Cells(["path", "label"], rows, 1 + titled)


def _is_title(first: list[str], second: list[str]) -> bool:
    """Whether the words of a list's first line are titles; "image 1.png" is a picture, and so may be a bare "image"."""
    titled = column_titled(first[:1], PATH_TITLES) is not None and not any(map(is_picture_name, first))
    return titled and any(map(is_picture_name, second))
