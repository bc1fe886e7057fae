"""What a training came to, and how it is told."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mixwise.config import Recipe
from mixwise.data import BadImages
from mixwise.files import command
from mixwise.tasks import Scores, Task

FEW = 12
"""Up to so many classes are listed one by one."""
UNEVEN = 3
"""From this ratio of the largest to the smallest class on, classes count as unbalanced."""


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
    baseline: float
    """The `metric` without looking at the pictures; for accuracy, of always answering the commonest class."""
    warnings: tuple[str, ...] = ()
    """What the numbers say that should not be overlooked."""


def warnings_of(scores: Scores, task: Task) -> tuple[str, ...]:
    """Sentences about scores that should not be overlooked."""
    if scores.constant:
        return (
            f"the model answers {scores.constant!r} for every picture: it learned nothing from them. More epochs, a "
            "lower learning rate (--lr), weights to start from (--init, --pretrained) or, where one class is much "
            "larger, --balance loss may help",
        )
    if scores.value <= scores.baseline < 1:
        return (f"the {task.metric} is not above the {scores.baseline:.1%} that need no look at the pictures",)
    return ()


def other_weights(rows: list[dict[str, str]], result: TrainResult) -> str:
    """What the weights that were not kept had in the same epoch: "raw 91.2%"; empty where there is one kind."""
    row = next((r for r in rows if int(r["epoch"]) == result.epoch), {})
    other = "raw" if result.weights == "ema" else "ema"
    value = row.get(f"{other}_val_{result.metric}")
    return f"; {other} {float(value):.2%}" if value else ""


def conclude(
    console: Console,
    result: TrainResult,
    scores: Scores,
    task: Task,
    counts: np.ndarray,
    *,
    rows: list[dict[str, str]],
    recipe: Recipe,
    report: Path,
    test: str,
    chosen: list[str],
    bad: dict[str, BadImages],
) -> None:
    """Print the result, its classes where they are few or unbalanced, warnings, and what to do next.

    Args:
        counts: training pictures of each class.
        rows: of metrics.csv.
        test: data with a test split; empty: none.
        chosen: sentences about how the answers are to be read.
        bad: pictures of each split that could not be read.
    """
    counted = ", ".join(f"{len(b.found)} of {b.total} in {b.what}" for b in bad.values() if b.found)
    if counted:
        left = f"\npictures that could not be read and were left out: {counted}"
        console.print(left, style="yellow", highlight=False)
    if rows and int(rows[-1]["epoch"]) < recipe.epochs:
        what = result.metric if recipe.patience_on == "metric" else "loss"
        least = f" by more than {recipe.min_delta:g}" if recipe.min_delta else ""
        console.print(
            f"\nstopped after epoch {rows[-1]['epoch']} of {recipe.epochs}: the validation {what} did not improve"
            f"{least} in {recipe.patience} epochs (recipe.patience)",
            highlight=False,
        )
    console.print(
        f"\nbest validation {result.metric} [bold]{result.value:.2%}[/], "
        f"epoch {result.epoch} ({result.weights} weights{other_weights(rows, result)}); "
        f"{task.guess}: {result.baseline:.2%}",
        highlight=False,
    )
    uneven = counts.max() >= UNEVEN * max(1, counts.min())
    if len(counts) > 1 and (len(counts) <= FEW or uneven):
        console.print(_table(scores, task, counts), highlight=False)
    for warning in result.warnings:
        console.print(f"warning: {warning}", style="yellow", highlight=False, markup=False)
    for sentence in chosen:
        console.print(f"answers  {sentence}", highlight=False, markup=False)
    console.print(f"run      {escape(str(result.run))}\nreport   {escape(str(report))}", highlight=False)
    hints = [command("mixwise", "predict", result.run, "YOUR_PICTURES")]
    if test:
        hints.append(command("mixwise", "evaluate", result.run, test))
    console.print("\nnext:  " + "\n       ".join(hints), highlight=False, markup=False)


def _table(scores: Scores, task: Task, counts: np.ndarray) -> Table:
    """The classes, those with the lowest values first where they are many."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("class" if len(counts) <= FEW else f"the {FEW} weakest classes")
    for name in ("train", "val", task.part_metric):
        table.add_column(name, justify="right")
    rows = list(zip(scores.parts, counts, strict=True))
    if len(rows) > FEW:
        rows = sorted(rows, key=lambda row: row[0][2] if row[0][1] else 2.0)[:FEW]
    for (name, support, value), count in rows:
        table.add_row(escape(name), str(int(count)), str(support), f"{value:.1%}" if support else "–")
    return table
