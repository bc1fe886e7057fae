"""Writing files so that a crash leaves the old one or the new one, never half of one."""

import os
import shlex
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mixwise.errors import MixwiseError, UsageError


def check_output(path: Path, *, suffixes: tuple[str, ...], source: Path, overwrite: bool = False) -> None:
    """Refuse, before any work is done, a place that cannot or should not be written.

    Args:
        suffixes: endings that the file may have.
        source: what is read; writing over it is always refused.
        overwrite: whether another file may be there already.

    Raises `UsageError` for the wrong name, `MixwiseError` for a folder that cannot be written.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a folder: name the file to write in it")
    if path.suffix.lower() not in suffixes:
        raise UsageError(f"{path} must end in {' or '.join(suffixes)}")
    if path.exists():
        if source.exists() and path.samefile(source):
            raise UsageError(f"{path} is the file that is read: choose another name to write to")
        if not overwrite:
            raise UsageError(f"{path} exists already; choose another name, or --force to replace it")
    folder = path.absolute().parent
    while not os.path.lexists(folder):
        folder = folder.parent
    if not folder.is_dir():
        raise MixwiseError(f"cannot write {path}: {folder} is not a folder")
    if not os.access(folder, os.W_OK):
        raise MixwiseError(f"cannot write {path}: no permission to write in {folder}")


def check_outside(path: Path, data: str | Path) -> None:
    """Refuse, before any work is done, a place in the folder of the pictures, where nothing is ever written."""
    pictures = Path(data).expanduser().resolve()
    if pictures.is_dir() and path.expanduser().resolve().is_relative_to(pictures):
        raise UsageError(f"{path} lies in {data}, the folder of the pictures, where nothing is written: choose another")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary name beside `path`; on success it takes the place of `path` in one step, on failure it vanishes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode
        yield temporary
        os.chmod(temporary, mode)  # safetensors would leave a file that only its owner can read
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        if error.filename != str(temporary):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None  # the name that people know
    finally:
        temporary.unlink(missing_ok=True)


def command(*words: object) -> str:
    """A line that the shell of this machine reads as these words."""
    texts = [str(word) for word in words]
    return subprocess.list2cmdline(texts) if os.name == "nt" else shlex.join(texts)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text in one step; bytes of file names that are no UTF-8 as escapes."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def rotate(path: Path, previous: Path, write: Callable[[Path], object]) -> None:
    """Write a new `path` and keep the old one as `previous`."""
    with replacing(path) as temporary:
        write(temporary)
        if path.exists():
            os.replace(path, previous)
