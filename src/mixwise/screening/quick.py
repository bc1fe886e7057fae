"""What `train` does before it begins: every file is glanced at, and what cannot be read is left out, by name."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from mixwise.config import Data
from mixwise.data import Catalog, Items
from mixwise.data.listing import counted, listed
from mixwise.errors import MixwiseError, printable
from mixwise.screening.findings import (
    Finding,
    Seen,
    bad_pictures,
    class_counts,
    find,
    pictures,
    without_bad,
)
from mixwise.screening.scan import is_file, read_verdicts, scan, unchanged
from mixwise.screening.verdict import Verdict, fingerprint, glance

_SHOWN = 5

_WORTH_A_LINE = ("same_picture_two_labels", "same_picture_two_splits", "splits_as_classes", "tiny_class", "imbalance")
"""Warnings that no note of the catalog gives already."""


@dataclass(frozen=True)
class Screened(Catalog):
    """A catalog without the pictures that cannot be read."""

    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    """Of every file, and of whatever cannot be read, by the picture's name: kept beside the run, so that a resumed one
    leaves out the same pictures."""


def screen(catalog: Catalog, data: Data, console: Console) -> Screened:
    """Glance at every picture, say in two lines what was found, and leave out what cannot be read.

    Raises `MixwiseError` where that would leave too little: see `data.on_bad` and `data.max_bad`.
    """
    seen = _seen(catalog, console, data.max_pixels)
    findings = find(catalog, seen, on_bad=data.on_bad, max_bad=data.max_bad)
    _print(console, catalog, seen, findings)
    for finding in findings:
        # A split without pictures has its own message, which names the folder.
        if finding.level == "stop" and finding.kind not in ("no_train_pictures", "no_val_pictures"):
            raise MixwiseError(_stop(finding, catalog, seen))
    verdicts = {p.name: p.verdict for p in pictures(catalog, seen) if p.verdict.reason or is_file(p.source)}
    left = without_bad(catalog, seen)
    return Screened(**vars(left), verdicts=verdicts)


def screened_before(catalog: Catalog, path: Path, console: Console) -> Catalog:
    """The catalog without the pictures that a run left out when it began; `path` holds its verdicts.

    Files that were changed since are named: the run does not go on as if nothing had happened.
    """
    verdicts = read_verdicts(path)
    changed: list[str] = []
    splits: dict[str, Items] = {}
    for split, items in catalog.splits.items():
        keep = []
        for i, (name, source) in enumerate(zip(items.names, items.sources, strict=True)):
            verdict = verdicts.get(name)
            if verdict is None or not verdict.reason:
                keep.append(i)
            if verdict is not None and is_file(source) and not unchanged(source, verdict):
                changed.append(name)
        splits[split] = items.chosen(keep)
    if changed:
        text = f"{counted(len(changed))} changed since the run was started: {listed(changed, _SHOWN)}"
        console.print(text, highlight=False, markup=False)
    return replace(catalog, splits=splits)


def class_range(items: Items, classes: int) -> str:
    """How many pictures the classes of a split have: "50 a class", or "3 to 80 a class"."""
    counts = class_counts(items, classes)
    few, many = int(counts.min()), int(counts.max())
    return f"{few} a class" if few == many else f"{few} to {many} a class"


def _seen(catalog: Catalog, console: Console, max_pixels: int) -> Seen:
    """Verdicts of all pictures; those whose size and ends are equal get a hash of all their bytes."""
    sources = [source for items in catalog.splits.values() for source in items.sources]
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("looking at the pictures", total=None)
        verdicts = scan(
            sources,
            partial(glance, max_pixels=max_pixels),
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    ends: dict[str, list[int]] = {}
    for index, verdict in enumerate(verdicts):
        if verdict.ends:
            ends.setdefault(verdict.ends, []).append(index)
    for alike in ends.values():
        for index in alike if len(alike) > 1 else ():
            verdicts[index] = _read_whole(sources[index], verdicts[index])
    seen: Seen = {}
    for split, items in catalog.splits.items():
        seen[split], verdicts = verdicts[: len(items)], verdicts[len(items) :]
    return seen


def _read_whole(path: Any, verdict: Verdict) -> Verdict:
    try:
        return replace(verdict, digest=fingerprint(Path(path).read_bytes()))
    except OSError:  # gone since: the training will say so
        return verdict


def _print(console: Console, catalog: Catalog, seen: Seen, findings: list[Finding]) -> None:
    total = sum(map(len, seen.values()))
    bad = [f"{p.name} ({p.verdict.reason})" for p in pictures(catalog, seen) if p.verdict.reason]
    line = f"all {total} can be opened and end as they should"
    if bad:
        line = f"{len(bad)} of {total} cannot be read: {listed(bad, _SHOWN)}"
    console.print(f"files    {line}", highlight=False, markup=False)
    warnings = [finding.text for finding in findings if finding.kind in _WORTH_A_LINE]
    line = f"{'; '.join(warnings)} (mixwise check DATA says more)" if warnings else ""
    none = "no picture under two labels or in two splits, no class much smaller than the others"
    console.print(f"check    {line or none}", highlight=False, markup=False)


def _stop(finding: Finding, catalog: Catalog, seen: Seen) -> str:
    bad = [p for p in pictures(catalog, seen) if p.verdict.reason]
    if finding.kind not in {f.kind for f in bad_pictures(bad, "error", 1)} | {"too_many_bad"}:
        return f"{catalog.source}: {finding.text}; training {finding.action}"
    reasons = [f"{printable(str(p.source))} ({p.verdict.reason}, {printable(p.verdict.detail)})" for p in bad]
    text = f"{len(bad)} of {counted(sum(map(len, seen.values())))} cannot be read"
    if finding.kind == "too_many_bad":
        text = finding.text
    return f"{text}: {listed(reasons, _SHOWN)}; training {finding.action}"
