"""Other people's checkpoints as ours, and back: recognise, map every key, check, write."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from mixwise.config import ModelConfig, Preprocess, Size, VisionConfig, pair
from mixwise.errors import MixwiseError, UsageError, unknown
from mixwise.files import replacing
from mixwise.model import Model, build
from mixwise.models import list_models, model_config
from mixwise.weights.foreign import read_checkpoint
from mixwise.weights.mapping import FORMATS, Format, Shapes, foreign_shapes, to_foreign, to_native
from mixwise.weights.native import Header, load_file, save, versions
from mixwise.weights.resolve import resolve

WORDS = {"trainable": "trainable weights", "reparameterized": "re-parameterised (deploy) weights"}
"""Each form in words."""


class Conversion(NamedTuple):
    """What was made of a checkpoint."""

    model: Model
    """In evaluation mode."""
    header: Header
    format: str
    notes: tuple[str, ...]
    """What a user should know: which of two sets of weights was taken, which head was made anew."""


def convert_state(form: Format, state: Mapping[str, Tensor], config: ModelConfig) -> Model:
    """A model with the weights of a foreign state, in evaluation mode. Every key must be accounted for.

    Raises `MixwiseError` where the weights are of another form (trainable, re-parameterised) than the config.
    """
    found = form.adapt(config, {name: tuple(tensor.shape) for name, tensor in state.items()}).form
    if found != config.form:
        raise MixwiseError(
            f"these are {WORDS[found]}, and {config.name} was asked for as a model for {WORDS[config.form]}"
        )
    model = form.build(config)
    if all(t.dtype == torch.float64 for t in state.values() if t.is_floating_point()):
        model.double()
    model.load_state_dict(to_native(form.entries(config), state, model.state_dict(), _ignores(form)))
    model.eval()
    return model if model.config.form == config.form else model.reparameterize()


def convert(
    checkpoint: str | Path,
    out: str | Path | None = None,
    *,
    model: str | None = None,
    source: str | None = None,
    image: Size | int | None = None,
    new_head: int | None = None,
    weights: Literal["raw", "ema"] | None = None,
    classes: tuple[str, ...] = (),
) -> Conversion:
    """Read a foreign checkpoint, check it, and write it as a `.safetensors` of ours.

    Args:
        checkpoint: `.safetensors`, `.npz` or PyTorch file.
        out: where to write; None: nowhere.
        model: preset; None: the one whose shapes fit.
        source: name of the format; None: recognised by its keys.
        image: size that the weights are for, where it is not the preset's.
        new_head: make a fresh head for so many classes instead of reading the file's.
        weights: which to take where a file has both; None: those that its authors evaluate.
        classes: names in the order of the outputs; their number must fit.

    Raises `MixwiseError` for a file that is not understood, with the first keys that do not fit; nothing is written.
    """
    path = Path(checkpoint).expanduser()
    if not path.is_file():
        raise MixwiseError(f"no file at {path}")
    file = read_checkpoint(path)
    shapes = {name: tuple(tensor.shape) for name, tensor in file.raw.items()}
    form = recognise(shapes, source, path)
    averaged = weights == "ema" or (weights is None and form.prefer_ema and file.ema is not None)
    if averaged and file.ema is None:
        raise MixwiseError(f"{path} has no averaged weights: leave out weights='ema'")
    state = file.ema if averaged and file.ema is not None else file.raw
    notes = []
    if file.ema is not None:
        notes.append(f"the file has raw and averaged weights; {'averaged' if averaged else 'raw'} were taken")
    config = identify(form, shapes, path, model=model, image=None if image is None else pair(image))
    if config.form == "reparameterized":
        notes.append(f"the file has {WORDS[config.form]}; so has the result, which is not meant to be trained")
    if new_head is not None and config.form == "reparameterized":
        raise UsageError(
            f"new_head makes a model to train, and {path} has {WORDS[config.form]}: take the trainable file"
        )
    notes += form.notes
    if new_head is not None:
        config, state = _without_head(form, config, state), _headless(form, config, state)
        notes.append(f"the head is new and untrained, for {new_head} classes")
    made = convert_state(form, state, config)
    if new_head is not None:
        made = _with_head(made, new_head)
    _try_out(made)
    header = _header(form, made.config, classes, averaged)
    if out is not None:
        save(Path(out), made.state_dict(), header)
    return Conversion(made, header, form.name, tuple(notes))


def convert_back(model: str | Path, out: str | Path, *, to: str) -> list[str]:
    """Write a model file of ours under the keys of a foreign format; the names of the written tensors.

    `to` is a format, or a prefix of formats such as "timm": then the one that can hold the model.
    """
    loaded, header = load_file(resolve(model))
    candidates = [f for name, f in FORMATS.items() if name == to or name.startswith(f"{to}_")]
    if not candidates:
        raise unknown("format", to, FORMATS)
    for form in candidates:
        if _holds(form, header.config):
            state = to_foreign(form.entries(header.config), loaded.state_dict())
            break
    else:
        raise MixwiseError(f"{header.config.name} cannot be written as {to}: that format has no such model")
    from safetensors.torch import save_file

    with replacing(Path(out)) as temporary:
        save_file(state, temporary, metadata={"format": "pt"})
    return list(state)


def recognise(shapes: Shapes, source: str | None, path: Path) -> Format:
    """The format of a checkpoint, by name or by its keys."""
    if source is not None:
        if source not in FORMATS:
            raise unknown("format", source, FORMATS)
        return FORMATS[source]
    for form in FORMATS.values():
        if form.matches(shapes):
            return form
    first = ", ".join(list(shapes)[:4])
    raise MixwiseError(
        f"{path} is none of the known formats ({', '.join(FORMATS)}); it has {len(shapes)} tensors, the first {first}"
    )


def identify(
    form: Format, shapes: Shapes, path: Path, *, model: str | None = None, image: Size | None = None
) -> ModelConfig:
    """The config of the preset whose shapes are those of the file, with the file's classes, channels and options."""
    names = [model] if model else [n for pattern in form.presets for n in list_models(pattern)]
    best: tuple[int, str, list[str]] | None = None
    for name in names:
        config = _fitted(form, model_config(name), shapes, image)
        wrong = differences(form, config, shapes)
        if not wrong:
            return config
        if best is None or len(wrong) < best[0]:
            best = (len(wrong), name, wrong)
    if best is None:
        raise MixwiseError(f"no preset can hold a {form.name} file")
    count, name, wrong = best
    more = f", and {count - 3} more" if count > 3 else ""
    asked = "it does not fit" if model else "it fits no preset; the nearest is"
    raise MixwiseError(f"{path} ({form.name}): {asked} {name}: {'; '.join(wrong[:3])}{more}")


def differences(form: Format, config: ModelConfig, shapes: Shapes) -> list[str]:
    """Where the shapes of a file differ from those that a config's file would have; empty: it fits."""
    try:
        with torch.device("meta"):
            state = form.build(config).state_dict()
    except UsageError as error:
        return [str(error)]
    entries, ignores = form.entries(config), _ignores(form)
    expected = foreign_shapes(entries, state)
    optional = {name for entry in entries if entry.optional for name in entry.foreign}
    wrong = []
    for name, shape in expected.items():
        if name in shapes and shapes[name] != shape:
            wrong.append(f"{name} is {shapes[name]}, not {shape}")
        elif name not in shapes and name not in optional:
            wrong.append(f"{name} is missing")
    return wrong + [f"{name} is not expected" for name in shapes if name not in expected and not ignores(name)]


def _fitted(form: Format, config: ModelConfig, shapes: Shapes, image: Size | None) -> ModelConfig:
    """A preset's config with what the file decides freely: classes, channels, options; and the image size."""
    changes: dict[str, Any] = {} if image is None else {"image": image}
    if changes and not isinstance(config, VisionConfig):
        raise UsageError(f"an image size is for models of images, and {config.name} is none")
    if isinstance(config, VisionConfig):
        with torch.device("meta"):
            state = form.build(config).state_dict()
        for entry in form.entries(config):
            found = [shapes[name] for name in entry.foreign if name in shapes]
            if len(found) != 1 or len(entry.foreign) != 1:
                continue
            ours = state[entry.native]
            if entry.native.startswith("head.") and ours.dim() == 1 and ours.shape[0] == config.classes:
                changes["classes"] = found[0][0]
    config = config.model_copy(update=changes)
    return form.adapt(config, shapes)


def _ignores(form: Format) -> Any:
    patterns = [re.compile(pattern) for pattern in form.ignored]
    return lambda name: any(pattern.fullmatch(name) for pattern in patterns)


def _holds(form: Format, config: ModelConfig) -> bool:
    """Whether a format's table covers exactly the weights of a model, and the preset is one of its own."""
    with torch.device("meta"):
        ours = set(build(config).state_dict())
    try:
        return config.name in {n for p in form.presets for n in list_models(p)} and ours == {
            entry.native for entry in form.entries(config)
        }
    except (AttributeError, KeyError, IndexError):
        return False


def _without_head(form: Format, config: ModelConfig, state: Mapping[str, Tensor]) -> ModelConfig:
    if not isinstance(config, VisionConfig):
        raise UsageError(f"new_head is for image classifiers, and {config.name} is none")
    return config.model_copy(update={"classes": 0})


def _headless(form: Format, config: ModelConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state without the tensors that only a head has."""
    kept = {n for e in form.entries(config) for n in e.foreign}
    whole = {n for e in form.entries(config.model_copy(update={"classes": 1})) for n in e.foreign}
    return {name: tensor for name, tensor in state.items() if name in kept or name not in whole}


def _with_head(model: Model, classes: int) -> Model:
    other = build(model.config.model_copy(update={"classes": classes})).eval()
    other.load_state_dict(model.state_dict(), strict=False)
    return other


def _try_out(model: Model) -> None:
    """One forward pass on noise must give finite numbers."""
    noise = model.example()
    noise = noise.to(next(model.parameters()).dtype) if noise.is_floating_point() else noise
    with torch.inference_mode():
        if not model(noise).isfinite().all():
            raise MixwiseError("the converted model gives infinite or undefined numbers: the weights are damaged")


def _header(form: Format, config: ModelConfig, classes: tuple[str, ...], averaged: bool) -> Header:
    preprocess, names = None, classes
    if isinstance(config, VisionConfig):
        names = classes or tuple(str(i) for i in range(config.classes))
        if len(names) != config.classes:
            raise UsageError(f"the model has {config.classes} outputs and {len(names)} class names were given")
        settings = {"image": config.image, "channels": config.channels} | form.preprocess(config)
        preprocess = Preprocess.parse(settings)
    elif classes:
        raise UsageError(f"class names are for image classifiers, and {config.name} is none")
    return Header(
        task=config.task,
        config=config,
        classes=names,
        preprocess=preprocess,
        weights="ema" if averaged else "raw",
        versions=versions(),
    )
