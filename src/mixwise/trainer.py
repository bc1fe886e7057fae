"""`mixwise train`: from a folder of pictures to a run folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from rich.markup import escape

from mixwise.config import Train
from mixwise.data import (
    BadImages,
    Catalog,
    ImageDataset,
    Items,
    discover,
    evaluation_transform,
    loader,
    training_transform,
)
from mixwise.device import Precision, choose_device, choose_precision
from mixwise.errors import MixwiseError, UsageError
from mixwise.evaluation import Evaluation, judge, outputs
from mixwise.labels import write_labels
from mixwise.model import Model
from mixwise.prediction import Predictor
from mixwise.report.run import write_report
from mixwise.screening import screened_before, write_verdicts
from mixwise.tasks import decide, task
from mixwise.training.choose import fingerprint, plan
from mixwise.training.keep import Keeper
from mixwise.training.loop import fit, quieten, validation_interval
from mixwise.training.optim import scaled_lr
from mixwise.training.progress import ProgressLine
from mixwise.training.run import Run
from mixwise.training.settings import read_recipe
from mixwise.training.start import initial_model, read_start, read_start_again
from mixwise.weights import Header, info, save, weights_hash
from mixwise.weights.native import versions


@dataclass(frozen=True)
class TrainResult:
    """What a training came to."""

    run: Path
    """The run folder; every other verb takes it."""
    metric: str
    """What the best weights were chosen by: accuracy, or mAP with several labels a picture."""
    value: float
    """The best `metric` on the validation pictures, a share of 1."""
    epoch: int
    """The epoch it was reached in."""
    weights: str
    """Which weights were the best: raw or ema."""
    weights_hash: str
    """SHA-256 of the best weights."""


def train(
    data: str | Path | None = None,
    *,
    model: str | None = None,
    out: str | Path | None = None,
    recipe: str | Path | None = None,
    changes: dict[str, Any] | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    image: int | tuple[int, int] | None = None,
    seed: int | None = None,
    device: str | None = None,
    compile: bool = False,
    pretrained: bool | str | Path | None = None,
    on_bad: str | None = None,
    max_pixels: int | None = None,
    resume: str | Path | None = None,
    labels: str | Path | None = None,
    val_split: float | None = None,
    split_seed: int | None = None,
    unknown: Literal["error", "drop"] | None = None,
    console: Console | None = None,
) -> TrainResult:
    """Train a classifier on your pictures; everything that comes of it lies in one run folder.

    Args:
        data: a folder (DATA/<class>/* or DATA/{train,val,test}/<class>/*), a table, list, tar or array file, or the
            name of a data set: "digits", "torchvision:CIFAR10:FOLDER". docs/data.md has them all.
        model: a preset of `list_models()`, or "auto" (the default): chosen from the number and size of the pictures.
        out: the run folder; None: runs/<model>-<n>.
        recipe: a TOML file with any settings of `mixwise.config.Train`, such as the config.toml of another run; which
            pictures and classes it was made for is left aside. The arguments here win over it.
        changes: single settings by dotted path, e.g. {"recipe.optimizer.lr": 1e-3}; they win over everything.
        epochs, batch_size, image: short for the settings of these names; image is a side or (height, width) in pixels.
        seed: the same seed gives the same weights on the same machine (0 by default).
        device: auto (the default), cpu, cuda or mps.
        compile: train through torch.compile.
        pretrained: weights to start from: True for the public ones of the model, their tag, or any file that
            `mixwise convert` or `mixwise.load` reads. The head is new unless the classes are the very same; image
            size and normalisation are those of the weights.
        on_bad: skip (the default: pictures that cannot be read are named and left out) or error (the first one stops).
        max_pixels: larger pictures, height · width, count as bad.
        resume: a run folder to go on with; on the CPU it ends with the very weights of an unbroken run.
        labels: a file of class names, which fixes their order, and says what other names in the data mean.
        val_split, split_seed: short for data.val_split and data.split_seed: the share of each class for validation
            where the data has no split of its own, and which pictures these are.
        unknown: short for data.unknown: what a class does that the training pictures or `labels` lack, "error" by
            default, or "drop".
        console: where to print; None: nowhere.

    Raises `UsageError` for wrong requests and `MixwiseError` where pictures cannot be read or training diverges.
    """
    console = console or Console(quiet=True)
    short: dict[str, Any] = {
        "model": model,
        "seed": seed,
        "device": device,
        "compile": compile or None,
        "pretrained": str(pretrained) if isinstance(pretrained, Path) else pretrained or None,
        "data.on_bad": on_bad,
        "data.max_pixels": max_pixels,
        "recipe.epochs": epochs,
        "recipe.batch_size": batch_size,
        "preprocess.image": image,
        "data.val_split": val_split,
        "data.split_seed": split_seed,
        "data.unknown": unknown,
    }
    short = {name: value for name, value in short.items() if value is not None}
    if resume is not None:
        if any(given is not None for given in (data, out, recipe, labels)) or changes or short:
            raise UsageError("--resume goes on with the pictures and settings of the run: give nothing else with it")
        return _resume(Run.existing(resume), console)
    if data is None:
        raise UsageError("which pictures? Give a folder, or the name of built-in data: digits")
    settings = read_recipe(recipe) | short | (changes or {})
    start = read_start(settings)
    catalog, config = plan(data, settings, console, start, labels)
    prepared = _prepare(catalog, config, *initial_model(config, start))
    run = Run.create(out, config.model)
    run.write_config(config)
    write_verdicts(run.verdicts_file, catalog.verdicts)
    write_labels(run.labels_file, config.classes)
    return _run(run, prepared, console)


def _resume(run: Run, console: Console) -> TrainResult:
    config = run.read_config()
    data = config.data
    catalog = discover(
        data.source,
        val_split=data.val_split,
        seed=data.split_seed,
        classes=config.classes,
        task=config.task,
        rename=dict(data.rename),
        unknown_classes=data.unknown,
    )
    catalog = screened_before(catalog, run.verdicts_file, console)
    if fingerprint(catalog) != data.fingerprint:
        raise MixwiseError(
            f"the pictures of {data.source} are not those that {run.folder} was started with (names or labels differ), "
            "so it cannot go on as if nothing had happened; start a new run"
        )
    state = _usable_state(run, console)
    if state is not None and config.pretrained:
        made = initial_model(config, None, like=info(run.folder).config)
    else:
        made = initial_model(config, read_start_again(config))
    return _run(run, _prepare(catalog, config, *made), console, state)


@dataclass(frozen=True)
class Prepared:
    """Everything a training needs, built and checked before anything is written."""

    catalog: Catalog
    config: Train
    model: Model
    source: str
    """Where its weights come from; empty: fresh."""
    device: str
    precision: Precision
    train_set: ImageDataset
    val_set: ImageDataset


def _prepare(catalog: Catalog, config: Train, model: Model, source: str) -> Prepared:
    quieten()
    device = choose_device(config.device)
    precision = choose_precision(config.precision, device)
    pre, seed = config.preprocess, config.seed
    train_items, val_items = catalog.splits["train"], catalog.splits["val"]
    augmented = training_transform(pre, config.recipe.augment)
    cache, most = config.data.cache, config.data.max_pixels
    train_set = ImageDataset(train_items, pre, augmented, seed=seed, train=True, cache=cache, max_pixels=most)
    val_set = ImageDataset(val_items, pre, evaluation_transform(pre), cache=cache, max_pixels=most)
    return Prepared(catalog, config, model, source, device, precision, train_set, val_set)


def _run(run: Run, prepared: Prepared, console: Console, state: Path | None = None) -> TrainResult:
    config, model, device = prepared.config, prepared.model, prepared.device
    recipe, pre, workers = config.recipe, config.preprocess, config.data.workers
    train_set, val_set = prepared.train_set, prepared.val_set
    _announce(console, prepared)

    def header() -> Header:
        return Header(
            task=config.task, config=model.config, classes=config.classes, preprocess=pre, versions=versions()
        )

    bad = {name: _bad_images(name, items, config, console) for name, items in prepared.catalog.splits.items()}
    keeper = Keeper(run, header, config.state_every)
    try:
        fit(
            model,
            loader(
                train_set,
                recipe.batch_size,
                train=True,
                workers=workers,
                seed=config.seed,
                device=device,
                bad=bad["train"],
            ),
            loader(val_set, max(64, recipe.batch_size), train=False, workers=workers, device=device, bad=bad["val"]),
            recipe,
            task=task(config.task),
            classes=len(config.classes),
            seed=config.seed,
            device=device,
            precision=prepared.precision,
            compile=config.compile,
            callbacks=[ProgressLine(console, recipe.epochs, task(config.task).metric), keeper],
            log_dir=run.folder,
            resume=state,
            interval=validation_interval(recipe, len(train_set), len(val_set)),
        )
    except KeyboardInterrupt:
        console.print(f"\nstopped; go on with: mixwise train --resume {run.folder}", highlight=False, markup=False)
        raise
    found, chosen = _measure(run, prepared, bad["val"])
    report = write_report(run, config, found)
    result = TrainResult(
        run=run.folder,
        metric=task(config.task).metric,
        value=found.scores.value,
        epoch=keeper.best["epoch"],
        weights=keeper.best["weights"],
        weights_hash=weights_hash(found.predictor.model.state_dict()),
    )
    _conclude(console, result, prepared.catalog, report, chosen, bad)
    return result


def _bad_images(split: str, items: Items, config: Train, console: Console) -> BadImages:
    def say(line: str) -> None:
        console.print(line, style="yellow", highlight=False, markup=False)

    data = config.data
    return BadImages(f"the {split} split", len(items), on_bad=data.on_bad, max_bad=data.max_bad, say=say)


def _measure(run: Run, prepared: Prepared, bad: BadImages) -> tuple[Evaluation, list[str]]:
    """Score the best weights as every later verb will, in fp32; that and how to read them go into their header.

    Returns: the evaluation, and sentences about what was chosen on the validation pictures.
    """
    predictor = Predictor(run.best, device=prepared.device, max_pixels=prepared.config.data.max_pixels)
    items, logits = outputs(predictor, prepared.val_set.items, bad)
    decision, notes = decide(predictor.task, logits, torch.as_tensor(items.labels), predictor.classes)
    predictor.adopt(decision)
    found = judge(predictor, logits, items, prepared.catalog.source, "val", bad)
    metrics = {f"val_{predictor.task.metric}": found.scores.value, "val_loss": found.scores.loss}
    save(run.best, predictor.model.state_dict(), predictor.header.model_copy(update={"metrics": metrics}))
    return found, notes


def _usable_state(run: Run, console: Console) -> Path | None:
    """The newest state that can be read: the last one, or the one before where the last is damaged."""
    for state in (run.state, run.previous_state):
        if not state.is_file():
            continue
        try:
            epoch = torch.load(state, map_location="cpu", weights_only=True)["epoch"] + 1
        except Exception as error:
            console.print(
                f"{state} cannot be read ({type(error).__name__}); trying the one before", highlight=False, markup=False
            )
            continue
        console.print(f"going on after epoch {epoch} ({state.name})", highlight=False)
        return state
    console.print("no state was saved yet: starting from the first epoch", highlight=False)
    return None


def _announce(console: Console, prepared: Prepared) -> None:
    model, recipe, precision = prepared.model, prepared.config.recipe, prepared.precision
    images, device = len(prepared.train_set), prepared.device
    count = sum(p.numel() for p in model.parameters() if p.requires_grad)
    batch = recipe.batch_size * recipe.accumulate
    lr = scaled_lr(recipe.optimizer, batch)
    weights = f"weights  {prepared.source}\n" if prepared.source else ""
    console.print(
        f"model    {model.config.name}, {count / 1e6:.2f} M parameters, "
        f"{prepared.config.preprocess.image[0]}×{prepared.config.preprocess.image[1]} pixels\n{weights}"
        f"recipe   {recipe.name}: {recipe.epochs} epochs of {images} images, batch {batch}, "
        f"learning rate {lr:.2g} (= {recipe.optimizer.lr:g} × {batch}/{recipe.optimizer.lr_batch})\n"
        f"device   {device}, {precision.name} ({precision.why})",
        highlight=False,
    )


def _conclude(
    console: Console,
    result: TrainResult,
    catalog: Catalog,
    report: Path,
    chosen: list[str],
    bad: dict[str, BadImages],
) -> None:
    answers = "".join(f"answers  {escape(sentence)}\n" for sentence in chosen)
    counts = ", ".join(f"{len(b.found)} of {b.total} in {b.what}" for b in bad.values() if b.found)
    if counts:
        console.print(f"\npictures that could not be read and were left out: {counts}", style="yellow", highlight=False)
    console.print(
        f"\nbest validation {result.metric} [bold]{result.value:.2%}[/], "
        f"epoch {result.epoch} ({result.weights} weights)\n"
        f"{answers}run      {escape(str(result.run))}\nreport   {escape(str(report))}",
        highlight=False,
    )
    hints = [f"mixwise predict {result.run} YOUR_PICTURES"]
    if "test" in catalog.splits:
        hints.append(f"mixwise evaluate {result.run} {catalog.source}")
    console.print("\nnext:  " + "\n       ".join(hints), highlight=False, markup=False)
