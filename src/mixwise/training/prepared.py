"""Everything a training needs, built and checked before anything is written, and said before it starts."""

from dataclasses import dataclass

import torch
from rich.console import Console

from mixwise.config import Train
from mixwise.data import BadImages, Catalog, ImageDataset, evaluation_transform, training_transform
from mixwise.data.dataset import choose_workers
from mixwise.data.listing import counted
from mixwise.device import Precision, choose_device, choose_precision
from mixwise.errors import UsageError
from mixwise.model import Model
from mixwise.tasks import task
from mixwise.training.balance import balance_line
from mixwise.training.loop import quieten
from mixwise.training.optim import effective_batch, scaled_lr
from mixwise.training.workers import fitting_workers


@dataclass(frozen=True)
class Prepared:
    """Model, pictures and device of a training."""

    catalog: Catalog
    config: Train
    model: Model
    source: str
    """Where its weights come from; empty: fresh."""
    device: str
    precision: Precision
    train_set: ImageDataset
    val_set: ImageDataset
    workers: int
    """Loader processes for each of the two."""
    notes: tuple[str, ...]
    """What was decided for this machine."""

    @property
    def batches(self) -> tuple[int, int]:
        """Pictures a batch, in training and in validation."""
        return self.config.recipe.batch_size, max(64, self.config.recipe.batch_size)


def prepare(catalog: Catalog, config: Train, model: Model, source: str) -> Prepared:
    """Choose device, precision and loaders. Raises `UsageError` for what this machine or these weights lack."""
    quieten()
    device = choose_device(config.device)
    precision = choose_precision(config.precision, device)
    _check_devices(config.devices, device, catalog)
    if config.recipe.freeze == "backbone" and not config.pretrained:
        raise UsageError(
            "--freeze backbone trains the head alone, on weights to start from: give them with --init FILE"
        )
    pre, seed = config.preprocess, config.seed
    train_items, val_items = catalog.splits["train"], catalog.splits["val"]
    augmented = training_transform(pre, config.recipe.augment)
    cache, most = config.data.cache, config.data.max_pixels
    train_set = ImageDataset(train_items, pre, augmented, seed=seed, train=True, cache=cache, max_pixels=most)
    val_set = ImageDataset(val_items, pre, evaluation_transform(pre), cache=cache, max_pixels=most)
    wanted = choose_workers(train_items.sources) if config.data.workers is None else config.data.workers
    sizes = (config.recipe.batch_size, max(64, config.recipe.batch_size))
    workers, fewer = fitting_workers(wanted, sizes, pre)
    notes = (fewer,) if fewer else ()
    return Prepared(catalog, config, model, source, device, precision, train_set, val_set, workers, notes)


def _check_devices(devices: int, device: str, catalog: Catalog) -> None:
    there = {"cuda": torch.cuda.device_count(), "mps": 1}.get(device, devices)
    if devices > there:
        raise UsageError(f"devices is {devices}, and {there} {device} devices are available here")
    for split in ("train", "val"):
        if (count := len(catalog.splits[split])) < devices:
            raise UsageError(f"devices is {devices}, and the {split} split has {count} for them: take fewer")


def bad_images(prepared: Prepared, console: Console) -> dict[str, BadImages]:
    """For each split what takes the pictures that cannot be read, and names them once."""

    def say(line: str) -> None:
        console.print(line, style="yellow", highlight=False, markup=False)

    data = prepared.config.data
    return {
        name: BadImages(f"the {name} split", len(items), on_bad=data.on_bad, max_bad=data.max_bad, say=say)
        for name, items in prepared.catalog.splits.items()
    }


def announce(console: Console, prepared: Prepared) -> None:
    """Model, recipe and device in a few lines."""
    model, config, precision = prepared.model, prepared.config, prepared.precision
    recipe, images = config.recipe, len(prepared.train_set)
    count = sum(p.numel() for p in model.parameters())
    batch = effective_batch(recipe, config.devices, images)
    lr = scaled_lr(recipe.optimizer, batch)
    size = f"{config.preprocess.image[0]}×{config.preprocess.image[1]} pixels"
    alone = ", only the head is trained" if recipe.freeze == "backbone" else ""
    lines = [f"model    {model.config.name}, {count / 1e6:.2f} M parameters, {size}{alone}"]
    if prepared.source:
        lines.append(f"weights  {prepared.source}")
    lines.append(
        f"recipe   {recipe.name}: {counted(recipe.epochs, 'epoch')} of {images} images, batch {batch}, "
        f"learning rate {lr:.2g} (= {recipe.optimizer.lr:g} × {batch}/{recipe.optimizer.lr_batch})"
    )
    wanted = recipe.batch_size * recipe.accumulate * config.devices
    if images < wanted:
        lines.append(
            f"         the set is smaller than a batch of {wanted}: each epoch is one step with all {images} images"
        )
    if recipe.balance != "none":
        labels = prepared.train_set.items.labels
        lines.append(f"balance  {balance_line(recipe, task(config.task), labels, config.classes)}")
    several = f"{config.devices} × " if config.devices > 1 else ""
    lines.append(f"device   {several}{prepared.device}, {precision.name} ({precision.why})")
    lines += [f"         {note}" for note in prepared.notes]
    console.print("\n".join(lines), highlight=False, markup=False)
