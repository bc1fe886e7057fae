"""Numbers that are not finite: found at the step where they first appear, without waiting for the device each time."""

import torch
from torch import Tensor

from mixwise.errors import MixwiseError

KINDS = ("pictures", "loss", "gradient")
"""What is looked at, in the order in which one follows from the other."""

NEVER = 2**62


class DivergenceError(MixwiseError):
    """A training that met numbers which are not finite; the message names the step and the likely cause."""


class Alarm:
    """Remembers on the device at which step pictures, loss or gradient were first not finite.

    Args:
        every: steps between two looks at it; a look waits for the device.
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self.first: Tensor | None = None

    def note(self, step: int, kind: str, *values: Tensor) -> None:
        """Remember `step` for `kind` if any of `values` is not finite and no step was remembered before."""
        finite = torch.stack([value.detach().isfinite().all() for value in values]).all()
        if self.first is None:
            self.first = torch.full((len(KINDS),), NEVER, dtype=torch.int64, device=finite.device)
        at = KINDS.index(kind)
        self.first[at] = torch.where(finite, self.first[at], self.first[at].clamp(max=step))

    def found(self, step: int, *, now: bool = False) -> tuple[int, str] | None:
        """(step, kind) of what came first; looked at every so many steps, or `now`."""
        if self.first is None or not (now or step % self.every == 0):
            return None
        steps = self.first.tolist()
        first = min(steps)
        return None if first == NEVER else (first, KINDS[steps.index(first)])


def advice(kind: str, *, lr: float, fp16: bool, names: list[str]) -> str:
    """The likely cause, and what to do about it.

    Args:
        lr: the setting recipe.optimizer.lr.
        fp16: whether the run computes in float16.
        names: of pictures that may hold such numbers; empty: unknown.
    """
    if kind == "pictures":
        which = ", ".join(names[:5]) if names else "`mixwise check` finds them"
        return f"Remove or repair these pictures: {which}"
    lower = f"a lower learning rate (--lr {lr / 3:.2g})"
    return f"Try {lower}" + (", or --set precision=bf16 or fp32: float16 overflows easily" if fp16 else "")
