"""One picture looked at: `look` decodes all of it, `glance` reads its header and whether its end is there."""

import base64
import io
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from mixwise.config import MAX_PIXELS
from mixwise.data import BadImage, Stored, decode

HINT = (64, 64)
"""JPEGs are decoded no larger than needed for this: every byte is read all the same, and damage is found."""

NOT_AN_IMAGE = "not an image"

_ENDS = 4096
"""Bytes at the start and at the end of a file by which files of equal size are told apart before they are read."""

_SMALL = (16, 16)


@dataclass(frozen=True)
class Verdict:
    """What one picture is, or why it cannot be read."""

    reason: str = ""
    """Empty: it can be read. Else a reason of `BadImage`, or "not an image"."""
    detail: str = ""
    """A half-sentence about the reason."""
    size: int = 0
    """Bytes in the file."""
    mtime: int = 0
    """When the file was last changed, in nanoseconds; with `size` it tells whether a verdict still holds."""
    digest: str = ""
    """A hash of all bytes, or of all pixels of what is no file; after `glance` empty where they were not all read."""
    ends: str = ""
    """After `glance`: a hash of the size, the first and the last bytes."""
    height: int = 0
    """Pixels, upright."""
    width: int = 0
    format: str = ""
    """Pillow's name of the file format; "array" for pictures in memory."""
    mode: str = ""
    """Pillow's name of the colour mode in the file."""
    mean: tuple[float, ...] = ()
    """Of red, green and blue, on a scale of 0 to 1, over a white background; empty after `glance`."""
    square: tuple[float, ...] = ()
    """The means of the squares."""
    small: str = ""
    """The picture as 16 x 16 grey values, base64."""


def look(source: Any, max_pixels: int = MAX_PIXELS) -> Verdict:
    """Read and decode a picture once: anything that is wrong with it is found.

    Args:
        source: what `decode` reads.
        max_pixels: largest height · width that is decoded.

    >>> look(np.zeros((4, 6), np.uint8)).width, look(b"").reason
    (6, 'empty')
    """
    if isinstance(source, Stored):
        return _inside(source, look, max_pixels)
    if isinstance(source, np.ndarray):
        return _seen(_array(source), decode(source), turned=True)
    data, mtime = _read(source)
    known = Verdict()
    if data is not None:
        known = _header(Verdict(size=len(data), mtime=mtime, digest=fingerprint(data)), data)
    try:
        # What only `decode` can read has no header to take the size from.
        hint = None if data is None else HINT
        picture = decode(source if data is None else data, hint=hint, max_pixels=max_pixels)
    except BadImage as error:
        unknown = known.reason == NOT_AN_IMAGE and error.reason == "unreadable"
        return replace(known, reason=NOT_AN_IMAGE if unknown else error.reason, detail=error.detail)
    return _seen(replace(known, reason=""), picture, turned=known.format not in ("JPEG", "MPO"))


def glance(source: Any, max_pixels: int = MAX_PIXELS) -> Verdict:
    """Read the header and the end of a picture: several times faster than `look`, and blind to damage in between.

    Only JPEG, PNG, GIF and WebP say where they end. What does not end so, and every other format, is looked at whole.
    """
    if isinstance(source, Stored):
        return _inside(source, glance, max_pixels)
    if not isinstance(source, bytes) and not _is_regular(source):
        return look(source, max_pixels)
    try:
        with io.BytesIO(source) if isinstance(source, bytes) else open(source, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            mtime = 0 if isinstance(source, bytes) else os.fstat(file.fileno()).st_mtime_ns
            file.seek(0)
            head = file.read(_ENDS)
            file.seek(max(0, size - _ENDS))
            tail = file.read(_ENDS)
            file.seek(0)
            with Image.open(file) as picture:
                height, width = _upright(picture)
                form, mode = str(picture.format), picture.mode
    except Exception:  # Pillow's readers raise nearly every kind; `look` says what it is
        return look(source, max_pixels)
    if not _ends(form, head, tail, size) or height * width > max_pixels:
        return look(source, max_pixels)
    ends = fingerprint(head + tail + size.to_bytes(8, "little"))
    return Verdict("", "", size, mtime, "", ends, height, width, form, mode)


def _inside(source: Stored, see: Callable[[Any, int], Verdict], max_pixels: int) -> Verdict:
    """What a picture is that lies in something larger."""
    try:
        found = source.read()
    except Exception as error:  # whatever the library that stores it raises
        return Verdict("unreadable", str(error) or type(error).__name__)
    return see(found, max_pixels)


def fingerprint(data: bytes) -> str:
    """A hash by which equal contents are found."""
    return sha256(data).hexdigest()[:32]


def _read(source: Any) -> tuple[bytes | None, int]:
    """All bytes of a file and its time; no bytes for what only `decode` can read."""
    if isinstance(source, bytes):
        return source, 0
    if not _is_regular(source):
        return None, 0
    try:
        with open(source, "rb") as file:
            return file.read(), os.fstat(file.fileno()).st_mtime_ns
    except OSError:
        return None, 0


def _is_regular(source: Any) -> bool:
    """Whether a source is a file that can be opened: to open a pipe would wait for its other end."""
    return isinstance(source, str | Path) and os.path.isfile(source)


def _array(source: np.ndarray) -> Verdict:
    kind = f"{source.shape} {source.dtype}".encode()
    digest = fingerprint(kind + np.ascontiguousarray(source).tobytes())
    return Verdict(size=source.nbytes, digest=digest, format="array", mode=str(source.dtype))


def _header(seen: Verdict, data: bytes) -> Verdict:
    """Size, format and mode, as far as the header can be read."""
    try:
        with Image.open(io.BytesIO(data)) as picture:
            height, width = _upright(picture)
            return replace(seen, height=height, width=width, format=str(picture.format), mode=picture.mode)
    except UnidentifiedImageError:
        # A file that begins as an image does is a damaged one.
        start = data[:16].ljust(16, b"\0")
        begins = any(accept is not None and accept(start) is True for _, accept in Image.OPEN.values())
        return seen if begins else replace(seen, reason=NOT_AN_IMAGE)
    except Exception:  # as above
        return seen


def _upright(picture: Image.Image) -> tuple[int, int]:
    try:
        turned = picture.getexif().get(ExifTags.Base.Orientation) in (5, 6, 7, 8) and picture.format != "TIFF"
    except Exception:  # damaged EXIF: the picture stays as it lies
        turned = False
    return picture.size if turned else (picture.height, picture.width)


def _seen(verdict: Verdict, picture: Image.Image, *, turned: bool) -> Verdict:
    """With what the pixels (RGB) say. turned: they have the size of the file, not a reduced one."""
    if turned:
        verdict = replace(verdict, height=picture.height, width=picture.width)
    counts = np.array(picture.histogram(), np.float64).reshape(3, 256)
    moments = (counts @ _powers() / (picture.width * picture.height)).T.tolist()
    small = picture.resize(_SMALL, Image.Resampling.BILINEAR, reducing_gap=3).convert("L")
    if not verdict.digest:
        verdict = replace(verdict, digest=fingerprint(f"{picture.size}".encode() + picture.tobytes()))
    return replace(
        verdict,
        mean=tuple(moments[0]),
        square=tuple(moments[1]),
        small=base64.b64encode(small.tobytes()).decode(),
    )


@cache
def _powers() -> np.ndarray:
    """Each of the 256 values of a channel on a scale of 0 to 1, and its square: (256, 2)."""
    values = np.arange(256) / 255
    return np.stack([values, values**2], axis=1)


def _ends(form: str, head: bytes, tail: bytes, size: int) -> bool:
    """Whether the file ends as its format does; False for formats without a known end."""
    if form in ("JPEG", "MPO"):
        return tail.endswith(b"\xff\xd9")
    if form == "PNG":
        return tail[-8:-4] == b"IEND"
    if form == "GIF":
        return tail.endswith(b";")
    return form == "WEBP" and int.from_bytes(head[4:8], "little") + 8 <= size
