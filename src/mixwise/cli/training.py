"""The verbs about pictures: train, evaluate, predict, export-data."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from typer.core import TyperCommand

from mixwise.cli.shared import Device, Model, app, err, escape, out, progress
from mixwise.errors import UsageError

if TYPE_CHECKING:
    from mixwise.evaluation import Evaluation
    from mixwise.prediction import Prediction


class _Train(TyperCommand):
    """`--pretrained` alone means the public weights of the model."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = list(args)
        for i, argument in reversed(list(enumerate(given))):
            if argument == "--pretrained" and (i + 1 == len(given) or given[i + 1].startswith("-")):
                given.insert(i + 1, "yes")
        return super().parse_args(ctx, given)


PICTURES, WEIGHTS, TRAINING, MACHINE = "Pictures", "Model and weights", "Training", "Machine and run"


@app.command(cls=_Train)
def train(
    data: Annotated[
        str | None, typer.Argument(help="A folder of classes or of splits, or built-in data: digits.")
    ] = None,
    image_size: Annotated[int | None, typer.Option(min=1, help="Side in pixels.", rich_help_panel=PICTURES)] = None,
    kfold: Annotated[
        int | None,
        typer.Option(min=2, help="Cross-validation: so many trainings, and a table.", rich_help_panel=PICTURES),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="A name from `mixwise list`, or auto.  [default: auto]", rich_help_panel=WEIGHTS)
    ] = None,
    init: Annotated[
        Path | None,
        typer.Option(
            help="Start from the weights of a run or a file, also of other classes or another image size.",
            metavar="RUN|FILE",
            rich_help_panel=WEIGHTS,
        ),
    ] = None,
    pretrained: Annotated[
        str | None,
        typer.Option(
            help="Start from the model's public weights, or from those of a tag.",
            metavar="[TAG]",
            rich_help_panel=WEIGHTS,
        ),
    ] = None,
    freeze: Annotated[
        str | None,
        typer.Option(help="backbone: train the head alone.", metavar="backbone", rich_help_panel=WEIGHTS),
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, rich_help_panel=TRAINING)] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, rich_help_panel=TRAINING)] = None,
    lr: Annotated[
        float | None, typer.Option(help="Learning rate for a batch of 64; scaled to yours.", rich_help_panel=TRAINING)
    ] = None,
    balance: Annotated[
        str | None,
        typer.Option(
            help="Rare classes count as much as common ones: none, loss or sampler.  [default: none]",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Same seed, same weights.  [default: 0]", rich_help_panel=TRAINING)
    ] = None,
    recipe: Annotated[Path | None, typer.Option(help="A TOML file with settings.", rich_help_panel=TRAINING)] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", help="One setting: path=value. Repeatable.", rich_help_panel=TRAINING),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="auto, cpu, cuda or mps.  [default: auto]", rich_help_panel=MACHINE)
    ] = None,
    devices: Annotated[
        int | None,
        typer.Option(min=1, help="Train on so many at once; the batch grows with them.", rich_help_panel=MACHINE),
    ] = None,
    deterministic: Annotated[
        bool,
        typer.Option("--deterministic", help="Only operations that repeat exactly.", rich_help_panel=MACHINE),
    ] = False,
    compile: Annotated[
        bool, typer.Option("--compile", help="Train through torch.compile.", rich_help_panel=MACHINE)
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--out", "-o", help="The run folder to make.", rich_help_panel=MACHINE)
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Go on with an interrupted run.", metavar="RUN", rich_help_panel=MACHINE)
    ] = None,
) -> None:
    """Train a classifier on your pictures; everything lands in one run folder."""
    from mixwise.crossvalidation import cross_validate, is_cross_validation
    from mixwise.trainer import train as run
    from mixwise.training.settings import parse_changes, short_settings

    settings = short_settings(
        model=model,
        epochs=epochs,
        batch_size=batch_size,
        image=image_size,
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
    ) | parse_changes(changes or [])
    if kfold is None and not (resume is not None and is_cross_validation(resume)):
        run(data, out=output, recipe=recipe, changes=settings, resume=resume, console=out)
    else:
        cross_validate(data, kfold or 0, out=output, recipe=recipe, changes=settings, resume=resume, console=out)


@app.command()
def evaluate(
    model: Model,
    data: Annotated[str, typer.Argument(help="A folder of classes or of splits, or built-in data.")],
    split: Annotated[str | None, typer.Option(help="train, val or test; default: test where there is one.")] = None,
    topk: Annotated[int, typer.Option(min=1)] = 5,
    batch_size: Annotated[int, typer.Option(min=1)] = 64,
    json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    device: Device = "auto",
) -> None:
    """Score a model on labelled pictures: accuracy, per class, confusion, calibration."""
    from mixwise.evaluation import evaluate as run

    with progress("evaluating", err) as report:
        result = run(model, data, split=split, topk=topk, batch_size=batch_size, device=device, progress=report)
    if json:
        print(result.to_json())
    else:
        _print_evaluation(result)


@app.command()
def predict(
    model: Model,
    images: Annotated[list[str], typer.Argument(help="Pictures or folders of pictures.", metavar="IMAGES")],
    topk: Annotated[int, typer.Option(min=1, help="How many classes to show.")] = 3,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    csv: Annotated[Path | None, typer.Option(help="Write a CSV file; - for standard output.")] = None,
    batch_size: Annotated[int, typer.Option(min=1)] = 32,
    device: Device = "auto",
) -> None:
    """Name what is in pictures. A picture that cannot be read is a row with its reason; the exit code is then 1."""
    from mixwise.files import replacing
    from mixwise.prediction import Predictor, find_images, to_json, write_csv

    if json and csv is not None:
        raise UsageError("--json and --csv are two forms of the same answers: choose one")
    predictor = Predictor(model, device=device)
    found = find_images(images)
    topk = min(topk, len(predictor.classes))
    quiet = json or (csv is not None and str(csv) == "-")
    with progress("predicting", err) as report:
        answers = _counted(predictor.stream(found, topk=topk, batch_size=batch_size), len(found), report)
        if csv is not None and str(csv) == "-":
            errors = write_csv(answers, sys.stdout, topk)
        elif csv is not None:
            with replacing(csv) as path, open(path, "w", encoding="utf-8", newline="") as file:
                errors = write_csv(answers, file, topk)
        elif json:
            errors = 0
            for p in answers:
                print(to_json(p))
                errors += bool(p.error)
        else:
            rows = list(answers)
            errors = sum(bool(p.error) for p in rows)
    if csv is not None and not quiet:
        out.print(f"{len(found)} rows in {csv}", highlight=False, markup=False)
    elif not quiet:
        _print_predictions(rows)
    if errors:
        err.print(f"{errors} of {len(found)} pictures could not be read", style="red", highlight=False)
        raise typer.Exit(1)


@app.command()
def export_data(
    name: Annotated[str, typer.Argument(help="Built-in data: digits.")],
    folder: Annotated[Path, typer.Argument(help="Where to put the pictures.")],
    split: Annotated[str, typer.Option(help="train, val or test.")] = "test",
    count: Annotated[int, typer.Option(min=1, help="How many pictures.")] = 10,
) -> None:
    """Write pictures of a built-in data set as PNG files, to look at or to predict on."""
    from mixwise.data import export_builtin

    files = export_builtin(name, folder, split=split, count=count)
    out.print(f"{len(files)} pictures in {folder}", highlight=False, markup=False)


def _counted(items: Iterator["Prediction"], total: int, report: Any) -> Iterator["Prediction"]:
    for done, item in enumerate(items, start=1):
        report(done, total)
        yield item


def _print_predictions(rows: list["Prediction"]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("image", "label", "probability", "next"):
        table.add_column(column, justify="right" if column == "probability" else "left", overflow="fold")
    for p in rows:
        if p.error:
            table.add_row(escape(p.image), "[red]–[/]", "", f"[red]{escape(p.error)}[/]")
        else:
            rest = ", ".join(f"{escape(label)} {value:.1%}" for label, value in p.top[1:])
            table.add_row(escape(p.image), f"[bold]{escape(p.label)}[/]", f"{p.probability:.1%}", rest)
    out.print(table, highlight=False)


def _print_evaluation(result: "Evaluation") -> None:
    s = result.scores
    for note in result.notes:
        out.print(f"note: {note}", highlight=False, markup=False)
    top = f"top-1 [bold]{s.top1:.2%}[/]"
    topk = f", top-{s.k} {s.topk:.2%}" if s.k < len(s.classes) else ""
    out.print(
        f"{s.images} pictures ({result.split}): {top}{topk}, loss {s.loss:.4f}, "
        f"calibration error {s.calibration_error:.2%} (always the commonest class: {s.majority:.2%})\n",
        highlight=False,
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("class")
    for column in ("pictures", "precision", "recall", "F1"):
        table.add_column(column, justify="right")
    for c in s.classes:
        if c.support:
            cells = (f"{c.precision:.1%}", f"{c.recall:.1%}", f"{c.f1:.3f}")
        else:
            cells = ("–", "–", "–")
        table.add_row(escape(c.name), str(c.support), *cells)
    out.print(table, highlight=False)
    _print_confusions(result)


def _print_confusions(result: "Evaluation", limit: int = 8) -> None:
    """The confusion matrix whole for up to 12 classes, else its largest mistakes."""
    names = [c.name for c in result.scores.classes]
    counts = result.scores.confusion
    if len(names) <= 12:
        table = Table(box=None, pad_edge=False, header_style="bold", title="truth ↓  answer →", title_justify="left")
        table.add_column("")
        for name in names:
            table.add_column(escape(name), justify="right")
        for i, name in enumerate(names):
            cells = [f"[bold]{n}[/]" if i == j else str(n) if n else "·" for j, n in enumerate(counts[i])]
            table.add_row(escape(name), *cells)
        out.print()
        out.print(table, highlight=False)
        return
    wrong = [(int(counts[i, j]), i, j) for i in range(len(names)) for j in range(len(names)) if i != j and counts[i, j]]
    out.print("\n[bold]most frequent mistakes[/]")
    for count, i, j in sorted(wrong, reverse=True)[:limit]:
        out.print(f"{count:4d} × {escape(names[i])} taken for {escape(names[j])}", highlight=False)
