"""What lies in a data folder and is not used: counted by kind, so that nothing is passed over in silence."""

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from mixwise.data import IMAGE_EXTENSIONS, Catalog
from mixwise.data.layout import JUNK, leads_back
from mixwise.errors import printable
from mixwise.screening.scan import is_file, key


@dataclass
class Leftovers:
    """Files below the data folder that are in no split."""

    hidden: Counter[str] = field(default_factory=Counter)
    """Hidden and system files and folders, by name or kind."""
    others: Counter[str] = field(default_factory=Counter)
    """Files whose extension is no image's, by extension."""
    disguised: list[str] = field(default_factory=list)
    """Those among `others` that hold a picture all the same: paths below the folder."""
    outside: list[str] = field(default_factory=list)
    """Images that belong to no class or split: paths below the folder."""


def leftovers(catalog: Catalog) -> Leftovers:
    """Walk the folder of a data set once; a data set that is no folder has none."""
    found = Leftovers()
    root = Path(catalog.source)
    if not root.is_dir():
        return found
    used = {key(source) for items in catalog.splits.values() for source in items.sources if is_file(source)}
    for path in _walk(root, found.hidden):
        if key(path) in used:
            continue
        below = printable(os.path.relpath(path, root).replace(os.sep, "/"))
        suffix = Path(path).suffix.lower()
        if suffix in IMAGE_EXTENSIONS:
            found.outside.append(below)
        else:
            found.others[suffix or "no extension"] += 1
            if _is_picture(path):
                found.disguised.append(below)
    return found


def _walk(root: Path, hidden: Counter[str]) -> Iterator[str]:
    """Every file, sorted within its folder; hidden ones are counted and not entered."""
    pending, seen = [str(root)], set()
    while pending:
        here = pending.pop()
        real = os.path.realpath(here)  # a link to a folder above would never end
        if real in seen:
            continue
        seen.add(real)
        try:
            entries = sorted(os.scandir(here), key=lambda entry: entry.name)
        except OSError:
            hidden["folders that may not be looked into"] += 1
            continue
        for entry in entries:
            if entry.name.startswith(".") or entry.name.lower() in JUNK:
                hidden[_kind(entry)] += 1
            elif entry.is_dir():
                if not leads_back(Path(entry.path), root):
                    pending.append(entry.path)
            else:
                yield entry.path


def _kind(entry: os.DirEntry[str]) -> str:
    if entry.name.startswith("._"):
        return "._*"
    if entry.name == ".DS_Store" or not entry.name.startswith("."):
        return entry.name
    return "hidden folder" if entry.is_dir() else "hidden file"


def _is_picture(path: str) -> bool:
    """Whether a file opens as one of the formats that the extensions of images stand for."""
    if not os.path.isfile(path):  # to open a pipe would wait for its other end
        return False
    formats = Image.registered_extensions()
    try:
        with Image.open(path) as picture:
            return picture.format in {formats.get(suffix) for suffix in IMAGE_EXTENSIONS}
    except Exception:  # Pillow's readers raise nearly every kind
        return False
