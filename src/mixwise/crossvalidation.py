"""`mixwise train --kfold N`: every picture is validated on once, by a model that has not learned from it."""

import csv
import io
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from mixwise.errors import MixwiseError, UsageError
from mixwise.files import command, write_text
from mixwise.trainer import TrainResult, begin, go_on
from mixwise.training.run import Run, free_folder
from mixwise.training.settings import read_recipe


@dataclass(frozen=True)
class CrossValidation:
    """What the trainings of all folds came to."""

    folder: Path
    folds: tuple[TrainResult, ...]

    @property
    def mean(self) -> float:
        """Of the metric over the folds, a share of 1."""
        return statistics.mean(result.value for result in self.folds)

    @property
    def spread(self) -> float:
        """Standard deviation of the metric over the folds (n − 1)."""
        return statistics.stdev(result.value for result in self.folds)


def cross_validate(
    data: str | Path | None = None,
    folds: int = 5,
    *,
    out: str | Path | None = None,
    recipe: str | Path | None = None,
    changes: dict[str, Any] | None = None,
    labels: str | Path | None = None,
    resume: str | Path | None = None,
    console: Console | None = None,
) -> CrossValidation:
    """Train once for each fold of the pictures; a run folder each, and a table of all.

    Training and validation pictures are pooled and divided class by class; test pictures stay apart.

    Args:
        data, recipe, labels: as `train` takes them.
        folds: number of parts, at least 2.
        out: the folder for fold-1, fold-2, … and folds.csv; None: runs/kfold-<n>.
        changes: settings by dotted path, such as {"model": "pool_nano", "recipe.epochs": 20}.
        resume: such a folder, to go on with; folds that are finished are only scored again.

    >>> made = mixwise.cross_validate("digits", 2, changes={"model": "pool_nano", "recipe.epochs": 1})
    >>> len(made.folds)
    2
    """
    console = console or Console(quiet=True)
    if resume is not None:
        if any(given is not None for given in (data, out, recipe, labels)) or changes:
            raise UsageError("--resume goes on with the pictures and settings of the folds: give nothing else with it")
        return _all(existing(resume), console)
    if folds < 2:
        raise UsageError(f"--kfold takes at least 2 parts, got {folds}")
    if "data.val_split" in (changes or {}):
        raise UsageError(
            f"--kfold {folds} validates on 1/{folds} of the pictures: --val-split (data.val_split) has no part in it, "
            "so give one of the two"
        )
    settings = read_recipe(recipe) | (changes or {}) | {"data.folds": folds}
    folder = free_folder("kfold") if out is None else Path(out).expanduser()
    runs = []
    for number in range(1, folds + 1):  # all before the first one is trained, so that any interruption can go on
        said = console if number == 1 else Console(quiet=True)
        runs.append(begin(data, settings | {"data.fold": number}, folder / f"fold-{number}", said, labels)[0])
    return _all(runs, console)


def existing(folder: str | Path) -> list[Run]:
    """The runs of a cross-validation in their order. Raises `MixwiseError` where one is missing."""
    first = Run.existing(Path(folder).expanduser() / "fold-1")
    return [Run.existing(first.folder.parent / f"fold-{n}") for n in range(1, first.read_config().data.folds + 1)]


def is_cross_validation(folder: str | Path) -> bool:
    """Whether a folder was made by `cross_validate`."""
    return (Path(folder).expanduser() / "fold-1").is_dir()


def _all(runs: list[Run], console: Console) -> CrossValidation:
    folder = runs[0].folder.parent
    results = []
    for number, run in enumerate(runs, start=1):
        console.print(f"\n[bold]fold {number} of {len(runs)}[/]", highlight=False)
        try:
            results.append(go_on(run, console))
        except KeyboardInterrupt:
            console.print(
                f"all folds: {command('mixwise', 'train', '--resume', folder)}", highlight=False, markup=False
            )
            raise
        except MixwiseError as error:
            raise type(error)(f"fold {number}: {error}") from None
    made = CrossValidation(folder, tuple(results))
    _write(made)
    _print(made, console)
    return made


COLUMNS = ("fold", "metric", "value", "baseline", "epoch", "weights")


def _write(made: CrossValidation) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for number, r in enumerate(made.folds, start=1):
        writer.writerow((number, r.metric, f"{r.value:.6f}", f"{r.baseline:.6f}", r.epoch, r.weights))
    write_text(made.folder / "folds.csv", text.getvalue())


def _print(made: CrossValidation, console: Console) -> None:
    metric = made.folds[0].metric
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("fold", metric, "without looking", "epoch", "weights"):
        table.add_column(name, justify="right")
    for number, r in enumerate(made.folds, start=1):
        table.add_row(str(number), f"{r.value:.2%}", f"{r.baseline:.2%}", str(r.epoch), r.weights)
    console.print()
    console.print(table, highlight=False)
    what = f"mean and standard deviation of {len(made.folds)} folds"
    console.print(f"\n{metric} [bold]{made.mean:.2%} ± {made.spread:.2%}[/] ({what})", highlight=False)
    console.print(f"runs     {made.folder}", highlight=False, markup=False)
