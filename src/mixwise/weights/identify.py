"""Whose checkpoint is it, and of which model? From the names and shapes of its tensors alone."""

import functools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from mixwise.config import ModelConfig, Size, VisionConfig
from mixwise.device import shapes_only
from mixwise.errors import MixwiseError, UsageError, unknown
from mixwise.mixers import keyword_options
from mixwise.model import Model, build, parse_config
from mixwise.models import list_models, model_config, presets
from mixwise.weights.mapping import FORMATS, Format, Shapes, foreign_shapes

SIDES = (64, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256, 288, 320, 336, 384, 392, 416, 448, 480, 512, 560)
"""Squares that are tried for the hint about another image size."""
FEW = 12
"""Tensors that another number of classes or channels can change; more differences mean another model."""
NO_EFFECT = {
    *("name", "drop_path", "drop_path_schedule", "drop_path_batch", "drop_path_rescale", "position_dropout", "dropout"),
    *("layer_scale", "init", "stem_init", "class_token_std", "std", "start"),
}
"""Settings, at any depth of a config, of how weights start and of training: no change to what given weights compute."""


def matching(shapes: Shapes, source: str | None, path: Path) -> list[Format]:
    """The formats that a checkpoint may have, by name or by its keys; `MixwiseError` where there is none."""
    if source is not None:
        if source not in FORMATS:
            raise unknown("format", source, FORMATS)
        return [FORMATS[source]]
    found = [form for form in FORMATS.values() if form.matches(shapes)]
    if found:
        return found
    near = _nearest(shapes)
    if near is not None:
        identify(near, shapes, path)  # says what is missing
    first = ", ".join(list(shapes)[:4]) or "none"
    raise MixwiseError(
        f"{path} is none of the known formats ({', '.join(FORMATS)}); it has {len(shapes)} tensors, the first: {first}"
    )


def recognise(shapes: Shapes, source: str | None, path: Path) -> Format:
    """The format of a checkpoint, by name or by its keys: the first of `matching`."""
    return matching(shapes, source, path)[0]


def _nearest(shapes: Shapes) -> Format | None:
    """The format that most of the keys belong to, where the ones that it is recognised by are missing."""
    best, most = None, 0.6 * len(shapes)
    for form in FORMATS.values():
        names = preset_names(form)
        if not names:
            continue
        known = expected_shapes(form, model_config(names[-1]))  # the last of a family tends to be the deepest
        shared = len(shapes.keys() & known.keys())
        if shared > most:
            best, most = form, shared
    return best


def preset_names(form: Format) -> list[str]:
    """The presets that a format may hold, in its order."""
    return list(dict.fromkeys(name for pattern in form.presets for name in list_models(pattern)))


def identify(
    form: Format,
    shapes: Shapes,
    path: Path,
    *,
    model: str | None = None,
    image: Size | None = None,
    notes: list[str] | None = None,
) -> ModelConfig:
    """The config of the preset whose shapes are those of the file, with the file's classes, channels and options.

    Where several presets have these shapes, the name of the file decides. If it does not and they compute different
    things, that is an error, unless the format has a sentence about it; else the first is taken and `notes` says so.
    """
    names = preset_names(form)
    if model is not None:
        model_config(model)  # an unknown name has its own sentence
        if model not in names:
            raise MixwiseError(f"{path} is a {form.name} file, which can hold {', '.join(form.presets)}, not {model}")
        names = [model]
    fitting: list[ModelConfig] = []
    best: tuple[int, ModelConfig, list[str]] | None = None
    for name in names:
        config = _fitted(form, _preset(name, image), shapes)
        wrong = differences(form, config, shapes)
        if not wrong:
            fitting.append(config)
        count = len(wrong) if _possible(config) else len(shapes)
        if wrong and (best is None or count < best[0]):
            best = (count, config, wrong)
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        return _choose(form, fitting, path, notes if notes is not None else [])
    if best is None:
        raise MixwiseError(f"no preset can hold a {form.name} file")
    _, config, wrong = best
    more = f", and {len(wrong) - 3} more" if len(wrong) > 3 else ""
    asked = "it does not fit" if model else "it fits no preset; the nearest is"
    hint = "" if image is not None else _size_hint(form, config, shapes)
    raise MixwiseError(f"{path} ({form.name}): {asked} {config.name}: {'; '.join(wrong[:3])}{more}{hint}")


def _choose(form: Format, fitting: list[ModelConfig], path: Path, notes: list[str]) -> ModelConfig:
    """One of several presets with the same shapes."""
    all_names = ", ".join(config.name for config in fitting)
    named = [c for c in fitting if re.search(rf"(^|[^a-z0-9]){re.escape(c.name)}([^a-z0-9]|$)", path.name.lower())]
    if named:
        chosen = max(named, key=lambda config: len(config.name))
        notes.append(f"the shapes fit {all_names} alike; the file's name says {chosen.name}")
        return chosen
    caution = form.caution(fitting[0])
    computed = [_computed(config.model_dump(mode="json")) for config in fitting]
    if any(other != computed[0] for other in computed) and caution is None and not form.notes:
        raise MixwiseError(
            f"{path} ({form.name}): its shapes fit {all_names} alike, which compute different things: "
            f"say which it is with --model"
        )
    apart = any(form.preprocess(config) != form.preprocess(fitting[0]) for config in fitting)
    detail = ", which want differently normalised images" if apart else ""
    notes.append(caution or f"the shapes fit {all_names} alike{detail}; the first was taken, --model names another")
    return fitting[0]


def _computed(dump: Any) -> Any:
    """A config's plain data without what has no effect on the output."""
    if isinstance(dump, dict):
        return {key: _computed(value) for key, value in dump.items() if key not in NO_EFFECT}
    return [_computed(value) for value in dump] if isinstance(dump, list) else dump


def differences(form: Format, config: ModelConfig, shapes: Shapes) -> list[str]:
    """Where the shapes of a file differ from those that a config's file would have; empty: it fits."""
    try:
        expected, ignores = expected_shapes(form, config), ignored(form)
    except UsageError as error:  # a size that the model cannot have
        return [str(error)]
    optional = {name for entry in form.entries(config) if entry.optional for name in entry.foreign}
    wrong = []
    for name, shape in expected.items():
        if name in shapes and shapes[name] != shape:
            wrong.append(f"{name} is {shapes[name]}, not {shape}")
        elif name not in shapes and name not in optional:
            wrong.append(f"{name} is missing")
    return wrong + [f"{name} is not expected" for name in shapes if name not in expected and not ignores(name)]


def expected_shapes(form: Format, config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors in a file of a format for a model."""
    return foreign_shapes(form.entries(config), native_state(config, form.build))


def native_state(config: ModelConfig, build: Callable[[Any], Model] = build) -> dict[str, Tensor]:
    """The state of a model on the meta device: names and shapes without memory."""
    return _native_state(config.to_json(), build)


@functools.lru_cache(maxsize=256)
def _native_state(config: str, build: Callable[[Any], Model]) -> dict[str, Tensor]:
    with shapes_only():
        return build(parse_config(json.loads(config))).state_dict()


def ignored(form: Format) -> Callable[[str], bool]:
    """Whether a foreign key does not enter the output."""
    patterns = [re.compile(pattern) for pattern in form.ignored]
    return lambda name: any(pattern.fullmatch(name) for pattern in patterns)


def _preset(name: str, image: Size | None) -> ModelConfig:
    """A preset, for images of another size if given."""
    config = model_config(name)
    if image is None:
        return config
    if not isinstance(config, VisionConfig):
        raise UsageError(f"an image size is for models of images, and {config.name} is none")
    return model_config(name, image=image)


def _fitted(form: Format, config: ModelConfig, shapes: Shapes) -> ModelConfig:
    """A preset's config with what the file decides freely: classes, channels, options."""
    if isinstance(config, VisionConfig):
        config = form.adapt(config, shapes)
        if not _possible(config) or len(differences(form, config, shapes)) > FEW:
            return config  # another depth or width: no number of classes would help
        for field in ("classes", "channels"):
            number = _solve(form, cast(VisionConfig, config), shapes, field)
            if number is not None:
                config = config.model_copy(update={field: number})
    return form.adapt(config, shapes)


def _possible(config: ModelConfig) -> bool:
    """Whether there is such a model, whose patches divide the image."""
    try:
        native_state(config)
    except UsageError:
        return False
    return True


def _solve(form: Format, config: VisionConfig, shapes: Shapes, field: str) -> int | None:
    """The number of classes or channels that a file has, read off the axes that grow with it; None: it does not say.

    A file without any of the tensors that grow with the classes has no head: 0.
    """
    base = config if getattr(config, field) else config.model_copy(update={field: 1})
    here = expected_shapes(form, base)
    if base is config and all(shapes.get(name) == shape for name, shape in here.items()):
        return None
    there = expected_shapes(form, base.model_copy(update={field: getattr(base, field) + 1}))
    growing = [name for name, shape in here.items() if there.get(name, shape) != shape]
    for name in growing:
        shape, other, found = here[name], there[name], shapes.get(name, ())
        axes = [axis for axis in range(len(shape)) if shape[axis] != other[axis]]
        if len(axes) == 1 and len(found) == len(shape):
            step, extra = other[axes[0]] - shape[axes[0]], found[axes[0]] - shape[axes[0]]
            number = getattr(base, field) + extra // step
            if extra % step == 0 and number > 0:
                return number
    return 0 if field == "classes" and growing and not any(name in shapes for name in growing) else None


def _size_hint(form: Format, config: ModelConfig, shapes: Shapes) -> str:
    """Where the file fits the config at another, square image size: which."""
    if not isinstance(config, VisionConfig):
        return ""
    sized = "image" in keyword_options(presets()[config.name])
    for side in SIDES:
        image = {"image": (side, side)}
        resized: ModelConfig = config.model_copy(update=image)
        preset = model_config(config.name, **image) if sized else resized
        if sized and preset != model_config(config.name).model_copy(update=image):
            resized = _fitted(form, preset, shapes)  # its patch goes with the image size
        if not differences(form, resized, shapes):
            return f". The shapes are those for {side}×{side} pixels, or as many tokens: --image-size {side}"
    return ""
