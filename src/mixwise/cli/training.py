"""The verbs about pictures: train, evaluate, predict, export-data."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from typer.core import TyperCommand

from mixwise.cli.shared import Device, Labels, Model, Unknown, app, err, escape, out, progress
from mixwise.errors import UsageError

if TYPE_CHECKING:
    from mixwise.evaluation import Evaluation
    from mixwise.prediction import Prediction


OnBad = Annotated[
    str | None,
    typer.Option(help="Pictures that cannot be read: skip (named and left out) or error (stop).  [default: skip]"),
]
MaxPixels = Annotated[
    int | None, typer.Option(min=1, help="Larger pictures, height × width, are not read.  [default: 67108864]")
]


class _Train(TyperCommand):
    """`--pretrained` alone means the public weights of the model."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = list(args)
        for i, argument in reversed(list(enumerate(given))):
            if argument == "--pretrained" and (i + 1 == len(given) or given[i + 1].startswith("-")):
                given.insert(i + 1, "yes")
        return super().parse_args(ctx, given)


@app.command(cls=_Train)
def train(
    data: Annotated[
        str | None, typer.Argument(help="A folder, table, list, tar or array file, or built-in data: digits.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="A name from `mixwise list`, or auto.  [default: auto]")] = None,
    output: Annotated[Path | None, typer.Option("--out", "-o", help="The run folder to make.")] = None,
    recipe: Annotated[Path | None, typer.Option(help="A TOML file with settings.")] = None,
    changes: Annotated[list[str] | None, typer.Option("--set", help="One setting: path=value. Repeatable.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1)] = None,
    batch_size: Annotated[int | None, typer.Option(min=1)] = None,
    image_size: Annotated[int | None, typer.Option(min=1, help="Side in pixels.")] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same weights.  [default: 0]")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or mps.  [default: auto]")] = None,
    compile: Annotated[bool, typer.Option("--compile", help="Train through torch.compile.")] = False,
    pretrained: Annotated[
        str | None,
        typer.Option(
            help="Start from weights: a file, a tag, or nothing behind it for the model's public ones.",
            metavar="[PATH|TAG]",
        ),
    ] = None,
    on_bad: OnBad = None,
    max_pixels: MaxPixels = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with an interrupted run.", metavar="RUN")] = None,
    val_split: Annotated[
        float | None, typer.Option(help="Share of each class held out, without a val split.  [default: 0.2]")
    ] = None,
    split_seed: Annotated[int | None, typer.Option(help="Which pictures these are.  [default: 0]")] = None,
    labels: Labels = None,
    unknown: Unknown = None,
) -> None:
    """Train a classifier on your pictures; everything lands in one run folder."""
    from mixwise.trainer import train as run
    from mixwise.training.settings import parse_changes

    run(
        data,
        model=model,
        out=output,
        recipe=recipe,
        changes=parse_changes(changes or []),
        epochs=epochs,
        batch_size=batch_size,
        image=image_size,
        seed=seed,
        device=device,
        compile=compile,
        pretrained=pretrained,
        on_bad=on_bad,
        max_pixels=max_pixels,
        resume=resume,
        labels=labels,
        val_split=val_split,
        split_seed=split_seed,
        unknown=unknown,
        console=out,
    )


@app.command()
def evaluate(
    model: Model,
    data: Annotated[str, typer.Argument(help="A folder, table, list, tar or array file, or built-in data.")],
    split: Annotated[str | None, typer.Option(help="train, val or test; default: test where there is one.")] = None,
    topk: Annotated[int, typer.Option(min=1)] = 5,
    batch_size: Annotated[int, typer.Option(min=1)] = 64,
    json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    on_bad: OnBad = None,
    max_pixels: MaxPixels = None,
    labels: Labels = None,
    unknown: Unknown = None,
    device: Device = "auto",
) -> None:
    """Score a model on labelled pictures: accuracy, per class, confusion, calibration."""
    from mixwise.config import MAX_PIXELS
    from mixwise.evaluation import evaluate as run

    with progress("evaluating", err) as report:
        result = run(
            model,
            data,
            split=split,
            topk=topk,
            batch_size=batch_size,
            labels=labels,
            unknown_classes=unknown or "error",
            device=device,
            on_bad=on_bad or "skip",
            max_pixels=max_pixels or MAX_PIXELS,
            progress=report,
        )
    if json:
        print(result.to_json())
    else:
        _print_evaluation(result)


@app.command()
def predict(
    model: Model,
    images: Annotated[
        list[str], typer.Argument(help="Pictures, or folders, lists, tables and tars of them.", metavar="IMAGES")
    ],
    topk: Annotated[int, typer.Option(min=1, help="How many classes to show.")] = 3,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    csv: Annotated[Path | None, typer.Option(help="Write a CSV file; - for standard output.")] = None,
    batch_size: Annotated[int, typer.Option(min=1)] = 32,
    max_pixels: MaxPixels = None,
    device: Device = "auto",
) -> None:
    """Name what is in pictures. A picture that cannot be read is a row with its reason; the exit code is then 1."""
    from mixwise.config import MAX_PIXELS
    from mixwise.files import replacing
    from mixwise.prediction import Predictor, find_images, to_json, write_csv

    if json and csv is not None:
        raise UsageError("--json and --csv are two forms of the same answers: choose one")
    predictor = Predictor(model, device=device, max_pixels=max_pixels or MAX_PIXELS)
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
    for error in result.bad:
        out.print(str(error), style="yellow", highlight=False, markup=False)
    if result.bad:
        count, total = len(result.bad), len(result.bad) + s.images
        out.print(
            f"{count} of {total} pictures could not be read: they are not scored", style="yellow", highlight=False
        )
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
