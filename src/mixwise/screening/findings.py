"""What is wrong with a data set, and what training does about it: one `Finding` for each kind of trouble."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from mixwise.data import Catalog, Items
from mixwise.data.layout import SPLITS
from mixwise.data.listing import counted, listed
from mixwise.screening.verdict import Verdict

TINY = 5
"""Fewer training pictures than this make a class tiny."""

HEAVY = 10
"""The largest class has at least so many times the pictures of the smallest: heavy imbalance."""

Level = Literal["stop", "warning", "note"]
"""stop: training would not run. warning: it would, and the result may be wrong or worse. note: good to know."""

Seen = dict[str, list[Verdict]]
"""Verdicts by split, in the order of its items."""


@dataclass(frozen=True)
class Finding:
    """One kind of trouble."""

    kind: str
    """A stable name, such as "truncated" or "same_picture_two_splits"."""
    level: Level
    count: int
    """Pictures, groups of equal pictures, classes or files, as `text` says."""
    text: str
    """What was found, with names, in a sentence that ends without a full stop."""
    action: str
    """What training does about it."""
    groups: tuple[tuple[str, ...], ...] = ()
    """All pictures concerned, by name; equal ones in one group."""


_BAD = {
    "missing": "listed but not there",
    "empty": "of zero bytes",
    "truncated": "cut off before the end",
    "unreadable": "damaged",
    "not an image": "with a content that is no image",
    "too large": "with too many pixels",
}


@dataclass(frozen=True)
class Picture:
    """A picture of a catalog with its verdict."""

    split: str
    labels: tuple[int, ...]
    """Positions in the catalog's classes: one, or any number where pictures have several."""
    name: str
    source: Any
    verdict: Verdict


def pictures(catalog: Catalog, seen: Seen) -> Iterator[Picture]:
    """Every picture, split by split."""
    for split, items in catalog.splits.items():
        several = items.labels.ndim > 1
        rows = zip(items.labels, items.names, items.sources, seen[split], strict=True)
        for label, name, source, verdict in rows:
            labels = tuple(np.flatnonzero(label).tolist()) if several else (int(label),)
            yield Picture(split, labels, name, source, verdict)


def class_counts(items: Items, classes: int) -> np.ndarray:
    """(classes,) pictures of each class; with several labels a picture it counts for each of them."""
    if items.labels.ndim > 1:
        return items.labels.sum(axis=0).astype(np.int64)
    return np.bincount(items.labels, minlength=classes)


def without_bad(catalog: Catalog, seen: Seen) -> Catalog:
    """The catalog with the pictures alone that can be read."""
    splits = {
        split: items.chosen([i for i, verdict in enumerate(seen[split]) if not verdict.reason])
        for split, items in catalog.splits.items()
    }
    return replace(catalog, splits=splits)


def find(catalog: Catalog, seen: Seen, *, on_bad: str, max_bad: float) -> list[Finding]:
    """Everything that pictures, labels and splits show, the gravest first.

    Args:
        on_bad: "skip" or "error", as in `mixwise.config.Data`.
        max_bad: the share of pictures that may be skipped.
    """
    every = list(pictures(catalog, seen))
    left = without_bad(catalog, seen)
    found = [*bad_pictures(every, on_bad, max_bad), *_equal(catalog, every), *_classes(catalog, left)]
    return ordered(found)


def ordered(findings: Sequence[Finding]) -> list[Finding]:
    """What stops first, then warnings, then notes."""
    return sorted(findings, key=lambda finding: ("stop", "warning", "note").index(finding.level))


def bad_pictures(every: Sequence[Picture], on_bad: str, max_bad: float) -> Iterator[Finding]:
    """What cannot be read, by reason."""
    bad = [picture for picture in every if picture.verdict.reason]
    action = "leaves them out" if on_bad == "skip" else "stops, as data.on_bad says"
    for reason, text in _BAD.items():
        those = [picture for picture in bad if picture.verdict.reason == reason]
        if those:
            level: Level = "warning" if on_bad == "skip" else "stop"
            groups = tuple((picture.name,) for picture in those)
            yield Finding(reason.replace(" ", "_"), level, len(those), f"{counted(len(those))} {text}", action, groups)
    if on_bad == "skip" and bad and len(bad) > max_bad * len(every):
        text = f"{len(bad)} of {len(every)} pictures ({len(bad) / len(every):.0%}) cannot be read"
        yield Finding("too_many_bad", "stop", len(bad), text, f"stops above data.max_bad = {max_bad:.0%}")


def _equal(catalog: Catalog, every: Sequence[Picture]) -> Iterator[Finding]:
    """Equal contents: under two labels, in two splits, or twice in one place."""
    by_digest: dict[str, list[Picture]] = defaultdict(list)
    for picture in every:
        if picture.verdict.digest and not picture.verdict.reason:
            by_digest[picture.verdict.digest].append(picture)
    groups = [group for group in by_digest.values() if len(group) > 1]
    labels = [group for group in groups if len({picture.labels for picture in group}) > 1]
    splits = [group for group in groups if len({picture.split for picture in group}) > 1]
    plain = [group for group in groups if len({(picture.labels, picture.split) for picture in group}) == 1]
    if labels:
        first = " and ".join(sorted({catalog.classes[label] for picture in labels[0] for label in picture.labels}))
        text = f"{counted(len(labels))} under more than one label, such as {first}"
        action = "keeps them: at least one of the labels is wrong, so correct it"
        yield Finding("same_picture_two_labels", "warning", len(labels), text, action, _names(labels))
    if splits:
        pairs = Counter(" and ".join(dict.fromkeys(picture.split for picture in group)) for group in splits)
        places = ", ".join(f"{count} in {both}" for both, count in pairs.items())
        text = f"{counted(len(splits))} in more than one split: {places}"
        action = "keeps them: the score counts pictures that were learned by heart"
        yield Finding("same_picture_two_splits", "warning", len(splits), text, action, _names(splits))
    if plain:
        text = f"{counted(len(plain))} more than once in one class, {sum(map(len, plain))} files in all"
        yield Finding("same_picture_twice", "note", len(plain), text, "keeps them: each file counts", _names(plain))


def _classes(catalog: Catalog, left: Catalog) -> Iterator[Finding]:
    """Classes that are absent, small, alone, or outweighed."""
    names = catalog.classes
    counts = {split: class_counts(items, len(names)) for split, items in left.splits.items()}
    for split, purpose in (("train", "learn from"), ("val", "validate on")):
        if split not in left.splits or not len(left.splits[split]):
            text = f"there are no pictures to {purpose}"
            yield Finding(f"no_{split}_pictures", "stop", 1, text, "stops")
    for split, mine in counts.items():
        absent = [name for name, count in zip(names, mine, strict=True) if not count]
        present = [name for name, count in zip(names, mine, strict=True) if count]
        if absent and present:
            text = f"{split} has no pictures of {listed(absent)}"
            if split == "train":
                stops = left.task == "classify"  # a label that nothing has is at least never said
                action = f"{'stops' if stops else 'runs'}: what has no pictures cannot be learned"
                yield Finding("class_missing_in_train", "stop" if stops else "warning", len(absent), text, action)
            else:
                action = f"runs: {split} cannot score these classes"
                yield Finding(f"class_missing_in_{split}", "warning", len(absent), text, action)
        if len(present) == 1 and left.task == "classify":
            text = f"all pictures of {split} are of class {present[0]}"
            action = "runs: nothing can be told apart" if split == "train" else "runs: the score says little"
            yield Finding(f"one_class_in_{split}", "warning", 1, text, action)
    spelled = {split: [name for name in names if name.lower() in SPLITS[split]] for split in SPLITS}
    if sum(map(bool, spelled.values())) > 1:
        both = [name for those in spelled.values() for name in those]
        text = f"the classes {listed(both)} have the names of splits: their folders were taken for classes"
        action = "runs, and learns to tell these folders apart; are there pictures beside the class folders in them?"
        yield Finding("splits_as_classes", "warning", len(both), text, action)
    if "train" in counts and len(names) > 1:
        yield from _sizes(names, counts["train"], len(left.splits["train"]))


def _sizes(names: Sequence[str], counts: np.ndarray, total: int) -> Iterator[Finding]:
    tiny = [f"{name} ({count})" for name, count in zip(names, counts, strict=True) if 0 < count < TINY]
    if tiny:
        text = f"{counted(len(tiny), 'class')} with fewer than {TINY} training pictures: {listed(tiny)}"
        yield Finding("tiny_class", "warning", len(tiny), text, "runs: such a class is hardly learned")
    few, many = int(np.argmin(counts)), int(np.argmax(counts))
    if 0 < HEAVY * counts[few] <= counts[many]:
        ratio = counts[many] / counts[few]
        text = f"{names[many]} has {ratio:.0f} times the training pictures of {names[few]}: {counts[many]} and "
        share = counts[many] / total
        action = f"runs as they are: look at the recall of each class; always saying {names[many]} is right {share:.0%}"
        yield Finding("imbalance", "warning", 1, text + f"{counts[few]}", action)


def _names(groups: Sequence[Sequence[Picture]]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(picture.name for picture in group) for group in groups)
