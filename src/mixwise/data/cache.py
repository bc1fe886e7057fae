"""Pictures that were prepared once and are needed every epoch."""

from typing import Any

import torch.utils.data
from PIL import Image


class PictureCache:
    """Prepared pictures in memory up to a limit in MB. What came first stays: in random order nothing beats that.

    Each worker process has its own, which starts empty; it divides the limit by the number of workers.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.pictures: dict[int, Image.Image] = {}
        self.used = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return PictureCache, (self.limit,)

    def put(self, index: int, picture: Image.Image) -> None:
        info = torch.utils.data.get_worker_info()
        share = self.limit / (info.num_workers if info else 1)
        size = picture.width * picture.height * (1 if picture.mode == "L" else 4) + 1000  # Pillow's own layout
        if self.used + size <= share * 1e6:
            self.pictures[index] = picture
            self.used += size
