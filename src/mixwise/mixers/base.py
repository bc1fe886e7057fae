"""The token mixer: what the papers argue about, and so what you plug in."""

import inspect
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from torch import Tensor

from mixwise.errors import UsageError, unknown
from mixwise.layers import Grid, Mixing

ResizeMethod = Literal["auto", "smooth", "expand"]
"""How weights go to another grid; see `Mixer.resize`."""


class Mixer(Mixing):
    """Moves information between tokens: (b, n, c) → (b, n, c).

    A subclass names its own options as keyword-only arguments; there is no `**kwargs`, so a wrong option is an
    error that lists the right ones. The traits below are claims, and `mixwise.testing.check_mixer` verifies them.
    An option that changes a trait sets it on the instance.

    Args:
        dim: channels c.
        tokens: tokens n, prefix tokens included; None where the number may change from call to call.
        grid: (h, w) of the tokens without the prefix; None for a mixer that is built for any grid.
    """

    fixed_grid: bool = False
    """The weights depend on the number of tokens: another image size needs other weights."""
    equivariant: bool = False
    """Blind to order (permuting the tokens permutes the output): the model must add positions."""
    shift_blind: bool = False
    """Adding one vector to every token adds one vector to every output token: the norm in front needs no shift."""
    scale_blind: bool = False
    """A positive factor on each channel changes nothing, up to an eps: the norm in front needs no scale."""

    def __init__(self, dim: int, tokens: int | None = None, grid: Grid | None = None) -> None:
        super().__init__()
        self.dim = dim
        if self.fixed_grid and tokens is None:
            raise UsageError(f"{type(self).__name__} has weights for a fixed number of tokens: pass tokens=n")

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        raise NotImplementedError

    def matrices(self) -> list[Tensor]:
        """What a model's `init` draws, one by one; `UsageError` for a mixer that starts in a special way."""
        if any(p.dim() > 1 for p in self.parameters()):
            raise UsageError(f"{type(self).__name__} starts in its own way: leave the model's init at 'own'")
        return []

    def resize(self, old: Grid, new: Grid, *, prefix: int = 0, method: ResizeMethod = "auto") -> dict[str, Any]:
        """Carry the weights to tokens on another grid, in place.

        Args:
            old, new: grids (h, w), different.
            prefix: class tokens in front, which keep their weights.
            method: "smooth" interpolates, to any grid; "expand" lets the weights work on each sub-image of the old
                size, on multiples of the old grid, and raises `UsageError` where that has no meaning; "auto" is the
                mixer's own choice, stated in its docstring.

        Returns: the options that the mixer must now be built with, where they differ.
        """
        if self.fixed_grid:
            raise UsageError(f"{type(self).__name__} has weights for {old} tokens and no rule for {new}")
        return {}


def positive(option: str, value: float | None) -> None:
    """Raise `UsageError` for a size that is zero or less; None passes."""
    if value is not None and value <= 0:
        raise UsageError(f"{option} must be positive, got {value}")


MIXERS: dict[str, type[Mixer]] = {}
"""Every token mixer by name."""

M = TypeVar("M", bound=type[Mixer])


def register(name: str) -> Callable[[M], M]:
    """Class decorator: make a mixer known by `name` to models, training, the command line and the tests."""

    def add(cls: M) -> M:
        if name in MIXERS:
            raise UsageError(f"a mixer named {name!r} exists already ({MIXERS[name].__qualname__})")
        MIXERS[name] = cls
        return cls

    return add


def mixer_class(name: str) -> type[Mixer]:
    """The class registered as `name`."""
    if name not in MIXERS:
        raise unknown("mixer", name, MIXERS)
    return MIXERS[name]


def keyword_options(cls: Callable[..., Any]) -> dict[str, Any]:
    """The keyword-only options of a class or function with their defaults, in order of declaration."""
    return {
        name: parameter.default
        for name, parameter in inspect.signature(cls).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
