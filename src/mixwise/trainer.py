"""`mixwise train`: from a folder of pictures to a run folder."""

import sys
from functools import partial
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from mixwise.config import VisionConfig, pair
from mixwise.data import BadImages, discover, loader
from mixwise.errors import MixwiseError, UsageError
from mixwise.evaluation import settle
from mixwise.files import command
from mixwise.labels import write_labels
from mixwise.prediction import Predictor
from mixwise.report.run import write_report
from mixwise.resizing import resize
from mixwise.screening import screened_before, write_verdicts
from mixwise.tasks import task
from mixwise.training.alarm import DivergenceError
from mixwise.training.balance import class_counts, drawing_weights, loss_weights
from mixwise.training.choose import check_settings, fingerprint, plan
from mixwise.training.folds import folded
from mixwise.training.keep import Keeper
from mixwise.training.loop import fit, validation_interval
from mixwise.training.prepared import Prepared, announce, bad_images, prepare
from mixwise.training.processes import MARK, end_with_parent, launch, rank
from mixwise.training.progress import ProgressLine
from mixwise.training.result import TrainResult, conclude, warnings_of
from mixwise.training.run import Run, usable_state
from mixwise.training.settings import read_recipe, short_settings
from mixwise.training.start import check_same, initial_model, read_start
from mixwise.training.watch import Watch
from mixwise.weights import Header, info, save, weights_hash
from mixwise.weights.native import versions
from mixwise.weights.pretrained import Start, load_start, takes

__all__ = ["TrainResult", "train"]


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
    lr: float | None = None,
    balance: str | None = None,
    seed: int | None = None,
    device: str | None = None,
    devices: int | None = None,
    deterministic: bool = False,
    compile: bool = False,
    init: str | Path | None = None,
    pretrained: bool | str | Path | None = None,
    freeze: str | None = None,
    on_bad: str | None = None,
    max_pixels: int | None = None,
    val_split: float | None = None,
    split_seed: int | None = None,
    unknown: Literal["error", "drop"] | None = None,
    labels: str | Path | None = None,
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
        epochs, batch_size, image, lr: short for the settings of these names; image is a side or (height, width).
        balance: none, loss or sampler: whether, and how, rare classes count as much as common ones.
        seed: the same seed gives the same weights on the same machine (0 by default).
        device: auto (the default), cpu, cuda or mps.
        devices: processes that train together, one a GPU; on the CPU they share the cores.
        deterministic: only operations that give the same result every time; one that cannot stops with its name.
        compile: train through torch.compile.
        init: weights to start from: a run folder or any file that `mixwise convert` or `mixwise.load` reads. The head
            is new unless the classes are the very same; image size and normalisation are those of the weights, which
            are carried over by `mixwise.resize` where another size is asked for.
        pretrained: as `init`, for public weights: True for those of the model, or their tag.
        freeze: "backbone": the head alone is trained.
        on_bad: skip (the default: pictures that cannot be read are named and left out) or error (the first one stops).
        max_pixels: larger pictures, height · width, count as bad.
        val_split, split_seed: the share of each class for validation where the data has no split of its own, and which
            pictures these are.
        unknown: what a class does that the training pictures or `labels` lack: "error" (the default) or "drop".
        labels: a file of class names, which fixes their order, and says what other names in the data mean.
        resume: a run folder to go on with; on the CPU it ends with the very weights of an unbroken run.
        console: where to print; None: nowhere.

    Raises `UsageError` for wrong requests and `MixwiseError` where pictures cannot be read or training diverges.
    """
    console = console or Console(quiet=True)
    short = short_settings(
        model=model,
        epochs=epochs,
        batch_size=batch_size,
        image=image,
        lr=lr,
        balance=balance,
        seed=seed,
        device=device,
        devices=devices,
        deterministic=deterministic,
        compile=compile,
        init=init,
        pretrained=pretrained,
        freeze=freeze,
        on_bad=on_bad,
        max_pixels=max_pixels,
        val_split=val_split,
        split_seed=split_seed,
        unknown=unknown,
    )
    if resume is not None:
        if any(given is not None for given in (data, out, recipe, labels)) or changes or short:
            raise UsageError("--resume goes on with the pictures and settings of the run: give nothing else with it")
        return go_on(Run.existing(resume), console)
    return _run(*begin(data, read_recipe(recipe) | short | (changes or {}), out, console, labels), console)


def begin(
    data: str | Path | None,
    settings: dict[str, Any],
    out: str | Path | None,
    console: Console,
    labels: str | Path | None = None,
) -> tuple[Run, Prepared]:
    """Choose, build and check everything, then make the run folder; `settings` by dotted path."""
    if data is None:
        raise UsageError("which pictures? Give a folder, or the name of built-in data: digits")
    check_settings(settings)
    if out is not None:
        Run(out).check_new(data)
    start = at_size(read_start(settings), settings.get("preprocess.image"))
    catalog, config = plan(data, settings, console, start, labels)
    prepared = prepare(catalog, config, *initial_model(config, start))
    run = Run.create(out, config.model, config.data.source)
    run.write_config(config)
    write_verdicts(run.verdicts_file, catalog.verdicts)
    write_labels(run.labels_file, config.classes)
    return run, prepared


def go_on(run: Run, console: Console) -> TrainResult:
    """Train on where a run stopped, or from its beginning where no epoch was finished."""
    state = usable_state(run, console)
    return _run(run, _again(run, state, console), console, state)


def join(folder: str, *, quiet: bool) -> None:
    """One of several processes that train a run together: what `launch` starts. Only the first one prints."""
    run = Run.existing(folder)
    console = Console(quiet=quiet or rank() > 0, soft_wrap=True)
    end_with_parent()
    try:
        state = usable_state(run, Console(quiet=True))
        prepared = _again(run, state, console)
        _fit(run, prepared, console, state, bad_images(prepared, console))
    except MixwiseError as error:
        print(MARK + str(error), file=sys.stderr, flush=True)
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def at_size(start: Start | None, image: Any) -> Start | None:
    """A start whose weights belong to one image size, carried over to another one that is asked for."""
    if start is None or image is None or not isinstance(config := start.model.config, VisionConfig):
        return start
    if takes(config, config.model_copy(update={"image": pair(image)})):
        return start
    return start._replace(model=resize(start.model, pair(image)))


def _again(run: Run, state: Path | None, console: Console) -> Prepared:
    """What a run was started with, found again; from a state, which brings all weights, without those of its start."""
    config = run.read_config()
    data = config.data
    found = discover(
        data.source,
        val_split=data.val_split,
        seed=data.split_seed,
        classes=config.classes,
        task=config.task,
        rename=dict(data.rename),
        unknown_classes=data.unknown,
    )
    catalog = screened_before(folded(found, data), run.verdicts_file, console)
    if fingerprint(catalog) != data.fingerprint:
        raise MixwiseError(
            f"the pictures of {data.source} are not those that {run.folder} was started with (names or labels differ), "
            "so it cannot go on as if nothing had happened; start a new run"
        )
    if state is not None and config.pretrained:
        return prepare(catalog, config, *initial_model(config, None, like=info(run.folder).config))
    start = None
    if config.pretrained:
        start = at_size(load_start(config.model, config.pretrained), config.preprocess.image)
        check_same(start, config)
    return prepare(catalog, config, *initial_model(config, start))


def _fit(run: Run, prepared: Prepared, console: Console, state: Path | None, bad: dict[str, BadImages]) -> None:
    config, model = prepared.config, prepared.model
    recipe, kind, classes, device = config.recipe, task(config.task), len(config.classes), prepared.device
    train_set, val_set = prepared.train_set, prepared.val_set
    labels = train_set.items.labels

    def header() -> Header:
        return Header(
            task=config.task,
            config=model.config,
            classes=config.classes,
            preprocess=config.preprocess,
            versions=versions(),
        )

    keeper = Keeper(run, header, config.state_every)
    batch, val_batch = prepared.batches
    here = partial(loader, workers=prepared.workers, device=device, rank=rank(), world=config.devices)
    weights = drawing_weights(recipe, labels, classes)
    try:
        fit(
            model,
            here(train_set, batch, train=True, seed=config.seed, weights=weights, bad=bad["train"]),
            here(val_set, val_batch, train=False, bad=bad["val"]),
            recipe,
            task=kind,
            classes=classes,
            seed=config.seed,
            device=device,
            devices=config.devices,
            precision=prepared.precision,
            console=console,
            compile=config.compile,
            deterministic=config.deterministic,
            weight=loss_weights(recipe, kind, labels, classes),
            names=train_set.items.names,
            callbacks=[ProgressLine(console, recipe.epochs, kind.metric), keeper, Watch(console)],
            log_dir=run.folder if rank() == 0 else None,
            resume=state,
            interval=validation_interval(recipe, len(train_set), len(val_set)),
        )
    except DivergenceError as error:
        raise MixwiseError(f"{error}. {keeper.kept()}") from None


def _run(run: Run, prepared: Prepared, console: Console, state: Path | None = None) -> TrainResult:
    config, kind = prepared.config, task(prepared.config.task)
    announce(console, prepared)
    bad = bad_images(prepared, console)
    try:
        if config.devices > 1:
            launch("mixwise.trainer:join", run.folder, config.devices, device=prepared.device, quiet=console.quiet)
        else:
            _fit(run, prepared, console, state, bad)
    except KeyboardInterrupt:
        again = command("mixwise", "train", "--resume", run.folder)
        console.print(f"\nstopped; go on with: {again}", highlight=False, markup=False)
        raise
    predictor = Predictor(run.best, device=prepared.device, max_pixels=config.data.max_pixels)
    found, chosen = settle(predictor, prepared.val_set.items, prepared.catalog.source, bad["val"])
    metrics = {f"val_{kind.metric}": found.scores.value, "val_loss": found.scores.loss}
    save(run.best, predictor.model.state_dict(), predictor.header.model_copy(update={"metrics": metrics}))
    report = write_report(run, config, found)
    result = TrainResult(
        run=run.folder,
        metric=kind.metric,
        value=found.scores.value,
        epoch=predictor.header.epoch or 0,
        weights=predictor.header.weights,
        weights_hash=weights_hash(predictor.model.state_dict()),
        baseline=found.scores.baseline,
        warnings=warnings_of(found.scores, kind),
    )
    conclude(
        console,
        result,
        found.scores,
        kind,
        class_counts(prepared.train_set.items.labels, len(config.classes)),
        rows=run.read_metrics(),
        recipe=config.recipe,
        report=report,
        test=prepared.catalog.source if "test" in prepared.catalog.splits else "",
        chosen=chosen,
        bad=bad,
    )
    return result
