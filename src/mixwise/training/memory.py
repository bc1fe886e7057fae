"""What to do when memory runs out: fewer pictures at a time, the same pictures a step."""

import gc
import math
from collections.abc import Callable

import torch
from torch import Tensor

from mixwise.errors import MixwiseError


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether an error says that memory ran out, on any device; only GPUs have a class of their own for it."""
    text = str(error)
    cpu = "DefaultCPUAllocator" in text or "MPS backend out of memory" in text
    return isinstance(error, torch.OutOfMemoryError) or cpu


class Portion:
    """The largest number of pictures that pass through the model at once.

    Args:
        what: "training", "validation" or "evaluation", for the message.
        say: prints a sentence.
    """

    def __init__(self, what: str, say: Callable[[str], None]) -> None:
        self.what = what
        self.say = say
        self.limit = 0
        """0: as many as there are."""

    def parts(self, images: int) -> int:
        """Into how many parts so many pictures are divided."""
        return max(1, math.ceil(images / self.limit)) if self.limit else 1

    def halve(self, images: int) -> None:
        """Half as many at once from now on. Raises `MixwiseError` where two pictures at a time are too many."""
        now = math.ceil(images / self.parts(images))
        if now < 4:
            raise MixwiseError(
                f"out of memory in {self.what} with {now} pictures at a time: take a smaller model or smaller pictures "
                "(--model, --image-size)"
            )
        self.limit = now // 2
        parts = self.parts(images)
        self.say(
            f"out of memory in {self.what} with {now} pictures at a time: from now on {parts} × {self.limit}, "
            "and the step starts again; the effective batch stays"
        )

    def through(self, model: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
        """What the model says to all images (b, …), in as many parts as memory asks for."""
        while True:
            try:
                return torch.cat([model(part) for part in images.tensor_split(self.parts(len(images)))])
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
            self.halve(len(images))
            self.free()

    @staticmethod
    def free() -> None:
        """Give back what the failed pass still holds."""
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
