"""The one image decoder: every verb reads pictures through `decode`, so the same picture gives the same pixels."""

import difflib
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
from PIL import ExifTags, Image

from mixwise.config import MAX_PIXELS, Size
from mixwise.data.arrays import from_array, from_tensor, is_tensor
from mixwise.data.bad import BadImage, ends_in_zeros, explained, whole_chunks
from mixwise.data.source import Stored
from mixwise.data.switches import SWITCHES
from mixwise.errors import UsageError, printable

if TYPE_CHECKING:
    from torch import Tensor

Source: TypeAlias = "str | Path | bytes | Image.Image | np.ndarray | Tensor | Stored"
"""What `decode` reads."""

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_DEEP = ("I", "I;16", "I;16B", "I;16L", "I;16N", "F")
_EXIF_BITS = 258

_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What makes a picture upright, by its EXIF orientation."""

_SIDEWAYS = (5, 6, 7, 8)

_PROGRAMS = ("EPS",)
"""Formats that are programs, which Pillow would have another program run."""

_STRIP = 1 << 19
"""Pixels that are converted at a time, so that a huge picture is not in memory several times."""


def decode(
    source: Source,
    *,
    channels: int = 3,
    background: tuple[int, int, int] = (255, 255, 255),
    hint: Size | None = None,
    max_pixels: int = MAX_PIXELS,
) -> Image.Image:
    """Read one picture, upright, 8 bits a channel, in a fixed mode.

    What the bytes say counts, not the file's extension. The EXIF orientation is applied. Of an animation or a document
    the first frame is read. Grey of 9 to 16 bits is scaled by its depth; 32-bit integers count as 16-bit where they
    fit; floats in [0, 1] become 0 to 255; any other range is stretched from its least to its largest value. CMYK,
    YCbCr, LAB and palettes become RGB; ICC profiles are not applied.

    Args:
        source: a path (str or Path), an encoded file (bytes), a Pillow image, an array (h, w) or (h, w, 1 | 3 | 4) or a
            tensor (1 | 3 | 4, h, w). Arrays and tensors are uint8, uint16, bool or float in [0, 1]. A `Stored` picture
            is any of these inside something larger.
        channels: 1 grey, 3 RGB, 4 RGBA.
        background: RGB 0 to 255; with 1 or 3 channels transparent parts are laid over it.
        hint: (height, width) that is wanted. A JPEG is then decoded at 1/2, 1/4 or 1/8 where that is not smaller on
            either side: several times faster, and pixels that differ slightly from shrinking the full picture.
        max_pixels: largest height · width that is decoded.

    Returns: a new Pillow image in mode L, RGB or RGBA. Raises `BadImage` for what cannot be read, `UsageError` for
    arrays and tensors of another shape, type or range.

    >>> decode(np.zeros((4, 6), np.uint8)).size, decode(torch.ones(3, 4, 6), channels=1).mode
    ((6, 4), 'L')
    """
    if channels not in _MODES:
        raise UsageError(f"decode: channels must be 1, 3 or 4, got {channels}")
    if isinstance(source, Stored):
        with _read_from(source) as found:
            return decode(found, channels=channels, background=background, hint=hint, max_pixels=max_pixels)
    if isinstance(source, np.ndarray):
        return _convert(from_array(source), channels, background)
    if is_tensor(source):
        return _convert(from_tensor(cast("Tensor", source)), channels, background)
    name, data = "(given as bytes)", source
    if isinstance(source, str | Path):
        name, data = str(source), _read(Path(source))
    elif isinstance(source, Image.Image):
        name = "(given as a Pillow image)"
    elif not isinstance(source, bytes):
        allowed = "a path, bytes, a Pillow image, a numpy array or a torch tensor"
        raise UsageError(f"decode: the picture must be {allowed}, got {type(source).__name__}")
    encoded = data if isinstance(data, bytes) else None
    with _reading(name, encoded, max_pixels):
        picture: Any = source if encoded is None else _opened(encoded)
        _check_size(name, picture, max_pixels)
        if encoded is not None and hint is not None and picture.format in ("JPEG", "MPO"):
            picture.draft(None, hint if _tag(picture, ExifTags.Base.Orientation) in _SIDEWAYS else hint[::-1])
        picture = _loaded(picture, encoded)
        if encoded is not None and picture.format in ("JPEG", "MPO") and ends_in_zeros(encoded):
            raise EOFError
        bits = _tag(picture, _EXIF_BITS)
        turn = _TURNS.get(_tag(picture, ExifTags.Base.Orientation))
        if turn is not None:
            picture = picture.transpose(turn)
        if picture.mode in _DEEP:
            picture = _shallow(picture, bits)
        return _convert(picture, channels, background)


def size_of(source: str | Path | np.ndarray | Stored, *, max_pixels: int = MAX_PIXELS) -> Size:
    """(height, width) of a picture as `decode` turns it; of most files only the header is looked at. Raises `BadImage`.

    >>> size_of(np.zeros((4, 6), np.uint8))
    (4, 6)
    """
    if isinstance(source, np.ndarray):
        return source.shape[0], source.shape[1]
    if isinstance(source, Stored):
        with _read_from(source) as found:
            if not isinstance(found, bytes):
                return decode(found, max_pixels=max_pixels).size[::-1]
            return _size(str(source), found, max_pixels)
    return _size(str(source), _read(Path(source)), max_pixels)


def _size(name: str, encoded: bytes, max_pixels: int) -> Size:
    with _reading(name, encoded, max_pixels):
        picture = _opened(encoded)  # Pillow gives the size of a TIFF, and only of that, upright
        _check_size(name, picture, max_pixels)
        if picture.format == "PNG":
            picture = _loaded(picture, encoded)  # its EXIF may follow the pixels
        sideways = _tag(picture, ExifTags.Base.Orientation) in _SIDEWAYS
        return picture.size if sideways and picture.format != "TIFF" else (picture.height, picture.width)


@contextmanager
def _reading(name: str, encoded: bytes | None, max_pixels: int) -> Iterator[None]:
    """With Pillow's switches set; whatever goes wrong becomes a `BadImage`."""
    SWITCHES.enter(max_pixels)
    try:
        yield
    except BadImage:
        raise
    except Exception as error:  # readers raise nearly every kind on damaged files
        raise explained(name, error, encoded) from error
    finally:
        SWITCHES.leave()


def _opened(encoded: bytes) -> Any:
    Image.init()
    return Image.open(io.BytesIO(encoded), formats=[name for name in Image.ID if name not in _PROGRAMS])


def _check_size(name: str, picture: Any, max_pixels: int) -> None:
    pixels = picture.width * picture.height
    if pixels > max_pixels:
        raise BadImage(name, "too large", f"it has {pixels} pixels, more than max_pixels allows")


def _loaded(picture: Any, encoded: bytes | None) -> Any:
    """The picture with its pixels. A PNG of which only the last chunk is cut has all of them."""
    try:
        picture.load()
    except OSError as error:
        if encoded is None or picture.format != "PNG":
            raise
        try:
            picture = _opened(whole_chunks(encoded))
            picture.load()
        except OSError:
            raise error from None
    return picture


def _tag(picture: Any, tag: int) -> Any:
    """An EXIF or TIFF entry; None also where the EXIF data is damaged, which says nothing about the pixels."""
    try:
        return picture.getexif().get(tag)
    except Exception:
        return None


@contextmanager
def _read_from(source: Stored) -> Iterator[bytes | np.ndarray | Image.Image]:
    """What is stored there; what is wrong with it is said of `source`."""
    name = str(source)
    try:
        try:
            found = source.read()
        except FileNotFoundError as error:
            raise BadImage(name, "missing", str(error)) from None
        except Exception as error:  # whatever the library that stores it raises
            raise BadImage(name, "unreadable", str(error) or type(error).__name__) from error
        yield found
    except BadImage as error:
        raise BadImage(name, error.reason, error.detail) from error


def _read(path: Path) -> bytes:
    try:
        if not stat.S_ISREG(kind := os.stat(path).st_mode):  # to open a pipe would wait for its other end
            what = "a folder" if stat.S_ISDIR(kind) else "not a regular file"
            raise BadImage(str(path), "unreadable", f"it is {what}")
        return path.read_bytes()
    except FileNotFoundError:
        if path.is_symlink():
            target = printable(os.readlink(path))
            raise BadImage(str(path), "missing", f"it is a link to {target}, which is not there") from None
        siblings = os.listdir(path.parent) if path.parent.is_dir() else []
        near = difflib.get_close_matches(path.name, siblings, n=1)
        hint = f"; the nearest name there is '{printable(near[0])}'" if near else ""
        raise BadImage(str(path), "missing", f"there is no such file{hint}") from None
    except OSError as error:
        raise BadImage(str(path), "unreadable", error.strerror or str(error)) from None
    except ValueError as error:
        raise BadImage(str(path), "unreadable", str(error)) from None


def _convert(picture: Image.Image, channels: int, background: tuple[int, int, int]) -> Image.Image:
    """In mode L, RGB or RGBA; always a new image."""
    rows = max(1, _STRIP // picture.width)
    if picture.height <= rows or picture.mode == _MODES[channels]:
        return _converted(picture, channels, background)
    whole = Image.new(_MODES[channels], picture.size)
    for top in range(0, picture.height, rows):
        strip = picture.crop((0, top, picture.width, min(top + rows, picture.height)))
        whole.paste(_converted(strip, channels, background), (0, top))
    return whole


def _converted(picture: Image.Image, channels: int, background: tuple[int, int, int]) -> Image.Image:
    if channels == 4:
        return _rgba(picture)
    if picture.has_transparency_data:
        ground = Image.new("RGBA", picture.size, (*background, 255))
        picture = Image.alpha_composite(ground, _rgba(picture)).convert("RGB")
    elif picture.mode not in ("1", "L", "RGB"):
        picture = picture.convert("RGB")
    return picture.convert(_MODES[channels])


def _rgba(picture: Image.Image) -> Image.Image:
    # Pillow converts LAB only to RGB, premultiplied alpha only to its own kind, and LA of a palette only through RGBA.
    through = {"LAB": "RGB", "La": "LA"}.get(picture.mode)
    return (picture.convert(through) if through else picture).convert("RGBA")


def _shallow(picture: Image.Image, bits: Any) -> Image.Image:
    """Grey of more than 8 bits as L, or as LA where one value is declared transparent."""
    values = np.asarray(picture)
    clear = picture.info.get("transparency")
    low, high = _span(values, bits)
    factor = 255 / (high - low) if high > low else 0.0
    grey = np.empty(values.shape, np.uint8)
    rows = max(1, _STRIP // picture.width)
    for top in range(0, picture.height, rows):
        strip = values[top : top + rows].astype(np.float64)
        strip = np.nan_to_num(strip, nan=low, posinf=high, neginf=low)
        grey[top : top + rows] = np.rint((strip - low) * factor).clip(0, 255)
    if clear is None:
        return Image.fromarray(grey)
    alpha = Image.fromarray(np.where(values == clear, 0, 255).astype(np.uint8))
    return Image.merge("LA", (Image.fromarray(grey), alpha))


def _span(values: np.ndarray, bits: Any) -> tuple[float, float]:
    """The values that become black and white."""
    if values.dtype.kind == "f":
        finite = np.isfinite(values)
        low, high = float(values.min(where=finite, initial=np.inf)), float(values.max(where=finite, initial=-np.inf))
        if low > high:  # nothing is finite
            return 0.0, 0.0
        return (0.0, 1.0) if low >= 0 and high <= 1 else (low, high)
    low, high = float(values.min()), float(values.max())
    if low >= 0 and high <= 65535:
        depth = bits[0] if isinstance(bits, tuple) else bits
        return 0.0, float(max(255, 2 ** min(int(depth or 16), 16) - 1))
    return low, high
