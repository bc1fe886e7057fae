"""Other people's checkpoints as ours: recognise, map every key, check, write. The way back is in `back.py`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from safetensors import SafetensorError
from torch import Tensor

from mixwise.config import ModelConfig, Preprocess, Size, VisionConfig, pair
from mixwise.errors import MixwiseError, UsageError
from mixwise.files import check_output
from mixwise.model import Model, build
from mixwise.weights.foreign import Checkpoint, read_checkpoint
from mixwise.weights.identify import expected_shapes, identify, ignored, matching
from mixwise.weights.identify import recognise as recognise
from mixwise.weights.mapping import Format, to_native
from mixwise.weights.names import default_names
from mixwise.weights.native import Header, is_native, save, versions
from mixwise.weights.published import beside, preprocessing_of, published, split_tag
from mixwise.weights.verify import check_numbers, compare_with_timm, finite, round_trip


class Conversion(NamedTuple):
    """What was made of a checkpoint."""

    model: Model
    """In evaluation mode."""
    header: Header
    format: str
    notes: tuple[str, ...]
    """What a user should know: which of two sets of weights was taken, which head was made anew."""
    checks: tuple[str, ...] = ()
    """What was found to be right, a sentence each."""


WORDS = {"trainable": "trainable weights", "reparameterized": "re-parameterised (deploy) weights"}
"""Each form in words."""


def load_state(form: Format, state: Mapping[str, Tensor], config: ModelConfig) -> Model:
    """The model that a format's table is about, with the weights of a foreign state, in evaluation mode.

    Raises `MixwiseError` where a key is not accounted for, or the weights are of another form than the config.
    """
    found = form.adapt(config, _shapes(state)).form
    if found != config.form:
        raise MixwiseError(f"these are {WORDS[found]}, and the config of {config.name} is for {WORDS[config.form]}")
    model = form.build(config)
    if all(t.dtype == torch.float64 for t in state.values() if t.is_floating_point()):
        model.double()
    model.load_state_dict(to_native(form.entries(config), state, model.state_dict(), ignored(form)))
    return model.eval()


def convert_state(form: Format, state: Mapping[str, Tensor], config: ModelConfig) -> Model:
    """As `load_state`, and of a re-parameterised file what it left to fold is folded."""
    return _folded(load_state(form, state, config), config)


def _folded(model: Model, config: ModelConfig) -> Model:
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
    overwrite: bool = False,
    compare: bool = True,
) -> Conversion:
    """Read a foreign checkpoint, check it, and write it as a `.safetensors` of ours.

    The weights become float32: exact for float16 and bfloat16, rounded for float64, which `notes` says.

    Args:
        checkpoint: `.safetensors`, `.npz` or PyTorch file.
        out: where to write; None: nowhere.
        model: preset; with the tag of public weights behind a dot, their preprocessing is stored. None: the preset
            whose shapes fit.
        source: name of the format; None: recognised by its keys.
        image: size that the weights are for; None: what is published with them (by the tag, or timm's `config.json`
            beside the file), else the preset's.
        new_head: make a fresh head for so many classes instead of reading the file's.
        weights: which to take where a file has both; None: those that its authors evaluate.
        classes: names in the order of the outputs; their number must fit. None given: ImageNet's, or numbers.
        overwrite: whether `out` may exist.
        compare: whether to compare the outputs with those of timm's model of the same name, where there is one.

    Raises `MixwiseError` for a file that is not understood, with the first keys that do not fit; nothing is written.
    """
    path = Path(checkpoint).expanduser()
    target = None if out is None else Path(out).expanduser()
    if target is not None:
        check_output(target, suffixes=(".safetensors",), source=path, overwrite=overwrite)
    if path.is_file() and is_native(path):
        raise MixwiseError(f"{path} is a mixwise file already; --to timm writes it for timm")
    notes: list[str] = []
    file = read_checkpoint(path)
    name, tag = (None, "") if model is None else split_tag(model)
    found = beside(path)
    if found is not None and name not in (None, found.model):
        found = None
    if found is not None and name is None:
        name = found.model
    if image is None and name is not None and tag:
        image = published(name, tag).image
    elif image is None and found is not None:
        image = found.image
    try:
        form, config, averaged = _recognise(file, source, path, model=name, image=image, weights=weights, notes=notes)
    except MixwiseError as error:
        if found is None or model is not None:
            raise
        raise MixwiseError(f"{error} (the model that {found.path} names)") from None
    state = _float32(form.tidy(_chosen(file, averaged)), notes)
    if config.form == "reparameterized":
        notes.append(f"the file has {WORDS[config.form]}; so has the result, which is not meant to be trained")
    if new_head is not None:
        if config.form == "reparameterized":
            raise UsageError(
                f"new_head makes a model to train, and {path} has {WORDS[config.form]}: take the trainable file"
            )
        config, state = _without_head(form, config, state)
    check_numbers(state)
    made = load_state(form, state, config)
    checks = [f"every key accounted for: {len(state)} tensors", round_trip(form.entries(config), made, state)]
    made = _folded(made, config)
    checks.append(finite(made))
    if compare and (same := compare_with_timm(form, made, notes)):
        checks.append(same)
    if new_head is not None:
        notes.append(f"the head is new and untrained, for {new_head} classes")
        made = with_head(made, new_head)
    settings = preprocessing_of(config.name, tag)
    if found is not None and not tag:
        settings = found.preprocess
        notes.append(f"preprocessing as {found.path.name} beside the file says")
    header = _header(form, made.config, classes, settings, notes)
    origin = f"{path.name} ({form.name}{f', {config.name}.{tag}' if tag else ''})"
    header = header.model_copy(update={"weights": "ema" if averaged else "raw", "origin": origin})
    if target is not None:
        write(target, made.state_dict(), header)
    return Conversion(made, header, form.name, tuple(notes), tuple(checks))


def write(path: Path, state: Mapping[str, Tensor], header: Header) -> None:
    """As `native.save`, with one sentence where the place cannot be written."""
    try:
        save(path, state, header)
    except (OSError, SafetensorError) as error:
        raise MixwiseError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}") from None


def _recognise(
    file: Checkpoint,
    source: str | None,
    path: Path,
    *,
    model: str | None,
    image: Size | int | None,
    weights: Literal["raw", "ema"] | None,
    notes: list[str],
) -> tuple[Format, ModelConfig, bool]:
    """The format, the config, and whether the averaged weights are taken. The first format wins that has a preset."""
    if weights == "ema" and file.ema is None:
        raise MixwiseError(f"{path} has no averaged weights: leave out --weights ema")
    if weights == "raw" and file.ema is file.raw:
        raise MixwiseError(f"{path} has only averaged weights: leave out --weights raw")
    forms = matching(_shapes(file.raw), source, path)
    failure: MixwiseError | None = None
    for form in forms:
        averaged = weights == "ema" or (weights is None and form.prefer_ema and file.ema is not None)
        shapes = _shapes(form.tidy(_chosen(file, averaged)))
        said: list[str] = []
        try:
            size = None if image is None else pair(image)
            config = identify(form, shapes, path, model=model, image=size, notes=said)
        except MixwiseError as error:
            failure = failure or error
            continue
        if file.ema is not None and file.ema is not file.raw:
            said.append(f"the file has raw and averaged weights; the {'averaged' if averaged else 'raw'} were taken")
        notes += [*form.notes, *said]
        return form, config, averaged or file.ema is file.raw
    assert failure is not None
    raise failure


def _shapes(state: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in state.items()}


def _chosen(file: Checkpoint, averaged: bool) -> dict[str, Tensor]:
    return file.ema if averaged and file.ema is not None else file.raw


def _float32(state: Mapping[str, Tensor], notes: list[str]) -> dict[str, Tensor]:
    """Every number with a fraction as float32, which holds float16 and bfloat16 exactly."""
    kinds = sorted({str(t.dtype).removeprefix("torch.") for t in state.values() if t.is_floating_point()} - {"float32"})
    if kinds:
        how = "rounded to" if "float64" in kinds else "kept exactly, as"
        notes.append(f"the file holds {', '.join(kinds)}; the numbers are {how} float32")
    return {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in state.items()}


def _without_head(
    form: Format, config: ModelConfig, state: Mapping[str, Tensor]
) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Config and state without what only a head has."""
    if not isinstance(config, VisionConfig):
        raise UsageError(f"new_head is for image classifiers, and {config.name} is none")
    bare = config.model_copy(update={"classes": 0})
    head = expected_shapes(form, config.model_copy(update={"classes": 1})).keys() - expected_shapes(form, bare).keys()
    return bare, {name: tensor for name, tensor in state.items() if name not in head}


def with_head(model: Model, classes: int) -> Model:
    """The model with a fresh head for so many classes, the same each time; in evaluation mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        other = build(model.config.model_copy(update={"classes": classes})).eval()
    other.load_state_dict(model.state_dict(), strict=False)
    return other


def _header(
    form: Format, config: ModelConfig, classes: tuple[str, ...], settings: dict[str, Any] | None, notes: list[str]
) -> Header:
    if not isinstance(config, VisionConfig):
        if classes:
            raise UsageError(f"class names are for image classifiers, and {config.name} is none")
        return Header(task=config.task, config=config, versions=versions())
    names = classes
    if classes and len(classes) != config.classes:
        raise UsageError(f"the model has {config.classes} outputs and {len(classes)} class names were given")
    if not classes:
        names, said = default_names(config.classes)
        notes.append(said)
    return Header(
        task=config.task,
        config=config,
        classes=names,
        preprocess=_preprocess(settings or form.preprocess(config), config, notes),
        versions=versions(),
    )


def _preprocess(settings: dict[str, Any], config: VisionConfig, notes: list[str]) -> Preprocess | None:
    """The stored preprocessing; published means and deviations are for RGB."""
    if config.channels == 1 and len(settings["mean"]) == 3:
        settings = settings | {key: (sum(settings[key]) / 3,) for key in ("mean", "std")}
        notes.append("mean and deviation of the grey images are the average of those published for RGB")
    if config.channels not in (1, 3):
        notes.append(f"no preprocessing is stored: none is published for {config.channels} channels")
        return None
    return Preprocess.parse({"image": config.image, "channels": config.channels} | settings)
