"""Models of ours under the keys of a foreign format, checked before they are written."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor

from mixwise.config import VisionConfig
from mixwise.errors import MixwiseError, UsageError, unknown
from mixwise.files import check_output, replacing
from mixwise.model import Model
from mixwise.weights.identify import native_state
from mixwise.weights.mapping import FORMATS, Format, foreign_shapes, to_foreign, to_native
from mixwise.weights.native import Header, load_file
from mixwise.weights.resolve import resolve
from mixwise.weights.verify import compare_with_timm, holds, timm_has


class BackConversion(NamedTuple):
    """What was written."""

    format: str
    header: Header
    """Of the model that was read."""
    tensors: tuple[str, ...]
    """Names of the written tensors."""
    checks: tuple[str, ...]
    use: str
    """A line of Python that loads it, where it is for timm."""


def convert_back(model: str | Path, out: str | Path, *, to: str, overwrite: bool = False) -> BackConversion:
    """Write a model file of ours under the keys of a foreign format.

    Args:
        model: run folder or `.safetensors` of ours.
        out: `.safetensors`, `.pth`, `.pt` or `.npz`; the suffix decides the container.
        to: a format, or a prefix of formats such as "timm": then the one that can hold the model.
        overwrite: whether `out` may exist.

    Raises `MixwiseError` where the format has no such model, or timm's computes something else; nothing is written.
    """
    source, target = resolve(model), Path(out).expanduser()
    check_output(target, suffixes=tuple(WRITERS), source=source, overwrite=overwrite)
    candidates = [form for name, form in FORMATS.items() if name == to or name.startswith(f"{to}_")]
    if not candidates:
        raise unknown("format", to, [*FORMATS, "timm"])
    loaded, header = load_file(source)
    form = _chosen(candidates, header, to)
    entries = form.entries(header.config)
    state = to_foreign(entries, loaded.state_dict())
    checks = [_read_back(form, loaded, state)]
    if form.name.startswith("timm_"):
        checks.append(_agrees_with_timm(form, loaded))
    with replacing(target) as temporary:
        try:
            WRITERS[target.suffix.lower()](state, temporary)
        except OSError as error:
            raise MixwiseError(f"cannot write {target}: {error.strerror or error}") from None
    use = _use(loaded, target) if form.name.startswith("timm_") else ""
    return BackConversion(form.name, header, tuple(state), tuple(checks), use)


def _use(model: Model, path: Path) -> str:
    """How timm loads a file, with what differs from its default."""
    config = model.config
    if not isinstance(config, VisionConfig):
        return ""
    known = timm.get_pretrained_cfg(config.name)
    given = {"num_classes": config.classes, "in_chans": config.channels}
    usual = {"num_classes": 1000 if known is None else known.num_classes, "in_chans": 3}
    text = "".join(f", {name}={value}" for name, value in given.items() if value != usual[name])
    if known is not None and known.fixed_input_size and tuple(known.input_size[1:]) != config.image:
        text += f", img_size={config.image}"
    return f"timm.create_model({config.name!r}, checkpoint_path={str(path)!r}{text})"


def _chosen(candidates: list[Format], header: Header, to: str) -> Format:
    """The format that holds a model and means the same by it."""
    config = header.config
    if config.form != "trainable":
        raise UsageError(
            f"{config.name} is re-parameterised, a form that {to} does not have: convert the trainable file"
        )
    for form in candidates:
        if holds(form, config):
            meant = form.adapt(config, foreign_shapes(form.entries(config), native_state(config)))
            if meant != config:
                raise MixwiseError(
                    f"{config.name} has other options than a {form.name} file means: {_apart(config, meant)}"
                )
            return form
    if to == "timm" and isinstance(config, VisionConfig) and not timm_has(config.name):
        raise MixwiseError(
            f"timm has no {config.name}. With `import mixwise.timm`, timm.create_model({config.name!r}, "
            "checkpoint_path=FILE) takes the mixwise file as it is"
        )
    raise MixwiseError(f"{config.name} cannot be written as {to}: that format has no such model")


def _apart(config: object, meant: object) -> str:
    ours, theirs = vars(config), vars(meant)
    name = next(key for key in ours if ours[key] != theirs[key])
    return f"{name} {ours[name]!r} here, {theirs[name]!r} there"


def _read_back(form: Format, model: Model, state: dict[str, Tensor]) -> str:
    ours = model.state_dict()
    again = to_native(form.entries(model.config), state, ours, lambda key: False)
    wrong = [name for name in ours if not torch.equal(again[name], ours[name])]
    if wrong:
        raise MixwiseError(f"read back, {wrong[0]} is not what was written: the key table does not invert")
    return f"read back, every tensor is the model's bit for bit: {len(state)} tensors"


def _agrees_with_timm(form: Format, model: Model) -> str:
    notes: list[str] = []
    said = compare_with_timm(form, model, notes)
    if said is None:
        why = notes[0] if notes else f"timm has no {model.config.name}"
        raise MixwiseError(f"{model.config.name} could not be compared with timm's, so it was not written: {why}")
    return said


def _npz(state: dict[str, Tensor], path: Path) -> None:
    with open(path, "wb") as file:
        np.savez(file, **{name: tensor.numpy() for name, tensor in state.items()})  # type: ignore[arg-type]


WRITERS: dict[str, Callable[[dict[str, Tensor], Path], None]] = {
    ".safetensors": lambda state, path: save_file(state, path, metadata={"format": "pt"}),
    ".pth": lambda state, path: torch.save(state, path),
    ".pt": lambda state, path: torch.save(state, path),
    ".npz": _npz,
}
"""How a container is written, by suffix."""
