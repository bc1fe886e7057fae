"""The promise that every option of a mixer changes the result or raises."""

import typing
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mixwise.errors import UsageError
from mixwise.layers import Grid
from mixwise.mixers import keyword_options
from mixwise.testing.case import Case, gap


def check_options(case: Case, alternatives: Mapping[str, Iterable[Any]]) -> None:
    """Every option changes the result, or what training starts from, or raises; each choice of a `Literal` does."""
    hints = typing.get_type_hints(case.cls.__init__)
    for option, default in keyword_options(case.cls).items():
        chosen = case.options.get(option, default)
        values = list(alternatives.get(option, other_values(hints[option], chosen, case.grid)))
        case.hold(bool(values), f"option {option!r}: pass alternatives={{{option!r}: [...]}} to have it tested")
        every = option in alternatives or typing.get_origin(hints[option]) is typing.Literal
        effects = {value: _effect(case, option, value) for value in values}
        ignored = [value for value, effect in effects.items() if effect == "none"]
        works = not ignored or ("change" in effects.values() and not every)
        case.hold(works, f"option {option!r} has no effect: {chosen!r} and {ignored[:1]} give the same result")


def other_values(hint: Any, default: Any, grid: Grid) -> list[Any]:
    """Values of a type to try instead of the default; none where the type says too little."""
    kinds = typing.get_args(hint) if typing.get_origin(hint) is not typing.Literal else ()
    if typing.get_origin(hint) is typing.Literal:
        found = list(typing.get_args(hint))
    elif type(None) in kinds:
        found = [v for kind in kinds if kind is not type(None) for v in other_values(kind, default, grid)]
        found += [None]
    elif hint is bool:
        found = [False, True]
    elif hint is int:
        found = [1, 2, 3, 4, 6, 0, -1] if default is None else [default + 1, default + 2, 2 * default, 0, -1]
    elif hint is float:
        found = [0.5, 0.1, 0.0, -1.0] if default is None else [2 * default, default + 0.25, 0.0, -1.0]
    elif kinds == (int, int):
        found = [(grid[0], 1), (1, grid[1]), (1, 1), grid]
    elif kinds == (int, ...):
        found = [(1,), (3,), (1, 3), (3, 5)]
    else:
        found = []
    return [value for value in found if value != default]


def _effect(case: Case, option: str, value: Any) -> str:
    """What a value does to the mixer: "change", "refused" or "none"."""
    other = replace(case, options={**case.options, option: value})
    try:
        start = other.fresh().state_dict()
        results = [_results(c) for c in (case, other)]
    except UsageError:
        return "refused"
    except Exception as error:
        raise AssertionError(f"mixer {case.name!r}: {option}={value!r} raises no UsageError but: {error}") from error
    case.hold(bool(results[1][0].isfinite().all()), f"{option}={value!r} gives values that are not finite")
    if any(gap(b, a) > 1e-9 for a, b in zip(*results, strict=True)):
        return "change"
    before = case.fresh().state_dict()
    comparable = start.keys() == before.keys() and all(start[k].shape == t.shape for k, t in before.items())
    return "change" if comparable and any(not torch.equal(start[k], t) for k, t in before.items()) else "none"


def _results(case: Case) -> list[Tensor]:
    """The outputs in evaluation and in training, with equal weights wherever names and shapes are equal."""
    outputs = []
    for training in (False, True):
        module = case.module().train(training)
        torch.manual_seed(0)
        outputs.append(module(case.input(), case.grid).detach())
    return outputs
