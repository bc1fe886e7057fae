"""All pictures looked at, each once, in threads; what was seen before and has not changed is not read again."""

import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mixwise.errors import MixwiseError, UsageError
from mixwise.files import write_text
from mixwise.screening.verdict import Verdict

_CHUNK = 256
"""Pictures handed to the threads at a time: progress moves, and a stop is quick."""

_HEADER = {"mixwise": "verdicts", "version": 1}

Progress = Callable[[int, int], None]
"""Called with (pictures done, pictures in all)."""


def scan(
    sources: Sequence[Any],
    see: Callable[[Any], Verdict],
    *,
    known: Mapping[str, Verdict] | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> list[Verdict]:
    """A verdict for each source, in order.

    Threads, not processes: reading, hashing and decoding let go of Python's lock, and nothing has to be started.

    Args:
        sources: what `decode` reads.
        see: `look` or `glance`.
        known: verdicts by `key` of the path; one holds while size and time of the file are those in it.
        workers: threads; None: one for each processor core, at most 8.
    """
    verdicts: list[Verdict] = []
    held = known or {}
    with ThreadPoolExecutor(workers or min(8, os.cpu_count() or 1)) as pool, warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\.")  # what matters of them is in the verdicts
        for start in range(0, len(sources), _CHUNK):
            chunk = sources[start : start + _CHUNK]
            verdicts += pool.map(lambda source: _valid(source, held) or see(source), chunk)
            if progress is not None:
                progress(len(verdicts), len(sources))
    return verdicts


def key(path: Any) -> str:
    """By which a file's verdict is kept."""
    return os.path.abspath(path)


def is_file(source: Any) -> bool:
    """Whether a source is a path, so that its verdict can be kept."""
    return isinstance(source, str | Path)


def _valid(source: Any, known: Mapping[str, Verdict]) -> Verdict | None:
    """The verdict of before, where the file is still the same."""
    if not known or not is_file(source) or (verdict := known.get(key(source))) is None:
        return None
    return verdict if unchanged(source, verdict) else None


def unchanged(path: Any, verdict: Verdict) -> bool:
    """Whether a file has the size and the time that its verdict was made with."""
    try:
        stat = os.stat(path)
    except OSError:
        return False
    return (stat.st_size, stat.st_mtime_ns) == (verdict.size, verdict.mtime)


def read_verdicts(path: Path) -> dict[str, Verdict]:
    """Verdicts by name or path from a file of `write_verdicts`; none where there is no file yet.

    Raises `UsageError` for a file of another kind, `MixwiseError` for a damaged one.
    """
    if not path.is_file():
        return {}
    try:
        with open(path, encoding="utf-8") as file:
            first = file.readline()
            if json.loads(first or "{}") != _HEADER:
                raise UsageError(f"{path} holds no verdicts that this version wrote: name another file, or remove it")
            return dict(_entry(line) for line in file)
    except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise MixwiseError(f"{path} is not a readable file of verdicts ({error}): name another, or remove it") from None


def write_verdicts(path: Path, verdicts: Mapping[str, Verdict]) -> None:
    """Write JSON lines, in one step: pictures that cannot be read first, fields that say nothing left out."""
    lines = [json.dumps(_HEADER)]
    for place, verdict in sorted(verdicts.items(), key=lambda pair: not pair[1].reason):
        lines.append(json.dumps({"picture": place} | {k: v for k, v in asdict(verdict).items() if v}))
    write_text(path, "\n".join(lines) + "\n")


def _entry(line: str) -> tuple[str, Verdict]:
    fields = json.loads(line)
    place = fields.pop("picture")
    for name in ("mean", "square"):
        fields[name] = tuple(fields.get(name, ()))
    return place, Verdict(**fields)
