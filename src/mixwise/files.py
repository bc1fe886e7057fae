"""Writing files so that a crash leaves the old one or the new one, never half of one."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary name beside `path`; on success it takes the place of `path` in one step, on failure it vanishes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text in one step."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def rotate(path: Path, previous: Path, write: Callable[[Path], object]) -> None:
    """Write a new `path` and keep the old one as `previous`."""
    with replacing(path) as temporary:
        write(temporary)
        if path.exists():
            os.replace(path, previous)
