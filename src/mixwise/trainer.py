"""`mixwise train`: from a folder of pictures to a run folder."""

import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from rich.console import Console

from mixwise.backbone import Backbone
from mixwise.config import Recipe, Train
from mixwise.data import Catalog, ImageDataset, discover, evaluation_transform, loader, training_transform
from mixwise.device import choose_device, choose_precision
from mixwise.errors import UsageError
from mixwise.models import create_model
from mixwise.report.run import write_report
from mixwise.training.choose import plan
from mixwise.training.keep import Keeper
from mixwise.training.loop import fit, quieten, validation_interval
from mixwise.training.optim import scaled_lr
from mixwise.training.progress import ProgressLine
from mixwise.training.run import Run
from mixwise.weights import Header, load_file, weights_hash
from mixwise.weights.native import versions


@dataclass(frozen=True)
class TrainResult:
    """What a training came to."""

    run: Path
    """The run folder; every other verb takes it."""
    accuracy: float
    """Best top-1 on the validation pictures, a share of 1."""
    epoch: int
    """The epoch it was reached in."""
    weights: str
    """Which weights were the best: raw or ema."""
    weights_hash: str
    """SHA-256 of the best weights."""


def train(
    data: str | Path | None = None,
    *,
    model: str = "auto",
    out: str | Path | None = None,
    recipe: str | Path | None = None,
    changes: dict[str, Any] | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    image: int | tuple[int, int] | None = None,
    seed: int = 0,
    device: str = "auto",
    compile: bool = False,
    resume: str | Path | None = None,
    console: Console | None = None,
) -> TrainResult:
    """Train a classifier on your pictures; everything that comes of it lies in one run folder.

    Args:
        data: a folder (DATA/<class>/* or DATA/{train,val,test}/<class>/*) or the name of built-in data: "digits".
        model: a preset of `list_models()`, or "auto": chosen from the number and size of the pictures.
        out: the run folder; None: runs/<model>-<n>.
        recipe: a TOML file with any settings of `mixwise.config.Train`.
        changes: single settings by dotted path, e.g. {"recipe.optimizer.lr": 1e-3}; they win over the recipe file.
        epochs, batch_size, image: short for the settings of these names; image is a side or (height, width) in pixels.
        seed: the same seed gives the same weights on the same machine.
        device: auto, cpu, cuda or mps.
        compile: train through torch.compile.
        resume: a run folder to go on with; on the CPU it ends with the very weights of an unbroken run.
        console: where to print; None: nowhere.

    Raises `UsageError` for wrong requests and `MixwiseError` where pictures cannot be read or training diverges.
    """
    console = console or Console(quiet=True)
    if resume is not None:
        if data is not None or changes or recipe is not None:
            raise UsageError("--resume goes on with the settings of the run; give no data, --recipe or --set with it")
        run = Run.existing(resume)
        config = run.read_config()
        catalog = discover(
            config.data.source,
            val_split=config.data.val_split,
            seed=config.data.split_seed,
            classes=config.classes,
        )
    else:
        if data is None:
            raise UsageError("which pictures? Give a folder, or the name of built-in data: digits")
        settings = _settings(recipe, changes, epochs=epochs, batch_size=batch_size, image=image)
        top = {"model": model, "seed": seed, "device": device, "compile": compile}
        catalog, config = plan(data, {**settings, **_given(top, settings)}, console)
        run = Run.create(out, config.model)
        run.write_config(config)
    return _run(run, catalog, config, console, resumed=resume is not None)


def _given(top: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Arguments win over the recipe file, but an argument left at its default does not."""
    defaults = {"model": "auto", "seed": 0, "device": "auto", "compile": False}
    return {k: v for k, v in top.items() if v != defaults[k] or k not in settings}


def _settings(recipe: str | Path | None, changes: dict[str, Any] | None, **short: Any) -> dict[str, Any]:
    """All explicit settings by dotted path: the recipe file, then the short arguments, then single changes."""
    settings: dict[str, Any] = {}
    if recipe is not None:
        path = Path(recipe).expanduser()
        if not path.is_file():
            raise UsageError(f"no recipe file at {path}")
        try:
            settings |= _flat(tomllib.loads(path.read_text(encoding="utf-8")))
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f"{path} is not valid TOML: {error}") from None
    image = short["image"]
    named = {
        "recipe.epochs": short["epochs"],
        "recipe.batch_size": short["batch_size"],
        "preprocess.image": (image, image) if isinstance(image, int) else image,
    }
    return settings | {k: v for k, v in named.items() if v is not None} | (changes or {})


def _flat(data: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict) and prefix + key != "changes":
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def parse_changes(pairs: Sequence[str]) -> dict[str, Any]:
    """`path=value` texts as settings; the value is read as JSON where it is JSON, else as text.

    >>> parse_changes(["recipe.epochs=5", "precision=fp32"])
    {'recipe.epochs': 5, 'precision': 'fp32'}
    """
    changes = {}
    for pair in pairs:
        path, equals, value = pair.partition("=")
        if not equals or not path:
            raise UsageError(f"--set takes path=value, got {pair!r}; for example --set recipe.optimizer.lr=0.001")
        try:
            changes[path] = json.loads(value)
        except json.JSONDecodeError:
            changes[path] = value
    return changes


def build(config: Train) -> Backbone:
    """The untrained model of a run, the same for the same seed."""
    pl.seed_everything(config.seed, verbose=False)
    own = {"image": config.preprocess.image, "channels": config.preprocess.channels, "classes": len(config.classes)}
    return create_model(config.model, **{**own, **config.changes})


def _run(run: Run, catalog: Catalog, config: Train, console: Console, *, resumed: bool) -> TrainResult:
    quieten()
    device = choose_device(config.device)
    precision = choose_precision(config.precision, device)
    recipe = config.recipe
    model = build(config)
    train_items, val_items = catalog.splits["train"], catalog.splits["val"]
    interval = validation_interval(recipe, len(train_items), len(val_items))
    pre = config.preprocess
    train_set = ImageDataset(train_items, pre, training_transform(pre, recipe.augment), seed=config.seed, train=True)
    val_set = ImageDataset(val_items, pre, evaluation_transform(pre), seed=config.seed, train=False)
    batches = {
        "train": loader(train_set, recipe.batch_size, train=True, workers=config.data.workers, seed=config.seed),
        "val": loader(val_set, max(64, recipe.batch_size), train=False, workers=config.data.workers, seed=config.seed),
    }
    _announce(console, model, recipe, device, precision, len(train_items))

    def header() -> Header:
        return Header(config=model.config, classes=config.classes, preprocess=pre, versions=versions())

    keeper = Keeper(run, header, config.state_every)
    state = None
    if resumed:
        state = _usable_state(run, console)
    fit(
        model,
        batches["train"],
        batches["val"],
        recipe,
        classes=len(config.classes),
        seed=config.seed,
        device=device,
        precision=precision,
        compile=config.compile,
        callbacks=[ProgressLine(console, recipe.epochs), keeper],
        log_dir=run.folder,
        resume=state,
        interval=interval,
    )
    report = write_report(run, config, val_items)
    best, _ = load_file(run.best)
    result = TrainResult(
        run=run.folder,
        accuracy=keeper.best["accuracy"],
        epoch=keeper.best["epoch"],
        weights=keeper.best["weights"],
        weights_hash=weights_hash(best.state_dict()),
    )
    _conclude(console, result, catalog, report)
    return result


def _usable_state(run: Run, console: Console) -> Path | None:
    """The newest state that can be read: the last one, or the one before where the last is damaged."""
    for state in (run.state, run.previous_state):
        if not state.is_file():
            continue
        try:
            epoch = torch.load(state, map_location="cpu", weights_only=True)["epoch"] + 1
        except Exception as error:
            console.print(f"{state} cannot be read ({type(error).__name__}); trying the one before", highlight=False)
            continue
        console.print(f"going on after epoch {epoch} ({state.name})", highlight=False)
        return state
    console.print("no state was saved yet: starting from the first epoch", highlight=False)
    return None


def _announce(console: Console, model: Backbone, recipe: Recipe, device: str, precision: Any, images: int) -> None:
    count = sum(p.numel() for p in model.parameters() if p.requires_grad)
    batch = recipe.batch_size * recipe.accumulate
    lr = scaled_lr(recipe.optimizer, batch)
    console.print(
        f"model    {model.config.name}, {count / 1e6:.2f} M parameters, "
        f"{model.config.image[0]}×{model.config.image[1]} pixels, {len(model.config.stages)} stages\n"
        f"recipe   {recipe.name}: {recipe.epochs} epochs of {images} images, batch {batch}, "
        f"learning rate {lr:.2g} (= {recipe.optimizer.lr:g} × {batch}/{recipe.optimizer.lr_batch})\n"
        f"device   {device}, {precision.name} ({precision.why})",
        highlight=False,
    )


def _conclude(console: Console, result: TrainResult, catalog: Catalog, report: Path) -> None:
    console.print(
        f"\nbest validation accuracy [bold]{result.accuracy:.2%}[/], epoch {result.epoch} ({result.weights} weights)\n"
        f"run      {result.run}\nreport   {report}",
        highlight=False,
    )
    data = f" {catalog.source}" if "test" in catalog.splits else ""
    console.print(f"\nnext:  mixwise predict {result.run} YOUR_PICTURES", highlight=False)
    if data:
        console.print(f"       mixwise evaluate {result.run}{data}", highlight=False)
