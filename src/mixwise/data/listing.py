"""What a layout finds: pictures with the names of their labels, before names become numbers."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mixwise.data.address import text_address
from mixwise.data.catalog import Items
from mixwise.data.source import Stored
from mixwise.errors import UsageError

SPLITS = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
"""What the splits are called in data, in any case."""


@dataclass(frozen=True, slots=True)
class Row:
    """One picture."""

    source: str | np.ndarray | Stored
    name: str
    labels: tuple[str, ...] | None
    """Names; None: the data says nothing about labels."""
    split: str = "train"


@dataclass
class Listing:
    """All pictures of a data set, as one layout reads them."""

    rows: list[Row]
    notes: list[str] = field(default_factory=list)
    order: tuple[str, ...] = ()
    """Class names as the data orders them; empty: they are sorted as text."""
    several: bool = False
    """Whether a picture may have any number of labels."""


def split_name(text: str) -> str | None:
    """The split that a word means.

    >>> split_name("Validation"), split_name("masks")
    ('val', None)
    """
    return next((split for split, names in SPLITS.items() if text.lower() in names), None)


def numbered(names: Iterable[str]) -> tuple[str, ...]:
    """Names in the order of their numbers, where all of them are numbers; else sorted as text.

    >>> numbered({"10", "9", "2"}), numbered({"b", "10", "9"})
    (('2', '9', '10'), ('10', '9', 'b'))
    """
    names = sorted(names)
    return tuple(sorted(names, key=int) if all(re.fullmatch(r"-?\d+", name) for name in names) else names)


def label_text(value: Any) -> str:
    """A label as it stands in typed data as text; nothing for None and NaN. A whole number in floats is that number,
    bytes are UTF-8.

    >>> label_text(2.0), label_text(2), label_text("2.0"), label_text(float("nan")), label_text(b"cat")
    ('2', '2', '2.0', '', 'cat')
    """
    if value is None or value != value:
        return ""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def numbers_to_names(where: str, values: Sequence[int], classes: Sequence[str]) -> list[str]:
    """Class numbers as names; without names a number is its own. Raises `UsageError` for a number without a name."""
    if not classes:
        return [str(value) for value in values]
    wrong = sorted({value for value in values if not 0 <= value < len(classes)})
    if wrong:
        raise UsageError(
            f"{where}: label {wrong[0]} has no name: {len(classes)} classes are named, 0 to {len(classes) - 1}"
        )
    return [classes[value] for value in values]


def marked(
    where: str, marks: np.ndarray, classes: Sequence[str], notes: list[str]
) -> tuple[list[tuple[str, ...]], bool]:
    """(labels of each picture, whether there may be several) from a table (n, classes) of 0 and 1.

    Exactly one mark in every row means one label a picture.
    """
    several = not bool((marks.sum(axis=1) == 1).all())
    if not several:
        notes.append(
            f"{where} marks exactly one of {len(classes)} labels for every picture: taken as one label a picture"
        )
    return [tuple(classes[i] for i in np.flatnonzero(row).tolist()) for row in marks], several


def held_out(rows: Sequence[Row], share: float, seed: int) -> tuple[set[int], list[str]]:
    """(positions of the pictures that become validation, labels too rare for it).

    Every label gives its `share` of pictures, at least one where it has two, and keeps at least one for training; with
    several labels a picture the rarest label is served first. Pictures are ranked by a hash and not drawn: one more
    picture then moves no other one, except at the border.
    """
    members: dict[str, list[int]] = defaultdict(list)
    for position, row in enumerate(rows):
        for label in row.labels or ("",):
            members[label].append(position)
    left = {label: len(found) for label, found in members.items()}
    wanted = {label: 0 if n == 1 else min(max(round(n * share), 1), n - 1) for label, n in left.items()}
    ranks = [_rank(seed, row) for row in rows]
    decided: set[int] = set()
    chosen: set[int] = set()
    for label in sorted(members, key=lambda label: (len(members[label]), label)):

        def rank(position: int) -> tuple[int, bytes]:
            return sum(wanted[other] <= 0 for other in rows[position].labels or ()), ranks[position]

        for position in sorted(set(members[label]) - decided, key=rank):
            mine = rows[position].labels or ("",)
            if wanted[label] > 0 and all(left[other] > 1 for other in mine):
                chosen.add(position)
                for other in mine:
                    wanted[other] -= 1
                    left[other] -= 1
            decided.add(position)
    return chosen, [label for label, found in members.items() if len(found) == 1 and label]


def _rank(seed: int, row: Row) -> bytes:
    """By the path below the class folder where there is one, so that neither moving the data nor a new class counts."""
    label = ";".join(row.labels or ())
    below = f"/{row.name}".partition(f"/{label}/")[2] or row.name
    return text_address(seed, f"{label}/{below}")


def to_items(rows: Sequence[Row], order: tuple[str, ...], several: bool) -> Items:
    """Rows whose labels are all in `order`, as pictures with numbers."""
    position = {name: i for i, name in enumerate(order)}
    sources, names = tuple(row.source for row in rows), tuple(row.name for row in rows)
    if not several:
        return Items(sources, np.array([position[(row.labels or ())[0]] for row in rows], np.int64), names)
    labels = np.zeros((len(rows), len(order)), np.float32)
    for i, row in enumerate(rows):
        for name in row.labels or ():
            labels[i, position[name]] = 1
    return Items(sources, labels, names)


def from_items(splits: dict[str, Items], classes: tuple[str, ...]) -> list[Row]:
    """Pictures with one label each, back to rows."""
    return [
        Row(source, name, (classes[label],), split)
        for split, items in splits.items()
        for source, label, name in zip(items.sources, items.labels.tolist(), items.names, strict=True)
    ]


def counts(items: Items, classes: int) -> np.ndarray:
    """Pictures of each class or label."""
    return np.bincount(items.labels, minlength=classes) if items.labels.ndim == 1 else items.labels.sum(axis=0)


def counted(count: int, what: str = "picture") -> str:
    """The number of things with the word for them.

    >>> counted(1), counted(2, "class")
    ('1 picture', '2 classes')
    """
    plural = what + ("es" if what.endswith("s") else "s")
    return f"{count} {what if count == 1 else plural}"


def listed(names: Sequence[str], limit: int = 20) -> str:
    """The first names of a list, and how many more there are."""
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def kinds(found: Counter[str]) -> str:
    """Kinds of files with their numbers, for a note."""
    return ", ".join(f"{kind} ({count})" for kind, count in sorted(found.items()))
