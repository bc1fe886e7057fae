"""`mixwise check`: what is in a data set, what is wrong with it, and what training would do about it."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from mixwise.config import Data
from mixwise.data import Catalog, discover
from mixwise.data.listing import counted
from mixwise.errors import UsageError
from mixwise.files import check_output, check_outside
from mixwise.labels import read_labels
from mixwise.screening.findings import Finding, Picture, Seen, find, ordered, pictures
from mixwise.screening.leftovers import Leftovers, leftovers
from mixwise.screening.near import look_alikes
from mixwise.screening.scan import Progress, is_file, key, read_verdicts, scan, write_verdicts
from mixwise.screening.verdict import look

Range = tuple[float, float, float]
"""Least, median and largest."""


@dataclass(frozen=True)
class Summary:
    """What is there, of all pictures that can be read."""

    classes: tuple[str, ...] = ()
    splits: dict[str, dict[str, int]] = field(default_factory=dict)
    """Pictures by split and class name, the bad ones left out."""
    pictures: dict[str, int] = field(default_factory=dict)
    """Pictures by split, the bad ones left out; where they have several labels, not the sum over the classes."""
    height: Range | None = None
    """Pixels, upright."""
    width: Range | None = None
    bytes: Range | None = None
    formats: dict[str, int] = field(default_factory=dict)
    """Pictures by file format, the most frequent first."""
    modes: dict[str, int] = field(default_factory=dict)
    """Pictures by colour mode in the file."""
    mean: tuple[float, ...] = ()
    """Of red, green and blue, on a scale of 0 to 1, every picture with the same weight."""
    std: tuple[float, ...] = ()
    hidden: dict[str, int] = field(default_factory=dict)
    """Hidden and system files, ignored."""
    others: dict[str, int] = field(default_factory=dict)
    """Files that are no images by their extension, passed over."""


@dataclass(frozen=True)
class Check:
    """What `check` found."""

    data: str
    summary: Summary
    findings: tuple[Finding, ...]
    """What stops training first, then warnings, then notes."""
    notes: tuple[str, ...]
    """How the folder was read: splits that were made, folders that were passed over."""
    pictures: tuple[Picture, ...]
    """Every picture with its verdict."""

    @property
    def runs(self) -> bool:
        """Whether training would run."""
        return not any(finding.level == "stop" for finding in self.findings)

    @property
    def clean(self) -> bool:
        """Whether there is neither a stop nor a warning."""
        return all(finding.level == "note" for finding in self.findings)

    def to_json(self) -> str:
        """Everything but the verdicts of good pictures, as JSON text."""
        bad = [p for p in self.pictures if p.verdict.reason]
        found = {
            "data": self.data,
            "runs": self.runs,
            "summary": asdict(self.summary),
            "findings": [asdict(finding) for finding in self.findings],
            "bad": [
                {"picture": p.name, "split": p.split, "reason": p.verdict.reason, "detail": p.verdict.detail}
                for p in bad
            ],
            "notes": list(self.notes),
        }
        return json.dumps(found, ensure_ascii=False, indent=2)


def check(
    data: str | Path,
    *,
    near: bool = False,
    cache: str | Path | None = None,
    settings: Data | None = None,
    labels: str | Path | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Check:
    """Read and decode every picture once, and say what is there, what is wrong, and what training would do.

    Args:
        data: a folder or the name of built-in data, as for `train`. Nothing in it is written.
        near: look for pictures that look alike too; a hint only.
        cache: a file for the verdicts. Where it is there already, pictures of the same size and time are not read.
        settings: how training would split, name and skip, and what is too large; None: as `train` does by itself. Its
            `source` is not looked at.
        labels: a file of class names, as for `train`.
        workers: threads; None: one for each processor core, at most 8.
        progress: called with (pictures done, pictures in all).

    Raises `UsageError` where there is no such data. Folders that training could not read are a finding.

    >>> check("digits").runs
    True
    """
    settings = settings or Data(source=str(data))
    kept = None if cache is None else Path(cache)
    if kept is not None:
        check_beside(kept, data, (".jsonl",))
    names = None if labels is None else read_labels(labels)
    try:
        catalog = discover(
            data,
            val_split=settings.val_split,
            seed=settings.split_seed,
            classes=None if names is None else names.names,
            owner=str(labels),
            rename=dict(settings.rename) if names is None else names.rename(names.names),
            unknown_classes=settings.unknown,
        )
    except UsageError as error:
        if not Path(data).exists():
            raise
        finding = Finding("layout", "stop", 1, str(error), "stops")
        return Check(str(data), Summary(), (finding,), (), ())
    seen = _look(catalog, kept, settings.max_pixels, workers, progress)
    left = leftovers(catalog)
    every = tuple(pictures(catalog, seen))
    found = [
        *find(catalog, seen, on_bad=settings.on_bad, max_bad=settings.max_bad),
        *_left(left),
        *(_near(every) if near else ()),
    ]
    return Check(str(data), _summary(catalog, every, left), tuple(ordered(found)), catalog.notes, every)


def _look(
    catalog: Catalog, cache: Path | None, max_pixels: int, workers: int | None, progress: Progress | None
) -> Seen:
    sources = [source for items in catalog.splits.values() for source in items.sources]
    known = {} if cache is None else read_verdicts(cache)
    # Another limit than last time changes these verdicts, whatever the file.
    known = {k: v for k, v in known.items() if v.reason != "too large" and v.height * v.width <= max_pixels}
    see = partial(look, max_pixels=max_pixels)
    verdicts = scan(sources, see, known=known, workers=workers, progress=progress)
    if cache is not None:
        files = {key(s): v for s, v in zip(sources, verdicts, strict=True) if is_file(s)}
        write_verdicts(cache, files)
    seen: Seen = {}
    for split, items in catalog.splits.items():
        seen[split], verdicts = verdicts[: len(items)], verdicts[len(items) :]
    return seen


def check_beside(path: Path, data: str | Path, suffixes: tuple[str, ...]) -> None:
    """Refuse, before any work, a place that cannot be written, and every place in the data folder."""
    check_output(path, suffixes=suffixes, source=Path(data), overwrite=True)
    check_outside(path, data)


def _left(left: Leftovers) -> list[Finding]:
    found = []
    if left.outside:
        text = f"{counted(len(left.outside))} in no class or split"
        groups = tuple((name,) for name in left.outside)
        found.append(Finding("outside", "warning", len(left.outside), text, "passes them over", groups))
    if left.disguised:
        text = f"{counted(len(left.disguised))} in files whose extension is no image's"
        action = "passes them over: rename them to use them"
        groups = tuple((name,) for name in left.disguised)
        found.append(Finding("disguised", "warning", len(left.disguised), text, action, groups))
    for kind, counts, what in (
        ("other_files", left.others, "{} without an image's extension"),
        ("hidden_files", left.hidden, "{}, hidden or of a system"),
    ):
        if counts:
            kinds = ", ".join(f"{name} ({count})" for name, count in sorted(counts.items()))
            text = f"{what.format(counted(counts.total(), 'file'))}: {kinds}"
            found.append(Finding(kind, "note", counts.total(), text, "passes them over"))
    return found


def _near(every: Sequence[Picture]) -> list[Finding]:
    groups = [[every[i] for i in group] for group in look_alikes([picture.verdict for picture in every])]
    if not groups:
        return []
    across = sum(len({picture.split for picture in group}) > 1 for group in groups)
    text = f"{counted(len(groups), 'group')} of pictures that look alike, {across} across splits; a hint, not proof"
    names = tuple(tuple(picture.name for picture in group) for group in groups)
    return [Finding("look_alike", "note", len(groups), text, "keeps them: look at them", names)]


def _summary(catalog: Catalog, every: Sequence[Picture], left: Leftovers) -> Summary:
    good = [picture for picture in every if not picture.verdict.reason]
    splits = {split: dict.fromkeys(catalog.classes, 0) for split in catalog.splits}
    for picture in good:
        for label in picture.labels:
            splits[picture.split][catalog.classes[label]] += 1
    verdicts = [picture.verdict for picture in good]
    mean = np.mean([v.mean for v in verdicts], axis=0) if verdicts else np.zeros(0)
    square = np.mean([v.square for v in verdicts], axis=0) if verdicts else np.zeros(0)
    std = np.sqrt(np.maximum(square - np.square(mean), 0))
    return Summary(
        classes=catalog.classes,
        splits=splits,
        pictures={split: sum(picture.split == split for picture in good) for split in catalog.splits},
        height=_range([v.height for v in verdicts]),
        width=_range([v.width for v in verdicts]),
        bytes=_range([v.size for v in verdicts]),
        formats=dict(Counter(v.format for v in verdicts).most_common()),
        modes=dict(Counter(v.mode for v in verdicts).most_common()),
        mean=tuple(np.round(mean, 4).tolist()),
        std=tuple(np.round(std, 4).tolist()),
        hidden=dict(left.hidden),
        others=dict(left.others),
    )


def _range(values: Sequence[int]) -> Range | None:
    if not values:
        return None
    return float(min(values)), float(np.median(values)), float(max(values))
