"""Models that start from weights: public ones by name, files of ours or of others by path."""

from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlparse

import torch

from mixwise.config import ModelConfig, VisionConfig, pair
from mixwise.device import shapes_only
from mixwise.errors import MixwiseError, UsageError
from mixwise.model import Model, build
from mixwise.models import create_model as create_fresh
from mixwise.models import list_models, model_config
from mixwise.weights.convert import convert
from mixwise.weights.identify import native_state
from mixwise.weights.native import Header, is_native, load_file
from mixwise.weights.published import Published, published, split_tag, tags
from mixwise.weights.resolve import resolve


class Start(NamedTuple):
    """Weights to start from."""

    model: Model
    """As the weights came, in evaluation mode."""
    header: Header
    """With their classes and preprocessing."""
    source: str
    """What to give as `pretrained` to get them again: NAME.TAG or an absolute path."""
    notes: tuple[str, ...] = ()


def create_model(name: str, *, pretrained: bool | str | Path = False, **changes: Any) -> Model:
    """A model by name: fresh, or with weights.

    Args:
        name: one of `list_models()`; the tag of public weights may stand behind a dot, as in timm.
        pretrained: False: fresh weights. True: the public weights of the preset, fetched where they are not on this
            machine yet. A tag: those of several. A path: a file of ours, a run folder, or a file that `convert` reads.
        changes: what differs from the preset: image=(h, w), channels, classes, patch, …; an unknown one raises. Where
            the file says otherwise than the preset (such as GELU's form), the preset's own value changes nothing.

    A model with weights is in evaluation mode: call `.train()` to go on training it. With another number of classes its
    head is new and untrained. Raises `UsageError` for changes that the weights do not fit, `MixwiseError` where they
    cannot be had, with what to download from where.

    >>> create_model("token_mlp_nano", image=(32, 32), classes=10)(torch.randn(1, 3, 32, 32)).shape
    torch.Size([1, 10])
    """
    if pretrained is False:
        preset, tag = split_tag(name)
        if tag:
            raise UsageError(f"{name} names weights: add pretrained=True, or leave out .{tag}")
        return create_fresh(preset, **changes)
    start = load_start(name, pretrained)
    return adapted(start, changes)


def load_start(name: str | None, pretrained: bool | str | Path) -> Start:
    """The weights that `pretrained` means for a preset, as they are.

    Args:
        name: the preset, perhaps with a tag; None: what the file says.
        pretrained: as for `create_model`.
    """
    preset, tag = split_tag(name) if name is not None else (None, "")
    if preset is not None:
        model_config(preset)  # an unknown name has its own sentence
    if isinstance(pretrained, str) and pretrained.partition(".")[0] in list_models():
        named, own = split_tag(pretrained) if not Path(pretrained).exists() else ("", "")
        if own and preset not in (None, named):
            raise UsageError(f"{pretrained} are weights of {named}, not of {preset}")
        if own:
            preset, tag, pretrained = named, own, True
    path = _local(pretrained, known=tags(preset) if preset is not None else [])
    if path is not None:
        return _from_file(preset, tag, path)
    if preset is None:
        raise UsageError("name the model whose public weights are meant, or give a file")
    entry = published(preset, tag if pretrained is True else str(pretrained))
    full = f"{preset}.{entry.tag}"
    made = convert(fetch(preset, entry), model=full, image=entry.image, compare=False)
    return Start(made.model, made.header, full, made.notes)


def _local(pretrained: bool | str | Path, known: list[str]) -> Path | None:
    """The file or run folder that is meant; None: public weights, with one of the known tags."""
    if isinstance(pretrained, bool) or pretrained in known:
        return None
    path = Path(pretrained).expanduser()
    if path.exists():
        return resolve(path) if path.is_dir() else path
    looks_like_path = isinstance(pretrained, Path) or "/" in pretrained or "\\" in pretrained or path.suffix
    if looks_like_path:
        raise MixwiseError(f"no file at {path}")
    return None


def _from_file(preset: str | None, tag: str, path: Path) -> Start:
    source = str(path.absolute())
    if not is_native(path):
        made = convert(path, model=f"{preset}.{tag}" if tag else preset, compare=False)
        return Start(made.model, made.header, source, made.notes)
    model, header = load_file(path)
    found = header.config
    if preset is not None and found.name != preset:
        raise UsageError(f"{path} holds the weights of {found.name}, not of {preset}")
    if found.form != "trainable":
        raise UsageError(
            f"{path} is re-parameterised, a form for inference that mixwise.load reads; start from the trainable file"
        )
    return Start(model, header, source)


def fetch(name: str, entry: Published) -> Path:
    """The file of public weights, from the cache of huggingface_hub or torch.hub, downloaded where it is not there.

    Raises `MixwiseError` where it cannot be had: which file to download from where, and how to pass it.
    """
    how = f"pass the file: create_model({name!r}, pretrained=FILE), or --init FILE"
    if not entry.url:
        raise MixwiseError(
            f"the weights of {name} cannot be fetched by a program: download them from {entry.page}, and {how}"
        )
    try:
        return _download(entry.url)
    except Exception as error:  # every library has its own errors for being offline
        reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
        raise MixwiseError(
            f"the weights {name}.{entry.tag} are not on this machine and could not be fetched ({reason}). "
            f"Download {entry.url} and {how}"
        ) from None


def _download(url: str) -> Path:
    parts = urlparse(url)
    if parts.netloc == "huggingface.co":
        from huggingface_hub import hf_hub_download

        owner, repository, _, revision, *inside = parts.path.strip("/").split("/")
        return Path(hf_hub_download(f"{owner}/{repository}", "/".join(inside), revision=revision))
    # One basename serves several files of Google's buckets: the whole address names the copy.
    path = Path(torch.hub.get_dir()) / "checkpoints" / "mixwise" / parts.netloc / parts.path.strip("/")
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(url, str(path), progress=False)
    return path


def adapted(start: Start, changes: dict[str, Any], *, classes: tuple[str, ...] = ()) -> Model:
    """The model of a start with changes, in evaluation mode.

    Args:
        changes: as `create_model` takes them; those that alter the weights' shapes are refused, but for the classes.
        classes: names of the new classes: the head is kept only for the very same.

    Raises `UsageError` that says which change does not fit.
    """
    old = start.model.config
    name = old.name
    if name not in list_models():
        raise UsageError(f"{start.source} holds {name}, a model that is not in `mixwise list`")
    if isinstance(old, VisionConfig):
        # A preset may choose its patch by the image size: what is asked of the size must not touch the rest.
        own = {"image": old.image, "classes": old.classes, "channels": old.channels}
        asked = {
            field: pair(changes[field]) if field == "image" else changes[field] for field in own if field in changes
        }
        base = model_config(name, **own)
        new: ModelConfig = _merged(old, base, model_config(name, **changes | own)).model_copy(update=asked)
    else:
        new = _merged(old, model_config(name), model_config(name, **changes))
    if isinstance(old, VisionConfig) and isinstance(new, VisionConfig):
        _check_size(start, old, new)
        same_head = old.classes == new.classes and (not classes or classes == start.header.classes)
        bare = native_state(new.model_copy(update={"classes": 0})).keys()
    else:
        same_head, bare = True, native_state(new).keys()
    if same_head and new == old:
        return start.model
    state = {key: tensor for key, tensor in start.model.state_dict().items() if same_head or key in bare}
    wanted = {key: tensor for key, tensor in native_state(new).items() if same_head or key in bare}
    wrong = [key for key in wanted if key not in state or state[key].shape != wanted[key].shape]
    wrong += [key for key in state if key not in wanted]
    if wrong:
        said = ", ".join(f"{key}={value!r}" for key, value in changes.items() if key not in ("classes", "image"))
        raise UsageError(f"the weights of {start.source} do not fit {name} with {said}: {wrong[0]} has another shape")
    model = build(new)
    model.load_state_dict(state, strict=same_head)
    return model.eval()


def _check_size(start: Start, old: VisionConfig, new: VisionConfig) -> None:
    if old.image != new.image and not takes(old, new):
        ours, theirs = (f"{c.image[0]}×{c.image[1]}" for c in (new, old))
        raise UsageError(
            f"the weights of {start.source} are for {theirs} pixels, and {old.name} has weights for one size; "
            f"for {ours}, first make a file with `mixwise resize`"
        )


def takes(old: VisionConfig, new: VisionConfig) -> bool:
    """Whether a model takes images of another's size, found by passing shapes through it."""
    with shapes_only():
        try:
            build(old).eval()(torch.empty(1, old.channels, *new.image))
        except (UsageError, RuntimeError):
            return False
    return True


def _merged(given: ModelConfig, base: ModelConfig, changed: ModelConfig) -> ModelConfig:
    """`given` with what `changed` alters about `base`, at any depth."""
    if type(given) is not type(base):
        raise UsageError(f"{given.name} is another kind of model here than in the file")
    dumps = (config.model_dump(mode="json") for config in (given, base, changed))
    return type(given).parse(_merge(*dumps))


def _merge(given: Any, base: Any, changed: Any) -> Any:
    if base == changed:
        return given
    if isinstance(given, dict) and isinstance(base, dict) and isinstance(changed, dict):
        kept = {key: value for key, value in given.items() if key in changed or key not in base}
        return kept | {
            key: _merge(given[key], base[key], value) if key in given and key in base else value
            for key, value in changed.items()
            if key not in base or base[key] != value
        }
    lists = [value for value in (given, base, changed) if isinstance(value, list)]
    if len(lists) == 3 and len(given) == len(base) == len(changed):
        return [_merge(*three) for three in zip(given, base, changed, strict=True)]
    return changed
