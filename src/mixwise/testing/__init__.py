"""The contract of a token mixer as a test that anybody can run on their own: `check_mixer("mine")`.

Every promise is one function in `promises` or `options`. A broken one raises `AssertionError` with a sentence.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from mixwise.mixers import Mixer, mixer_class
from mixwise.testing.case import Case, randomize
from mixwise.testing.options import check_options
from mixwise.testing.promises import PROMISES

__all__ = ["check_mixer", "randomize"]


def check_mixer(
    mixer: str | type[Mixer],
    options: Mapping[str, Any] | None = None,
    *,
    dim: int = 12,
    grid: tuple[int, int] = (3, 5),
    alternatives: Mapping[str, Iterable[Any]] | None = None,
) -> None:
    """Try everything that a token mixer promises, in float64 where a promise is exact.

    Signature, docstring and its example · shapes · the traits, both ways · batch · gradients · state dict · bf16 ·
    compile · export with a dynamic batch · `reparameterize` · mask · every option changes the result or raises.

    Args:
        mixer: a registered name or the class.
        options: what to build it with; the traits are checked for these.
        dim: channels to test with; choose one that the options divide.
        grid: rows and columns, best odd and unequal.
        alternatives: values to try for an option, where its annotation does not tell: `bool`, `int`, `float`,
            `Literal[...]`, tuples of int and their unions with None need none.

    Raises `AssertionError` for the first promise that is broken.

    >>> check_mixer("pool")
    """
    cls = mixer_class(mixer) if isinstance(mixer, str) else mixer
    name = mixer if isinstance(mixer, str) else cls.__name__
    with torch.random.fork_rng(devices=[]):
        case = Case(name, cls, dim, tuple(grid), dict(options or {}))
        for check in PROMISES:
            check(case)
        check_options(case, alternatives or {})
