"""What to train, and how, from what is in the folder; every choice comes with its reason."""

import hashlib
import math
from pathlib import Path
from typing import Any

from rich.console import Console

from mixwise.config import Augment, Data, Optimizer, Preprocess, Recipe, Size, Train, VisionConfig, pair
from mixwise.data import Catalog, Statistics, discover, located, measure
from mixwise.data.listing import counted
from mixwise.errors import MixwiseError, UsageError, printable, unknown
from mixwise.labels import read_labels
from mixwise.models import presets
from mixwise.screening import Screened, class_range, screen
from mixwise.training.folds import folded
from mixwise.training.start import start_hash
from mixwise.weights.pretrained import Start


def plan(
    source: str | Path,
    settings: dict[str, Any],
    console: Console,
    start: Start | None = None,
    labels: str | Path | None = None,
) -> tuple[Screened, Train]:
    """The pictures and the complete settings of a run: chosen where `settings` (by dotted path) leaves them open.

    Weights to start from bring their model, image size and normalisation; a file of `labels` brings the classes.
    `check_settings` has seen the settings.
    """
    given = {k.removeprefix("data."): v for k, v in settings.items() if k.startswith("data.")}
    data = Data.parse({"source": located(source)} | given)
    try:
        data.source.encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"{printable(data.source)}: the path has bytes that are no UTF-8, so config.toml cannot name it; rename "
            "the folder, or give a link to it"
        ) from None
    wanted = str(settings.get("model", "auto"))
    if start is None and wanted not in [*presets(), "auto"]:
        raise unknown("model", wanted, [*presets(), "auto"])
    names = None if labels is None else read_labels(labels)
    whole = discover(
        data.source,
        val_split=data.val_split,
        seed=data.split_seed,
        classes=None if names is None else names.names,
        owner=str(labels),
        rename=None if names is None else names.rename(names.names),
        unknown_classes=data.unknown,
    )
    found = folded(whole, data)
    classes = len(found.classes)
    sizes = ", ".join(f"{len(items)} {name} ({class_range(items, classes)})" for name, items in found.splits.items())
    console.print(f"data     {data.source}: {counted(classes, 'class')}, {sizes}", highlight=False, markup=False)
    for note in found.notes:
        console.print(f"         {note}", highlight=False, markup=False)
    unused = [name for name in ("val_split", "split_seed") if f"data.{name}" in settings]
    if unused and not data.folds and not any(note.startswith("val is ") for note in whole.notes):
        what = f"{' and '.join(unused)} {'is' if len(unused) == 1 else 'are'} not used"
        console.print(f"         DATA has its own val split: {what}", highlight=False, markup=False)
    catalog = screen(found, data, console)
    counts = {name: len(items) for name, items in catalog.splits.items()}
    for split in ("train", "val"):
        if not counts.get(split):
            if listed := len(found.splits.get(split, ())):
                raise MixwiseError(f"{data.source}: none of its {listed} {split} pictures can be read")
            raise UsageError(f"{data.source} has no pictures to {'learn from' if split == 'train' else 'validate on'}")
    measured = measure(catalog.splits["train"], max_pixels=data.max_pixels)
    pre = _preprocess(measured, settings, start)
    if start is not None:
        model = start.model.config.name
    elif wanted == "auto":
        model, why = choose_model(counts["train"], pre.image)
        console.print(f"choice   {model}: {why}", highlight=False)
    else:
        model = wanted
    recipe = choose_recipe(counts["train"], pre.image, max(measured.height, measured.width))
    data = data.model_copy(update={"fingerprint": fingerprint(catalog), "rename": catalog.renamed})
    base = Train(model=model, task=catalog.task, classes=catalog.classes, data=data, preprocess=pre, recipe=recipe)
    if start is not None:
        base = base.model_copy(update={"pretrained": start.source, "pretrained_hash": start_hash(start)})
    return catalog, base.changed({k: v for k, v in settings.items() if k not in ("model", "pretrained")})


def check_settings(settings: dict[str, Any]) -> None:
    """Refuse settings that no pictures could make right, before pictures and weights are looked at for minutes."""
    _refuse(settings)
    pre = Preprocess(image=(8, 8), mean=(0.5,) * 3, std=(0.5,) * 3)
    later = ("model", "pretrained", "preprocess.channels", "preprocess.mean", "preprocess.std")
    tried = {name: value for name, value in settings.items() if not name.startswith(later)}
    Train(model="", classes=("",), data=Data(source=""), preprocess=pre, recipe=Recipe()).changed(tried)


def _refuse(settings: dict[str, Any]) -> None:
    """Settings that would contradict the pictures, or each other."""
    own = {"image": "preprocess.image", "channels": "preprocess.channels", "classes": "the folders of the pictures"}
    whole = settings.get("changes")
    for name, place in own.items():
        if f"changes.{name}" in settings or (isinstance(whole, dict) and name in whole):
            raise UsageError(f"the model's {name} follows {place}; do not set changes.{name}")
    for name, place in {
        "classes": own["classes"],
        "task": "the labels of the pictures",
        "data.rename": "the list of labels",
        "data.source": "the DATA argument",
    }.items():
        if name in settings:
            raise UsageError(f"{name} follows {place}; do not set it")


def fingerprint(catalog: Catalog) -> str:
    """A hash of the splits' picture names and labels: the same pictures in the same places give the same hash."""
    digest = hashlib.sha256()
    for split in sorted(catalog.splits):
        items = catalog.splits[split]
        for name, label in zip(items.names, items.labels.tolist(), strict=True):
            digest.update(f"{split}/{label}/{name}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:16]


def choose_image(height: float, width: float) -> Size:
    """The size to train at, from the median picture.

    Up to 40 pixels as it is; up to 128 pixels each side to the nearest multiple of 16; larger ones 128 × 128, which a
    processor without a GPU trains in minutes.
    """
    if max(height, width) <= 40:
        return round(height), round(width)
    if max(height, width) <= 128:
        return max(16, 16 * round(height / 16)), max(16, 16 * round(width / 16))
    return 128, 128


def choose_model(images: int, image: Size) -> tuple[str, str]:
    """A sensible backbone for so many pictures of this size, and the reason; docs/results.md has the measurements."""
    size = f"{image[0]}×{image[1]} pixels"
    if max(image) <= 16:
        return "repmlp_compact_nano", f"pictures of {size} need no more than the nano size"
    if images < 20_000:
        return (
            "repmlp_compact_tiny",
            f"with {images} pictures of {size}, local early stages and RepMLP in the last two learn much per minute",
        )
    return "repmlp_compact_small", f"{images} pictures of {size} can teach the larger size"


def choose_recipe(images: int, image: Size, side: float = math.inf) -> Recipe:
    """Settings that fit the number of training pictures, the size they are seen at, and the longer side they have.

    About 140,000 pictures are looked at, in 30 to 400 epochs: a quarter of an hour at 128 × 128 on two processor cores.
    """
    if max(image) <= 16:
        return Recipe(
            name="tiny pictures",
            epochs=24,
            batch_size=64,
            label_smoothing=0.05,
            ema=0.99,
            augment=Augment(scale=1, ratio=1, flip=0, shift=1),
            optimizer=Optimizer(lr=2e-3, lr_batch=64),
        )
    epochs = max(30, min(400, round(140_000 / images / 10) * 10))
    framed = side <= 128  # small pictures were cut to what they show: less can be cut off, and more is mixed
    scale, mixed = (0.65, 0.8) if framed else (0.35, 0.5)
    augment = Augment(scale=scale, flip=0.5, colour=0.3, erase=0.25, mixup=0.2, cutmix=1.0, mix_prob=mixed)
    if max(image) <= 40:  # every pixel counts: shifted by an eighth, as is usual for CIFAR, not cut to a third
        augment = Augment(scale=1, ratio=1, shift=max(image) // 8, flip=0.5, erase=0.1, cutmix=1.0, mix_prob=0.25)
    large = images >= 5_000
    return Recipe(
        name="medium data" if large else "small data",
        epochs=epochs,
        batch_size=64 if large else 32,
        ema=0.998,
        augment=augment,
        optimizer=Optimizer(lr=2e-3, lr_batch=64),
    )


def _preprocess_of(start: Start) -> dict[str, Any]:
    """How the pictures were prepared that the weights learned from."""
    config, pre = start.model.config, start.header.preprocess
    if not isinstance(config, VisionConfig):
        raise UsageError(f"{config.name} is no model of images")
    own = {"image": config.image, "channels": config.channels}
    kept = ("mean", "std", "fit", "filter", "crop_pct", "background")
    return own if pre is None else own | {name: getattr(pre, name) for name in kept}


def _preprocess(found: Statistics, settings: dict[str, Any], start: Start | None) -> Preprocess:
    asked = {k.removeprefix("preprocess."): v for k, v in settings.items() if k.startswith("preprocess.")}
    own = {} if start is None else _preprocess_of(start)
    if asked.get("channels", own.get("channels")) != own.get("channels"):  # the model of the weights has its say later
        own = {k: v for k, v in own.items() if k not in ("mean", "std")}
    given = own | asked
    channels = given.get("channels", 1 if found.grey == 1 else 3)
    if channels not in (1, 3, 4):
        raise UsageError(f"preprocess.channels must be 1 (grey), 3 (RGB) or 4 (RGBA), got {channels!r}")
    image = pair(given["image"]) if "image" in given else choose_image(found.height, found.width)
    mean, std = found.normalisation(channels)
    return Preprocess.parse({"image": image, "channels": channels, "mean": mean, "std": std} | given)
