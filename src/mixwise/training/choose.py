"""What to train, and how, from what is in the folder; every choice comes with its reason."""

from pathlib import Path
from typing import Any

from rich.console import Console

from mixwise.config import Augment, Data, Optimizer, Preprocess, Recipe, Size, Train
from mixwise.data import BUILTIN, Catalog, Statistics, discover, measure
from mixwise.errors import UsageError, unknown
from mixwise.models import PRESETS


def plan(source: str | Path, settings: dict[str, Any], console: Console) -> tuple[Catalog, Train]:
    """The pictures and the complete settings of a run: chosen where `settings` (by dotted path) leaves them open."""
    given = {k.removeprefix("data."): v for k, v in settings.items() if k.startswith("data.")}
    where = str(source) if str(source) in BUILTIN else str(Path(source).expanduser().absolute())
    data = Data.parse({"source": where} | given)
    catalog = discover(data.source, val_split=data.val_split, seed=data.split_seed)
    counts = {name: len(items) for name, items in catalog.splits.items()}
    sizes = ", ".join(f"{count} {name}" for name, count in counts.items())
    console.print(f"data     {data.source}: {len(catalog.classes)} classes, {sizes}", highlight=False, markup=False)
    for note in catalog.notes:
        console.print(f"         {note}", highlight=False, markup=False)
    for split in ("train", "val"):
        if not counts.get(split):
            raise UsageError(f"{data.source} has no pictures to {'learn from' if split == 'train' else 'validate on'}")
    found = measure(catalog.splits["train"])
    pre = _preprocess(found, settings)
    wanted = str(settings.get("model", "auto"))
    if wanted == "auto":
        model, why = choose_model(counts["train"], pre.image)
        console.print(f"choice   {model}: {why}", highlight=False)
    elif wanted in PRESETS:
        model = wanted
    else:
        raise unknown("model", wanted, [*PRESETS, "auto"])
    recipe = choose_recipe(counts["train"], pre.image)
    base = Train(model=model, classes=catalog.classes, data=data, preprocess=pre, recipe=recipe)
    return catalog, base.changed({k: v for k, v in settings.items() if k != "model"})


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
    """A sensible backbone for so many pictures of this size, and the reason."""
    if max(image) <= 16:
        return "repmlp_nano", f"pictures of {image[0]}×{image[1]} pixels need no more than a nano model"
    return "repmlp_tiny", f"{images} pictures of {image[0]}×{image[1]} pixels"


def choose_recipe(images: int, image: Size) -> Recipe:
    """Settings that fit the number and the size of the training pictures."""
    if max(image) <= 16:
        augment = Augment(scale=1, ratio=1, flip=0, shift=1)
        return Recipe(name="tiny pictures", epochs=60, batch_size=64, ema=0.99, augment=augment)
    passes = 160_000
    epochs = max(30, min(200, round(passes / images / 10) * 10))
    augment = Augment(scale=0.35, flip=0.5, colour=0.3, erase=0.25)
    return Recipe(
        name="small data", epochs=epochs, batch_size=32, ema=0.998, augment=augment, optimizer=Optimizer(lr=2e-3)
    )


def _preprocess(found: Statistics, settings: dict[str, Any]) -> Preprocess:
    given = {k.removeprefix("preprocess."): v for k, v in settings.items() if k.startswith("preprocess.")}
    channels = given.get("channels", 1 if found.grey == 1 else 3)
    image = given.get("image") or choose_image(found.height, found.width)
    mean, std = found.normalisation(channels)
    return Preprocess.parse({"image": image, "channels": channels, "mean": mean, "std": std} | given)
