"""The one image decoder: every verb reads pictures through `decode`, so the same picture gives the same pixels."""

import difflib
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import ExifTags, Image, ImageOps
from torch import Tensor

from mixwise.config import Size
from mixwise.data.source import Stored
from mixwise.errors import MixwiseError, UsageError

Source = str | Path | bytes | Image.Image | np.ndarray | Tensor | Stored
"""What `decode` reads."""

Reason = Literal["missing", "empty", "truncated", "unreadable", "too large"]

MAX_PIXELS = 178_956_970
"""Largest picture by default, height · width: where Pillow itself refuses."""

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_DEEP = ("I", "I;16", "I;16B", "I;16L", "I;16N", "F")
_SIDEWAYS = (5, 6, 7, 8)
_EXIF_BITS = 258


class BadImage(MixwiseError):  # noqa: N818 (named for the thing, not for the exception)
    """A picture that cannot be read; `path` says which, `reason` is one of `Reason`, `detail` a half-sentence."""

    def __init__(self, path: str, reason: Reason, detail: str) -> None:
        super().__init__(path, reason, detail)
        self.path = path
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        return f"cannot read image {self.path}: {self.reason}, {self.detail}"


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
        return _convert(_from_array(source), channels, background)
    if isinstance(source, Tensor):
        return _convert(_from_tensor(source), channels, background)
    name, data = "(given as bytes)", source
    if isinstance(source, str | Path):
        name, data = str(source), _read(Path(source))
    elif isinstance(source, Image.Image):
        name = "(given as a Pillow image)"
    elif not isinstance(source, bytes):
        allowed = "a path, bytes, a Pillow image, a numpy array or a torch tensor"
        raise UsageError(f"decode: the picture must be {allowed}, got {type(source).__name__}")
    # Pillow's readers raise nearly every kind of exception on damaged files, so all of them mean a bad image.
    try:
        own = isinstance(data, bytes)
        picture: Any = Image.open(io.BytesIO(data)) if isinstance(data, bytes) else source
        if picture.width * picture.height > max_pixels:
            raise BadImage(name, "too large", f"{picture.height} x {picture.width} is over {max_pixels} pixels")
        if own and hint is not None and picture.format in ("JPEG", "MPO"):
            sideways = picture.getexif().get(ExifTags.Base.Orientation) in _SIDEWAYS
            picture.draft(None, hint if sideways else hint[::-1])
        _load(picture)
        bits = picture.getexif().get(_EXIF_BITS)
        picture = ImageOps.exif_transpose(picture)
        if picture.mode in _DEEP:
            picture = _shallow(picture, bits)
        return _convert(picture, channels, background)
    except BadImage:
        raise
    except Exception as error:
        raise _bad(name, error, data if isinstance(data, bytes) else None) from error


def size_of(source: str | Path | np.ndarray | Stored) -> Size:
    """(height, width) of a picture as `decode` turns it; of a JPEG only the header is looked at. Raises `BadImage`.

    >>> size_of(np.zeros((4, 6), np.uint8))
    (4, 6)
    """
    if isinstance(source, np.ndarray):
        return source.shape[0], source.shape[1]
    if isinstance(source, Stored):
        with _read_from(source) as found:
            if not isinstance(found, bytes):
                return decode(found).size[::-1]
            encoded = found
    else:
        encoded = _read(Path(source))
    try:
        picture = Image.open(io.BytesIO(encoded))  # Pillow gives the size of a TIFF, and only of that, upright
        if picture.format == "PNG":
            _load(picture)  # its EXIF may follow the pixels
        sideways = picture.getexif().get(ExifTags.Base.Orientation) in _SIDEWAYS
        return picture.size if sideways and picture.format != "TIFF" else (picture.height, picture.width)
    except Exception as error:
        raise _bad(str(source), error, encoded) from error


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
        return path.read_bytes()
    except FileNotFoundError:
        siblings = os.listdir(path.parent) if path.parent.is_dir() else []
        near = difflib.get_close_matches(path.name, siblings, n=1)
        hint = f"; the nearest name there is {near[0]!r}" if near else ""
        raise BadImage(str(path), "missing", f"there is no such file{hint}") from None
    except IsADirectoryError:
        raise BadImage(str(path), "unreadable", "it is a folder") from None
    except (OSError, ValueError) as error:
        raise BadImage(str(path), "unreadable", str(error)) from None


def _load(picture: Any) -> None:
    try:
        picture.load()
    except OSError:
        # A PNG with no tile left to read has all its pixels: only what follows them is damaged.
        if picture.format != "PNG" or picture.tile:
            raise


def _bad(name: str, error: Exception, encoded: bytes | None) -> BadImage:
    if encoded == b"":
        return BadImage(name, "empty", "there is nothing in it")
    text = str(error) or type(error).__name__
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return BadImage(name, "too large", text)
    if isinstance(error, EOFError) or "truncated" in text.lower() or _cut_short(encoded or b""):
        return BadImage(name, "truncated", "the file ends before the picture does")
    if isinstance(error, Image.UnidentifiedImageError):
        return BadImage(name, "unreadable", "its content is no image format that is known")
    return BadImage(name, "unreadable", text)


def _cut_short(encoded: bytes) -> bool:
    """Whether the sizes that a WebP, TIFF, AVIF or JPEG 2000 file declares reach past its end."""
    if encoded[:4] == b"RIFF":
        return int.from_bytes(encoded[4:8], "little") + 8 > len(encoded)
    if encoded[:4] in (b"II*\0", b"MM\0*"):
        return int.from_bytes(encoded[4:8], "little" if encoded[:2] == b"II" else "big") >= len(encoded)
    if encoded[4:8] not in (b"ftyp", b"jP  "):
        return False
    position = 0
    while position + 8 <= len(encoded) and (size := int.from_bytes(encoded[position : position + 4], "big")) >= 8:
        position += size
    return position > len(encoded)


def _convert(picture: Image.Image, channels: int, background: tuple[int, int, int]) -> Image.Image:
    """In mode L, RGB or RGBA; always a new image."""
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
    if picture.mode == "F":
        finite = values[np.isfinite(values)].astype(np.float64)
        low, high = (finite.min(), finite.max()) if finite.size else (0.0, 0.0)
        whole = np.nan_to_num(values.astype(np.float64), nan=low, posinf=high, neginf=low)
        scaled = whole * 255 if low >= 0 and high <= 1 else _stretch(whole)
    else:
        depth = bits[0] if isinstance(bits, tuple) else bits
        top = 2 ** min(int(depth or 16), 16) - 1
        fits = values.min() >= 0 and values.max() <= 65535
        scaled = values.astype(np.float64) * (255 / max(top, 255)) if fits else _stretch(values.astype(np.float64))
    grey = Image.fromarray(np.rint(scaled).clip(0, 255).astype(np.uint8))
    if clear is None:
        return grey
    return Image.merge("LA", (grey, Image.fromarray(np.where(values == clear, 0, 255).astype(np.uint8))))


def _stretch(values: np.ndarray) -> np.ndarray:
    low, high = values.min(), values.max()
    return (values - low) * (255 / (high - low)) if high > low else np.zeros_like(values)


def _from_tensor(tensor: Tensor) -> Image.Image:
    if tensor.ndim != 3 or tensor.shape[0] not in (1, 3, 4):
        raise UsageError(f"decode: a tensor must be (c, h, w) with c 1, 3 or 4, got shape {tuple(tensor.shape)}")
    values = tensor.detach().cpu()
    if values.is_floating_point():
        values = values.to(torch.float32)  # numpy has no bfloat16
    return _from_array(values.permute(1, 2, 0).numpy())


def _from_array(array: np.ndarray) -> Image.Image:
    flat = array[:, :, 0] if array.ndim == 3 and array.shape[2] == 1 else array
    if not (flat.ndim == 2 or (flat.ndim == 3 and flat.shape[2] in (3, 4))) or 0 in flat.shape:
        raise UsageError(f"decode: an array must be (h, w) or (h, w, c) with c 1, 3 or 4, got shape {array.shape}")
    if flat.dtype == np.uint8:
        return Image.fromarray(np.ascontiguousarray(flat))
    if flat.dtype == np.bool_:
        scaled = flat * 255.0
    elif flat.dtype == np.uint16:
        scaled = flat / 257
    elif flat.dtype.kind == "f":
        if not (flat.min() >= 0 and flat.max() <= 1):
            raise UsageError(f"decode: floats must be in [0, 1], got {flat.min():.4g} to {flat.max():.4g}")
        scaled = flat.astype(np.float64) * 255
    else:
        raise UsageError(f"decode: values must be uint8, uint16, bool or float, got {flat.dtype}")
    return Image.fromarray(np.rint(scaled).astype(np.uint8))
