"""Tables between the keys of a foreign checkpoint and ours, readable in both directions."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mixwise.config import ModelConfig
from mixwise.errors import MixwiseError
from mixwise.model import Model, build


class Entry(NamedTuple):
    """One tensor of ours and the foreign tensors that it is made of."""

    native: str
    foreign: tuple[str, ...]
    read: Callable[..., Tensor]
    """Foreign tensors, in order → our tensor."""
    write: Callable[[Tensor], tuple[Tensor, ...]]
    """Our tensor → the foreign tensors."""
    optional: bool = False
    """The foreign file may lack it; then a fresh model's own value stays."""


def same(native: str, foreign: str) -> Entry:
    """The same tensor under another name."""
    return Entry(native, (foreign,), lambda x: x, lambda x: (x,))


def module(native: str, foreign: str, *, bias: bool = True) -> list[Entry]:
    """Weight and bias of a layer."""
    return [same(f"{native}.{name}", f"{foreign}.{name}") for name in ("weight", "bias")[: 1 + bias]]


def batch_norm(native: str, foreign: str) -> list[Entry]:
    """Weight, bias and statistics of a batch norm; files from before torch 0.4.1 have no counter."""
    names = ("weight", "bias", "running_mean", "running_var")
    counter = same(f"{native}.num_batches_tracked", f"{foreign}.num_batches_tracked")
    return [same(f"{native}.{n}", f"{foreign}.{n}") for n in names] + [counter._replace(optional=True)]


def shaped(native: str, foreign: str, ours: Iterable[int], theirs: Iterable[int]) -> Entry:
    """The same numbers in another shape; -1 once in each as in `torch.reshape`."""
    ours, theirs = tuple(ours), tuple(theirs)
    return Entry(native, (foreign,), lambda x: x.reshape(ours), lambda x: (x.reshape(theirs),))


def squeezed(native: str, foreign: str, axes: int) -> Entry:
    """Their tensor has `axes` extra axes of size 1 at the end: a 1 × 1 convolution that is a linear layer here."""
    return Entry(
        native,
        (foreign,),
        lambda x: x.reshape(x.shape[: x.dim() - axes]),
        lambda x: (x.reshape(*x.shape, *[1] * axes),),
    )


def transposed(native: str, foreign: str) -> Entry:
    """A matrix stored input-first, as in Flax."""
    return Entry(native, (foreign,), lambda x: x.t(), lambda x: (x.t(),))


def hwio(native: str, foreign: str) -> Entry:
    """A convolution kernel stored (rows, columns, in, out), as in Flax."""
    return Entry(native, (foreign,), lambda x: x.permute(3, 2, 0, 1), lambda x: (x.permute(2, 3, 1, 0),))


def stacked(native: str, foreign: Iterable[str]) -> Entry:
    """Our tensor is theirs one below the other, of equal heights."""
    names = tuple(foreign)
    return Entry(native, names, lambda *x: torch.cat(x), lambda x: x.chunk(len(names)))


Shapes = Mapping[str, tuple[int, ...]]
"""The shape of every tensor of a checkpoint."""


@dataclass(frozen=True)
class Format:
    """A kind of foreign checkpoint: how it is recognised, which presets it can hold, and how its keys map."""

    name: str
    about: str
    """Whose files these are."""
    presets: tuple[str, ...]
    """Shell patterns of the presets that such a file may hold, likely ones first."""
    matches: Callable[[Shapes], bool]
    """Whether the keys look like this format."""
    entries: Callable[[Any], list[Entry]]
    """The table for a model's config."""
    preprocess: Callable[[ModelConfig], dict[str, Any]]
    """mean, std, crop_pct, filter, fit that the weights were trained or published with."""
    ignored: tuple[str, ...] = ()
    """Regular expressions of foreign keys that do not enter the output, with the reason in the module's docstring."""
    prefer_ema: bool = False
    """Whether the authors evaluate the averaged weights of such a file."""
    tidy: Callable[[Mapping[str, Tensor]], dict[str, Tensor]] = field(default=dict)
    """A file's tensors under the names of the table, where releases spell them differently."""
    adapt: Callable[[ModelConfig, Shapes], ModelConfig] = field(default=lambda config, shapes: config)
    """The config for a file whose options show in its keys, such as a hidden head layer or its form."""
    build: Callable[[Any], Model] = build
    """The model that the table is about. Of a re-parameterised config it may be one of which only a part is folded, as
    deploy files have it; it is re-parameterised after loading."""
    notes: tuple[str, ...] = ()
    """What no file of the format says and its user must know."""
    caution: Callable[[ModelConfig], str | None] = field(default=lambda config: None)
    """What to tell a user who did not name the model: that the file might as well be another preset's."""


FORMATS: dict[str, Format] = {}
"""Every foreign format by name."""


def register_format(form: Format) -> None:
    """Make a format known to `convert`."""
    if form.name in FORMATS:
        raise MixwiseError(f"a format named {form.name!r} exists already")
    FORMATS[form.name] = form


def to_native(
    entries: list[Entry], state: Mapping[str, Tensor], expected: Mapping[str, Tensor], ignored: Callable[[str], bool]
) -> dict[str, Tensor]:
    """A foreign state as ours: every foreign key is used or `ignored`, every key of `expected` comes out in its shape.

    Raises `MixwiseError` that lists what is missing, left over or of another shape.
    """
    problems: list[str] = []
    found: dict[str, Tensor] = {}
    used: set[str] = set()
    for entry in entries:
        used.update(entry.foreign)
        missing = [name for name in entry.foreign if name not in state]
        if missing and entry.optional:
            found[entry.native] = expected[entry.native].detach().clone()
        elif missing:
            problems += [f"{name} is missing" for name in missing]
        else:
            try:
                found[entry.native] = entry.read(*(state[name] for name in entry.foreign)).contiguous()
            except RuntimeError:
                shapes = ", ".join(str(tuple(state[name].shape)) for name in entry.foreign)
                problems.append(f"{' + '.join(entry.foreign)} has an unusable shape {shapes}")
    problems += [f"{name} is not expected" for name in state if name not in used and not ignored(name)]
    sources = {entry.native: " + ".join(entry.foreign) for entry in entries}
    for name, tensor in found.items():
        if name not in expected:
            continue
        theirs = sources[name]
        if tensor.shape != expected[name].shape:
            problems.append(f"{theirs} gives {tuple(tensor.shape)}, expected {tuple(expected[name].shape)}")
        elif tensor.is_floating_point() != expected[name].is_floating_point():
            problems.append(f"{theirs} holds {tensor.dtype}, expected {expected[name].dtype}")
    lost = set(expected) - {entry.native for entry in entries}
    extra = {entry.native for entry in entries} - set(expected)
    if lost or extra:
        raise MixwiseError(f"the table does not cover the model: lacks {sorted(lost)[:3]}, has {sorted(extra)[:3]}")
    if problems:
        more = f", and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise MixwiseError("; ".join(problems[:5]) + more)
    return {name: found[name] for name in expected}


def to_foreign(entries: list[Entry], state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our state under the foreign keys; the inverse of `to_native`."""
    found: dict[str, Tensor] = {}
    for entry in entries:
        found.update(zip(entry.foreign, entry.write(state[entry.native]), strict=True))
    return {name: tensor.contiguous() for name, tensor in found.items()}


def foreign_shapes(entries: list[Entry], state: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """The shapes that a foreign file for such a state has; `state` may be on the meta device."""
    return {name: tuple(tensor.shape) for name, tensor in to_foreign(entries, state).items()}
