"""Lists of class names in files: which name belongs to which number, and what other names mean."""

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unicodedata import normalize

from mixwise.errors import UsageError, printable
from mixwise.files import write_text

SUFFIXES = (".txt", ".json", ".csv")
"""The forms that `write_labels` knows: a name a line, an object of number and name, rows of number and name."""

_NUMBER = ("index", "number", "idx", "class_index")
_NAME = ("name", "class_name", "label_name", "class", "label")


def class_name(text: str) -> str:
    """A name as it is compared and printed: composed (a Mac writes é as two characters), without control characters.

    >>> class_name("cafe\\u0301\\x1b")
    'café\\\\x1b'
    """
    return printable(normalize("NFC", text))


@dataclass(frozen=True)
class LabelMap:
    """Class names in order, and other words for them."""

    names: tuple[str, ...]
    words: dict[str, str]
    """What names outside mean: WordNet numbers and the like, and the numbers 0, 1, … where no name is a number."""

    def rename(self, classes: Sequence[str]) -> dict[str, str]:
        """What other names of these classes are to become: their words here, or the names where `classes` are words.

        >>> LabelMap(("tench",), {"n01440764": "tench"}).rename(["tench"])
        {'n01440764': 'tench'}
        >>> LabelMap(("tench",), {"n01440764": "tench"}).rename(["n01440764"])
        {'tench': 'n01440764'}
        """
        known = set(classes)
        there = {word: name for word, name in self.words.items() if word not in known and name in known}
        back = {name: word for word, name in self.words.items() if name not in known and word in known}
        return there | back


def read_labels(path: str | Path) -> LabelMap:
    """Class names from a file.

    Lines: a name each, or `n01440764 tench` each. JSON: a list of names, or an object of number and name, of word and
    name, or of name and number; a name may be a list whose first entry is another word for it. CSV: columns index and
    name, or word and name, or all three, with or without titles.

    Raises `UsageError` for a file that is none of these, and for names that are empty or stand twice.
    """
    path = Path(path).expanduser()
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the labels of {path}: {error}") from None
    if text.lstrip()[:1] in ("{", "["):
        pairs = _from_json(text, path)
    elif path.suffix.lower() in (".csv", ".tsv"):
        pairs = _from_table(text, path)
    else:
        pairs = _from_lines(text)
    pairs = [(class_name(word), class_name(name)) for word, name in pairs]
    names = [name for _, name in pairs]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if not names or "" in names:
        where = f"line {names.index('') + 1} is empty" if names else "it is empty"
        raise UsageError(f"{path}: {where}; each line is the name of one class")
    if twice:
        raise UsageError(f"{path}: the name {twice[0]!r} stands more than once")
    # Where names are numbers, a number in the data is a name: a class "0" beside the names 1 to 9 is not the class "1".
    numbers = {} if any(map(str.isdecimal, names)) else {str(i): name for i, name in enumerate(names)}
    return LabelMap(tuple(names), numbers | {word: name for word, name in pairs if word})


def write_labels(path: Path, names: Sequence[str]) -> None:
    """Write names in order, in the form that the ending says; `read_labels` reads every one."""
    suffix = path.suffix.lower()
    write_text(path, {".json": as_json, ".csv": as_csv}.get(suffix, as_lines)(names))


def as_json(names: Sequence[str]) -> str:
    """A JSON object of number and name.

    >>> as_json(["cat", "dog"])
    '{\\n  "0": "cat",\\n  "1": "dog"\\n}\\n'
    """
    return json.dumps({str(i): name for i, name in enumerate(names)}, ensure_ascii=False, indent=2) + "\n"


def as_csv(names: Sequence[str]) -> str:
    """Rows index,name below a line of titles."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["index", "name"])
    writer.writerows(enumerate(names))
    return text.getvalue()


def as_lines(names: Sequence[str]) -> str:
    """A name a line. Raises `UsageError` for a name that a line cannot hold."""
    odd = [name for name in names if name != name.strip() or len(name.splitlines()) != 1]
    if odd:
        raise UsageError(f"the class name {odd[0]!r} does not survive in a list of lines; write .json or .csv")
    return "".join(f"{name}\n" for name in names)


def difference(outside: Sequence[str], stored: Sequence[str]) -> str:
    """How a list of names differs from the one that a model carries, in one sentence; empty where it does not.

    >>> difference(("b", "a"), ("a", "b"))
    "the same names in another order: number 0 is 'b' there and 'a' in the model"
    """
    only = [
        f"{', '.join(extra[:5])}{' …' if len(extra) > 5 else ''} only {where}"
        for extra, where in (
            ([name for name in outside if name not in set(stored)], "there"),
            ([name for name in stored if name not in set(outside)], "in the model"),
        )
        if extra
    ]
    if only:
        return f"other names: {'; '.join(only)}"
    moved = next((i for i, (a, b) in enumerate(zip(outside, stored, strict=True)) if a != b), None)
    if moved is None:
        return ""
    there, here = outside[moved], stored[moved]
    return f"the same names in another order: number {moved} is {there!r} there and {here!r} in the model"


_Pairs = list[tuple[str, str]]
"""(other word or nothing, name), in order."""


def _from_lines(text: str) -> _Pairs:
    lines = [line.strip() for line in text.rstrip("\r\n").splitlines()]
    synsets = [re.fullmatch(r"(n\d{8})\s+(.+)", line) for line in lines]
    if lines and all(synsets):
        return [(match[1], match[2]) for match in synsets if match is not None]
    return [("", line) for line in lines]


def _from_json(text: str, path: Path) -> _Pairs:
    try:
        data = json.loads(text)
        if isinstance(data, list):
            return [_pair(item) for item in data]
        if all(isinstance(value, int) for value in data.values()):
            turned = {str(number): name for name, number in data.items()}
            if len(turned) < len(data):
                raise UsageError(f"{path}: two of the names have the same number")
            data = turned
        if not all(key.isdecimal() for key in data):
            return [(word, _pair(name)[1]) for word, name in data.items()]
        return [_pair(data[str(i)]) for i in range(len(data))]
    except (json.JSONDecodeError, KeyError) as error:
        raise UsageError(
            f"{path} is no JSON list of names, and no object of numbers from 0 and names ({error})"
        ) from None
    except TypeError:
        raise UsageError(f"{path}: every class name must be text") from None


def _pair(item: Any) -> tuple[str, str]:
    parts: list[Any] = list(item) if isinstance(item, list) and item else [item]
    if not all(isinstance(part, str) for part in parts):
        raise TypeError
    return (parts[0] if len(parts) > 1 else "", parts[-1].strip())


def _from_table(text: str, path: Path) -> _Pairs:
    mark = "\t" if path.suffix.lower() == ".tsv" or "\t" in text.split("\n", 1)[0] else ","
    rows = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(text, newline=""), delimiter=mark) if row]
    titles = [cell.lower() for cell in rows[0]] if rows else []
    if any(title in _NAME for title in titles):
        rows = rows[1:]
    elif rows and len(rows[0]) == 1:
        titles = ["name"]
    elif all(row[0].isdecimal() for row in rows):
        titles = ["index", "name"]
    else:
        titles = ["name", "index"] if all(row[-1].isdecimal() for row in rows) else ["word", "name"]
    if any(len(row) != len(titles) for row in rows):
        raise UsageError(f"{path}: rows must be index,name or word,name or index,word,name")
    named = [titles.index(title) for title in _NAME if title in titles]
    name = next((i for i in named if not all(row[i].isdecimal() for row in rows)), named[0])
    others = [i for i in range(len(titles)) if i != name]
    places = sorted(map(str, range(len(rows))))
    number = next((i for i in others if titles[i] in _NUMBER), None)
    if number is None:
        number = next((i for i in others if sorted(row[i] for row in rows) == places), None)
    word = next((i for i in others if i != number), None)
    if number is not None:
        if sorted(row[number] for row in rows) != places:
            raise UsageError(
                f"{path}: the column {titles[number]!r} must hold the numbers 0 to {len(rows) - 1}, each once"
            )
        rows.sort(key=lambda row: int(row[number]))
    return [("" if word is None else row[word], row[name]) for row in rows]
