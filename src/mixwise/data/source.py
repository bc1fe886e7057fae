"""Pictures that are no files of their own: how they are reached one at a time, in any process."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from PIL import Image


class Stored(ABC):
    """A picture inside something larger; small, picklable, and named by its `str`."""

    @abstractmethod
    def read(self) -> bytes | np.ndarray | Image.Image:
        """An encoded file, an array as `decode` takes it, or a Pillow image. May raise whatever the reading raises."""


@dataclass(frozen=True, slots=True)
class Slice(Stored):
    """Bytes `start` to `start + size` of a file, such as a member of a tar."""

    file: str
    start: int
    size: int
    name: str

    def read(self) -> bytes:
        with open(self.file, "rb") as file:
            file.seek(self.start)
            return file.read(self.size)

    def __str__(self) -> str:
        return f"{self.file}/{self.name}"


@dataclass(frozen=True, slots=True, eq=False)
class Encoded(Stored):
    """An encoded file that lies between two places of a byte array in memory."""

    data: np.ndarray
    start: int
    stop: int
    name: str

    def read(self) -> bytes:
        return self.data[self.start : self.stop].tobytes()

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, eq=False)
class Named(Stored):
    """A picture in memory, with a name to print."""

    picture: np.ndarray
    name: str

    def read(self) -> np.ndarray:
        return self.picture

    def __str__(self) -> str:
        return self.name
