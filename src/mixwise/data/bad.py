"""Pictures that cannot be read: which, why, and how many of them a data set may have."""

import re
from collections.abc import Callable
from typing import Literal

from PIL import Image

from mixwise.errors import MixwiseError, printable, unknown

Reason = Literal["missing", "empty", "truncated", "unreadable", "too large"]

_ZEROS = bytes(64)
"""Files end so where a computer stopped before all of them was written."""


class BadImage(MixwiseError):  # noqa: N818 (named for the thing, not for the exception)
    """A picture that cannot be read; `path` says which, `reason` is one of `Reason`, `detail` a half-sentence."""

    def __init__(self, path: str, reason: Reason, detail: str) -> None:
        super().__init__(path, reason, detail)
        self.path = path
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        return f"cannot read image {printable(self.path)}: {self.reason}, {self.detail}"


class BadImages:
    """The pictures of one data set that could not be read: each is named once, and too many stop the work.

    Args:
        what: what to call the data set, such as "train".
        total: pictures in it.
        on_bad: "skip" goes on without them, "error" raises the first.
        max_bad: largest share of `total` that is skipped; a data set that is bad as a whole is never accepted.
        say: takes one line for each bad picture, when it is first met.

    Raises `MixwiseError` from `add` where there are too many.
    """

    def __init__(
        self,
        what: str,
        total: int,
        *,
        on_bad: str = "skip",
        max_bad: float = 1.0,
        say: Callable[[str], object] | None = None,
    ) -> None:
        if on_bad not in ("skip", "error"):
            raise unknown("way to treat bad pictures", on_bad, ("skip", "error"), "on_bad")
        self.what = what
        self.total = total
        self.on_bad = on_bad
        self.max_bad = max_bad
        self.say = say
        self.found: dict[int, BadImage] = {}
        """By index in the data set."""

    def add(self, index: int, error: BadImage) -> None:
        """One that was met; those of before count once."""
        if self.on_bad == "error":
            raise error
        if index in self.found:
            return
        self.found[index] = error
        if self.say is not None:
            self.say(str(error))
        count = len(self.found)
        if count == self.total or count > self.max_bad * self.total:
            raise MixwiseError(self._too_many())

    def _too_many(self) -> str:
        names = [f"{printable(error.path)} ({error.reason})" for error in self.found.values()]
        more = f" and {len(names) - 10} more" if len(names) > 10 else ""
        limit = "" if len(names) == self.total else f", and max_bad allows a share of {self.max_bad:g}"
        some = "the only picture" if self.total == 1 else f"{len(names)} of the {self.total} pictures"
        return (
            f"{some} of {self.what} could not be read so far{limit}: {', '.join(names[:10])}{more}; "
            "repair or remove them" + (", or raise data.max_bad" if limit else "")
        )


def explained(name: str, error: Exception, encoded: bytes | None) -> BadImage:
    """What a picture library's exception about a file, whose bytes are `encoded`, means to people."""
    data = encoded or b""
    if encoded is not None and not data.strip(b"\0"):
        return BadImage(name, "empty", "it holds nothing but zeros" if data else "there is nothing in it")
    text = str(error) or type(error).__name__
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        pixels = re.search(r"\d+", text)
        return BadImage(
            name, "too large", f"it has {pixels[0]} pixels, more than max_pixels allows" if pixels else text
        )
    if isinstance(error, MemoryError):
        return BadImage(name, "too large", "there is not enough memory for its pixels")
    if data.endswith(_ZEROS):
        return BadImage(name, "truncated", f"its last {len(data) - len(data.rstrip(bytes(1)))} bytes are all zero")
    if isinstance(error, EOFError) or "truncated" in text.lower() or _cut_short(data):
        return BadImage(name, "truncated", "the file ends before the picture does")
    if isinstance(error, Image.UnidentifiedImageError):
        return BadImage(name, "unreadable", "its content is no image format that is known")
    return BadImage(name, "unreadable", text)


def ends_in_zeros(encoded: bytes) -> bool:
    """Whether a JPEG has zeros in place of its last part, which decode as grey without an error."""
    return encoded.endswith(_ZEROS) and encoded.rfind(b"\xff\xd9") < encoded.rfind(b"\xff\xda")


def whole_chunks(png: bytes) -> bytes:
    """A PNG without the chunk that the end of the file cuts, if there is one, and with an end of its own."""
    end = 8
    while end + 12 <= len(png) and (after := end + 12 + int.from_bytes(png[end : end + 4], "big")) <= len(png):
        end = after
    return png[:end] + b"\0\0\0\0IEND\xaeB`\x82"


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
