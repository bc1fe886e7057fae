"""`mixwise train`: from a folder of pictures to a run folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape

from mixwise.config import Train
from mixwise.data import Catalog, ImageDataset, discover, evaluation_transform, loader, training_transform
from mixwise.device import Precision, choose_device, choose_precision
from mixwise.errors import MixwiseError, UsageError
from mixwise.evaluation import Evaluation, judge, outputs
from mixwise.model import Model
from mixwise.prediction import Predictor
from mixwise.report.run import write_report
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
    resume: str | Path | None = None,
    console: Console | None = None,
) -> TrainResult:
    """Train a classifier on your pictures; everything that comes of it lies in one run folder.

    Args:
        data: a folder (DATA/<class>/* or DATA/{train,val,test}/<class>/*) or the name of built-in data: "digits".
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
        resume: a run folder to go on with; on the CPU it ends with the very weights of an unbroken run.
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
        "recipe.epochs": epochs,
        "recipe.batch_size": batch_size,
        "preprocess.image": image,
    }
    short = {name: value for name, value in short.items() if value is not None}
    if resume is not None:
        if data is not None or out is not None or recipe is not None or changes or short:
            raise UsageError("--resume goes on with the pictures and settings of the run: give nothing else with it")
        return _resume(Run.existing(resume), console)
    if data is None:
        raise UsageError("which pictures? Give a folder, or the name of built-in data: digits")
    settings = read_recipe(recipe) | short | (changes or {})
    start = read_start(settings)
    catalog, config = plan(data, settings, console, start)
    prepared = _prepare(catalog, config, *initial_model(config, start))
    run = Run.create(out, config.model)
    run.write_config(config)
    return _run(run, prepared, console)


def _resume(run: Run, console: Console) -> TrainResult:
    config = run.read_config()
    data = config.data
    catalog = discover(data.source, val_split=data.val_split, seed=data.split_seed, classes=config.classes)
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
    train_set = ImageDataset(train_items, pre, augmented, seed=seed, train=True)
    val_set = ImageDataset(val_items, pre, evaluation_transform(pre), seed=seed, train=False)
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

    keeper = Keeper(run, header, config.state_every)
    try:
        fit(
            model,
            loader(train_set, recipe.batch_size, train=True, workers=workers, seed=config.seed, device=device),
            loader(val_set, max(64, recipe.batch_size), train=False, workers=workers, device=device),
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
    found, chosen = _measure(run, prepared)
    report = write_report(run, config, found)
    result = TrainResult(
        run=run.folder,
        metric=task(config.task).metric,
        value=found.scores.value,
        epoch=keeper.best["epoch"],
        weights=keeper.best["weights"],
        weights_hash=weights_hash(found.predictor.model.state_dict()),
    )
    _conclude(console, result, prepared.catalog, report, chosen)
    return result


def _measure(run: Run, prepared: Prepared) -> tuple[Evaluation, list[str]]:
    """Score the best weights as every later verb will, in fp32; that and how to read them go into their header.

    Returns: the evaluation, and sentences about what was chosen on the validation pictures.
    """
    predictor, items = Predictor(run.best, device=prepared.device), prepared.val_set.items
    logits = outputs(predictor, items)
    decision, notes = decide(predictor.task, logits, torch.as_tensor(items.labels), predictor.classes)
    predictor.adopt(decision)
    found = judge(predictor, logits, items, prepared.catalog.source, "val")
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


def _conclude(console: Console, result: TrainResult, catalog: Catalog, report: Path, chosen: list[str]) -> None:
    answers = "".join(f"answers  {escape(sentence)}\n" for sentence in chosen)
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
