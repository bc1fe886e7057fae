"""What is in this folder? Classes, splits and labels of a data set, with notes on everything that was decided."""

import difflib
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

import numpy as np

from mixwise.data.builtin import BUILTIN, builtin
from mixwise.data.catalog import Catalog, Items
from mixwise.data.layout import SPLITS, ClassFolder, Layout, read_layout
from mixwise.errors import UsageError, printable


def discover(
    source: str | Path,
    *,
    val_split: float = 0.2,
    seed: int = 0,
    classes: Sequence[str] | None = None,
    split_single: bool = True,
) -> Catalog:
    """Find classes, splits and labels.

    Two layouts: DATA/<class>/images or DATA/{train,val,test}/<class>/images, the splits also under their usual other
    names. Images are found at any depth below a class folder. Hidden files and system junk are ignored, files that are
    no images are counted in the notes. A set without validation pictures gets them from its training pictures, class by
    class; which ones depends on the seed, the class and the path below the class folder, so neither moving the data nor
    adding a class changes the split. A class of one picture keeps it for training.

    Args:
        source: a folder, or the name of a built-in data set (whose splits are fixed).
        val_split: share of each class that becomes validation where the data has none of its own.
        seed: of that split.
        classes: a model's class names: labels follow their order, and a folder of another name is an error.
        split_single: False leaves training pictures whole where there is no validation split.

    Returns: a `Catalog`; its classes are `classes`, or else the folder names sorted as text. Raises `UsageError` where
    the folder is missing, empty or at the wrong level, or holds classes that the training split or the model lacks.

    >>> discover("digits").classes[:3]
    ('0', '1', '2')
    """
    if not 0 < val_split < 1:
        raise UsageError(f"val_split must be between 0 and 1, got {val_split}")
    if str(source) in BUILTIN:
        catalog = builtin(str(source))
        if Path(source).is_dir():
            hint = f"{source!r} is the built-in data set; for the folder of that name write ./{source}"
            catalog = replace(catalog, notes=(*catalog.notes, hint))
        return catalog if classes is None else _relabelled(catalog, tuple(classes))
    notes: list[str] = []
    layout = read_layout(Path(source), notes)
    _note_others(layout, notes)
    order = _class_order(str(source), layout, classes, notes)
    if split_single and "train" in layout and "val" not in layout:
        layout["train"], layout["val"] = _divided(layout["train"], val_split, seed, notes)
    splits = {split: _items(Path(source), layout[split], order) for split in SPLITS if split in layout}
    return Catalog(str(source), order, splits, (*notes, *_absent(order, splits)))


def _class_order(where: str, layout: Layout, classes: Sequence[str] | None, notes: list[str]) -> tuple[str, ...]:
    """Class names in label order; drops empty class folders from the layout."""
    empty = [f"{split}/{name}" for split, found in layout.items() for name in found if not found[name].images]
    if empty:
        notes.append(f"class folders without images, passed over: {_listed(empty)}")
    for split in list(layout):
        layout[split] = {name: folder for name, folder in layout[split].items() if folder.images}
    trained = layout["train"] if "train" in layout else {name for found in layout.values() for name in found}
    order = tuple(classes) if classes is not None else tuple(sorted(trained))
    for split, found in layout.items():
        _check_known(f"{split} of {where}", found, order, "the model" if classes is not None else "the train split")
    if len(order) == 1:
        notes.append(f"there is only one class, {order[0]!r}: nothing can be told apart")
    return order


def _check_known(where: str, found: Iterable[str], known: tuple[str, ...], owner: str) -> None:
    extra = []
    for name in sorted(set(found) - set(known)):
        near = difflib.get_close_matches(name, known, n=1)
        extra.append(f"{name!r} (did you mean {near[0]!r}?)" if near else repr(name))
    if extra:
        raise UsageError(f"{where} has classes that {owner} does not know: {_listed(extra)}; known: {_listed(known)}")


def _divided(
    classes: dict[str, ClassFolder], share: float, seed: int, notes: list[str]
) -> tuple[dict[str, ClassFolder], dict[str, ClassFolder]]:
    """Training and validation pictures out of one split, class by class."""
    train: dict[str, ClassFolder] = {}
    val: dict[str, ClassFolder] = {}
    single = [name for name, folder in classes.items() if len(folder.images) == 1]
    for name, folder in classes.items():
        count = len(folder.images)
        wanted = 0 if count == 1 else min(max(round(count * share), 1), count - 1)
        # Ranked by a hash and not drawn: one more picture then moves no other one, except at the border.
        ranked = sorted(folder.images, key=lambda image, name=name: _rank(seed, name, image))  # type: ignore[misc]
        train[name] = ClassFolder(folder.path, sorted(ranked[wanted:]))
        if wanted:
            val[name] = ClassFolder(folder.path, sorted(ranked[:wanted]))
    total = sum(len(folder.images) for folder in val.values())
    notes.append(f"val is {total} of the train pictures: {share:.0%} of each class, split seed {seed}")
    if single:
        notes.append(f"classes with one picture, which stays in train: {_listed(single)}")
    return train, val


def _rank(seed: int, name: str, image: str) -> bytes:
    return blake2b(f"{seed}/{name}/{image}".encode("utf-8", "surrogateescape"), digest_size=8).digest()


def _items(root: Path, classes: dict[str, ClassFolder], order: tuple[str, ...]) -> Items:
    sources, labels, names = [], [], []
    for label, name in enumerate(order):
        if name in classes:
            folder = classes[name]
            below = folder.path.relative_to(root).as_posix()
            sources += [os.path.join(folder.path, image) for image in folder.images]
            names += [printable(f"{below}/{image}") for image in folder.images]
            labels += [label] * len(folder.images)
    return Items(tuple(sources), np.array(labels, np.int64), tuple(names))


def _relabelled(catalog: Catalog, order: tuple[str, ...]) -> Catalog:
    """The same pictures with labels in another class order."""
    _check_known(catalog.source, catalog.classes, order, "the model")
    position = np.array([order.index(name) for name in catalog.classes])
    splits = {k: Items(items.sources, position[items.labels], items.names) for k, items in catalog.splits.items()}
    return Catalog(catalog.source, order, splits, (*catalog.notes, *_absent(order, splits)))


def _absent(order: tuple[str, ...], splits: dict[str, Items]) -> list[str]:
    notes = []
    for split, items in splits.items():
        counts = np.bincount(items.labels, minlength=len(order))
        absent = [name for name, count in zip(order, counts, strict=True) if count == 0]
        if absent:
            notes.append(f"{split} has no pictures of {len(absent)} of {len(order)} classes: {_listed(absent)}")
    return notes


def _note_others(layout: Layout, notes: list[str]) -> None:
    others = Counter[str]()
    for found in layout.values():
        for folder in found.values():
            others += folder.others
    if others:
        kinds = ", ".join(f"{kind} ({count})" for kind, count in sorted(others.items()))
        notes.append(f"{others.total()} files passed over because their extension is no image's: {kinds}")


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:20])
    return shown if len(names) <= 20 else f"{shown} and {len(names) - 20} more"
