"""What is in this folder or file? Classes, splits and labels of a data set, with notes on what was decided."""

import difflib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mixwise.data.catalog import Catalog, Items
from mixwise.data.layouts import read_listing
from mixwise.data.listing import Listing, Row, counts, held_out, listed, to_items
from mixwise.errors import UsageError, unknown
from mixwise.labels import class_name

SPLIT_ORDER = ("train", "val", "test")


def discover(
    source: str | Path,
    *,
    val_split: float = 0.2,
    seed: int = 0,
    classes: Sequence[str] | None = None,
    owner: str = "the model",
    task: str | None = None,
    rename: Mapping[str, str] | None = None,
    unknown_classes: str = "error",
    split_single: bool = True,
) -> Catalog:
    """Find classes, splits and labels.

    The layouts are those of docs/data.md: DATA/<class>/images or DATA/{train,val,test}/<class>/images, the splits also
    under their usual other names, with images at any depth below a class folder; tables and lists of files; tars;
    arrays; data sets of `datasets` and torchvision. Hidden files and system junk are ignored, files that are no images
    are counted in the notes. Labels are matched by name, whatever their order. A set without validation pictures gets
    them from its training pictures, label by label; which ones depends on the seed, the label and the name, so neither
    moving the data nor adding a class changes the split. A class of one picture keeps it for training.

    Args:
        source: a folder or file, or the name of a built-in data set (whose splits are fixed).
        val_split: share of each class that becomes validation where the data has none of its own.
        seed: of that split.
        classes: class names of a model or a label file: labels follow their order.
        owner: whose `classes` these are, for messages.
        task: what the labels are for, where a model decides it; None: what the data says.
        rename: what names in the data are called instead.
        unknown_classes: what a name that training or `classes` lack does: "error", or "drop" its pictures.
        split_single: False leaves training pictures whole where there is no validation split.

    Returns: a `Catalog`. Raises `UsageError` where the data is missing, empty or at the wrong level, or holds classes
    that the training split or the model lacks.

    >>> discover("digits").classes[:3]
    ('0', '1', '2')
    """
    if not 0 < val_split < 1:
        raise UsageError(f"val_split must be between 0 and 1, got {val_split}")
    if unknown_classes not in ("error", "drop"):
        raise unknown("way to treat unknown classes", unknown_classes, ("error", "drop"))
    listing = _for_task(read_listing(source), str(source), task)
    listing, renamed = _renamed(listing, rename or {})
    notes = listing.notes
    order = _order(listing) if classes is None else tuple(classes)
    owner = "the train split" if classes is None else owner
    rows = _of_known_classes(listing, str(source), order, owner, unknown_classes == "drop")
    if not rows:
        raise UsageError(f"{source} has no picture of a class that {owner} knows: {listed(order)}")
    splits = {split: [row for row in rows if row.split == split] for split in SPLIT_ORDER}
    if split_single and splits["train"] and not splits["val"]:
        splits["train"], splits["val"] = _divided(splits["train"], val_split, seed, notes)
    items = {name: to_items(found, order, listing.several) for name, found in splits.items() if found or name == "val"}
    if not items["val"] and not (split_single and splits["train"]):
        del items["val"]
    if len(order) == 1 and not listing.several:
        notes.append(f"there is only one class, {order[0]!r}: nothing can be told apart")
    said = (*notes, *_absent(order, items))
    return Catalog(str(source), order, items, said, "multilabel" if listing.several else "classify", renamed)


def _for_task(listing: Listing, where: str, task: str | None) -> Listing:
    """The listing with every picture labelled as the task needs it, and names as they are compared."""
    bare = [row.name for row in listing.rows if row.labels is None]
    if bare:
        raise UsageError(f"{where} says nothing about the labels of {len(bare)} pictures: {listed(bare, 3)}")
    if listing.several and task == "classify":
        raise UsageError(f"{where} has any number of labels a picture, and the model gives exactly one")
    written = {name for row in listing.rows for name in row.labels or ()}.union(listing.order)
    names = {name: class_name(name) for name in written}
    rows, order = listing.rows, listing.order
    if any(name != cleaned for name, cleaned in names.items()):
        rows = [replace(row, labels=tuple(dict.fromkeys(names[n] for n in row.labels or ()))) for row in rows]
        order = tuple(dict.fromkeys(names[name] for name in order))
    return replace(listing, rows=rows, order=order, several=listing.several or task == "multilabel")


def _renamed(listing: Listing, rename: Mapping[str, str]) -> tuple[Listing, tuple[tuple[str, str], ...]]:
    used = {name: rename[name] for row in listing.rows for name in row.labels or () if name in rename}
    if not used:
        return listing, ()

    def new(labels: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(rename.get(name, name) for name in labels))

    rows = [replace(row, labels=new(row.labels or ())) for row in listing.rows]
    pairs = tuple(sorted(used.items()))
    said = f"classes that are called otherwise here: {listed([f'{name} → {new}' for name, new in pairs], 10)}"
    return replace(listing, rows=rows, order=new(listing.order), notes=[*listing.notes, said]), pairs


def _order(listing: Listing) -> tuple[str, ...]:
    """Class names in label order: those that can be learned."""
    split = "train" if any(row.split == "train" for row in listing.rows) else None
    seen = {name for row in listing.rows if split in (None, row.split) for name in row.labels or ()}
    return tuple(name for name in listing.order if name in seen) if listing.order else tuple(sorted(seen))


def _of_known_classes(listing: Listing, where: str, order: tuple[str, ...], owner: str, drop: bool) -> list[Row]:
    known = set(order)
    strange = {split: Counter[str]() for split in SPLIT_ORDER}
    for row in listing.rows:
        strange[row.split].update(name for name in row.labels or () if name not in known)
    for split, found in strange.items():
        if not found:
            continue
        if not drop:
            place = f"{split} of {where}" if any(row.split != "train" for row in listing.rows) else where
            raise _unknown_names(place, found, order, owner)
        total = ", ".join(f"{name} ({count})" for name, count in sorted(found.items())[:20])
        what = "labels" if listing.several else "pictures of classes"
        listing.notes.append(f"{split}: {found.total()} {what} that {owner} does not know were dropped: {total}")
    if not any(strange.values()):
        return listing.rows
    if listing.several:
        return [replace(row, labels=tuple(n for n in row.labels or () if n in known)) for row in listing.rows]
    return [row for row in listing.rows if known.issuperset(row.labels or ())]


def _unknown_names(where: str, found: Counter[str], order: tuple[str, ...], owner: str) -> UsageError:
    extra = []
    for name in sorted(found):
        near = difflib.get_close_matches(name, order, n=1)
        extra.append(f"{name!r} (did you mean {near[0]!r}?)" if near else repr(name))
    return UsageError(
        f"{where} has classes that {owner} does not know: {listed(extra)}; known: {listed(order)}. "
        "--unknown drop leaves them out, --labels FILE renames classes"
    )


def _divided(rows: list[Row], share: float, seed: int, notes: list[str]) -> tuple[list[Row], list[Row]]:
    """Training and validation pictures out of one split."""
    chosen, single = held_out(rows, share, seed)
    notes.append(f"val is {len(chosen)} of the train pictures: {share:.0%} of each class, split seed {seed}")
    if single:
        notes.append(f"classes with one picture, which stays in train: {listed(single)}")
    train = [row for i, row in enumerate(rows) if i not in chosen]
    return train, [rows[i] for i in sorted(chosen)]


def _absent(order: tuple[str, ...], splits: dict[str, Items]) -> list[str]:
    notes = []
    for split, items in splits.items():
        absent = [name for name, count in zip(order, counts(items, len(order)), strict=True) if not count]
        if absent:
            notes.append(f"{split} has no pictures of {len(absent)} of {len(order)} classes: {listed(absent)}")
    return notes
