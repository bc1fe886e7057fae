"""Tars of pictures (webdataset shards, or folders packed up), read in place: an index of members, no unpacking."""

import glob
import json
import os
import re
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from mixwise.data.layout import IMAGE_EXTENSIONS, JUNK
from mixwise.data.listing import Listing, Row, counted, kinds, label_text, listed, numbered, split_name
from mixwise.data.source import Slice
from mixwise.errors import UsageError, printable

_LABELS = (".cls", ".json", ".txt")
"""Members that may hold the label of the picture of the same name; the first that is there counts."""

_KEYS = ("label", "labels", "cls", "class", "class_name", "category", "target")
"""Where a .json member has its label or list of labels."""

_PACKED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")
"""How gzip, bzip2, xz and Zstandard files begin."""

_BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}")


def is_pattern(path: Path) -> bool:
    """Whether a path means several tars: DIR/{000..099}.tar or DIR/*.tar."""
    return bool(_BRACES.search(path.name)) or any(mark in path.name for mark in "*?[")


def find_shards(folder: Path) -> list[str]:
    """The tars in a folder, or one level below in folders named as splits."""
    here = sorted(glob.glob(os.path.join(glob.escape(str(folder)), "*.tar")))
    if here:
        return here
    below = sorted(glob.glob(os.path.join(glob.escape(str(folder)), "*", "*.tar")))
    return [path for path in below if split_name(Path(path).parent.name)]


def read_shards(path: Path) -> Listing:
    """The pictures in tars: KEY.jpg with its label in KEY.cls, KEY.json or KEY.txt, or in the name of its folder.

    The split is what the name of the tar begins with (train-0001.tar), or its folder, or a folder inside it.
    Raises `UsageError` where a tar cannot be read in place, or labels are missing.
    """
    shards = find_shards(path) if path.is_dir() else _expanded(path)
    listing = Listing([])
    bare: list[str] = []
    beside: set[str] = set()
    over = Counter[str]()
    root = path if path.is_dir() else path.parent
    for shard in shards:
        below = Path(os.path.relpath(shard, root)).as_posix()
        images, labels = _index(shard, over)
        for member in images:
            name = f"{below}/{member.name}"
            found = labels.get(os.path.splitext(member.name)[0]) or labels.get(_key(member.name))
            folder = PurePosixPath(member.name).parent
            split = _split_of(below) or next(filter(None, map(split_name, folder.parts)), "train")
            if found is None:
                bare.append(name)
            else:
                beside.update(found[0])
                listing.several = listing.several or found[1]
            named = found[0] if found is not None else ((folder.name,) if folder.name else None)
            listing.rows.append(Row(member, name, named, split))
    if not listing.rows:
        raise UsageError(f"{path}: there is no image in {len(shards)} tar files")
    if beside and bare:
        raise UsageError(f"{path}: {len(bare)} pictures have no label beside them: {listed(bare, 5)}")
    if over:
        members = counted(over.total(), "member")
        listing.notes.append(f"passed over: {members} whose extension is no image's: {kinds(over)}")
    listing.order = numbered(beside)
    return listing


def _expanded(path: Path) -> list[str]:
    text = str(path)
    if path.is_file():
        return [text]
    braces = _BRACES.search(text)
    if braces is None:
        found = sorted(glob.glob(text))
        if not found:
            raise UsageError(f"no file matches {text}")
        return found
    first, last = braces.groups()
    numbers = (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
    shards = [text[: braces.start()] + number + text[braces.end() :] for number in numbers]
    missing = [shard for shard in shards if not os.path.isfile(shard)]
    if missing or not shards:
        raise UsageError(
            f"{len(missing)} of the {len(shards)} files that {text} means are not there: {listed(missing, 5)}"
        )
    return shards


def _split_of(shard: str) -> str | None:
    *folders, name = PurePosixPath(shard).parts
    word = re.match(r"[A-Za-z]*", name)
    return split_name(word.group() if word else "") or next(filter(None, map(split_name, folders)), None)


_Labels = dict[str, tuple[tuple[str, ...], bool]]
"""(names, whether there may be several) by key."""


def _key(name: str) -> str:
    """What the members of one sample have in common: the path up to the first dot of the file's name."""
    folder, slash, base = name.rpartition("/")
    return folder + slash + base.partition(".")[0]


def _index(shard: str, over: Counter[str]) -> tuple[list[Slice], _Labels]:
    """The places of the images and the labels; other members are counted in `over`."""
    images: list[Slice] = []
    labels: dict[str, _Labels] = {suffix: {} for suffix in _LABELS}
    with open(shard, "rb") as file:
        for name, start, size in _members(shard):
            stem, suffix = os.path.splitext(name)
            suffix = suffix.lower()
            if suffix in IMAGE_EXTENSIONS:
                images.append(Slice(shard, start, size, printable(name)))
            elif suffix in _LABELS:
                file.seek(start)
                found = _label(f"{shard}/{name}", suffix, file.read(size))
                if found is not None:
                    labels[suffix][stem] = found
            else:
                over[suffix or "no extension"] += 1
    return images, {key: found for suffix in reversed(_LABELS) for key, found in labels[suffix].items()}


def _members(shard: str) -> Iterator[tuple[str, int, int]]:
    """(name, start, size) of the files in a tar, without hidden ones and system junk."""
    try:
        with tarfile.open(shard, "r:") as tar:
            for member in tar:
                tar.members = []  # type: ignore[attr-defined]  # it would keep every one
                parts = PurePosixPath(member.name).parts
                if member.isfile() and not any(part.startswith(".") or part.lower() in JUNK for part in parts):
                    yield "/".join(parts), member.offset_data, member.size
    except tarfile.ReadError as error:
        with open(shard, "rb") as file:
            packed = file.read(6) in (b"\xfd7zXZ\x00",) or (
                file.seek(0) == 0 and file.read(2) in (b"\x1f\x8b", b"BZ", b"(\xb5")
            )
        why = "it is compressed; unpack it once, pictures are compressed already" if packed else str(error)
        raise UsageError(f"{shard} is no tar that can be read in place: {why}") from None
    except OSError as error:
        raise UsageError(f"{shard} cannot be read: {error.strerror}") from None


def _label(where: str, suffix: str, data: bytes) -> tuple[tuple[str, ...], bool] | None:
    """(names, whether there may be several) that a member says; None: nothing about labels."""
    try:
        text = data.decode("utf-8-sig").strip()
        if suffix != ".json":
            return ((text,), False) if text else None
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{where} holds no label: {error}") from None
    value = next((found[key] for key in _KEYS if key in found), None) if isinstance(found, dict) else found
    if isinstance(value, list):
        return tuple(filter(None, map(label_text, value))), True
    return ((label_text(value),), False) if label_text(value) else None
