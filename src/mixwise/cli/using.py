"""The verbs that ask a trained model: evaluate, predict."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.cells import cell_len
from rich.table import Table
from typer.core import TyperCommand

from mixwise.cli.shared import Device, Labels, MaxPixels, Model, OnBad, Unknown, app, err, escape, out, progress
from mixwise.errors import UsageError

if TYPE_CHECKING:
    from mixwise.evaluation import Evaluation
    from mixwise.prediction import Prediction


class _Rejecting(TyperCommand):
    """`--reject` alone means the threshold that the model stores."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = list(args)
        for i, argument in reversed(list(enumerate(given))):
            if argument == "--reject" and (i + 1 == len(given) or _number(given[i + 1]) is None):
                given.insert(i + 1, "stored")
        return super().parse_args(ctx, given)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


Reject = Annotated[
    str | None,
    typer.Option(
        help="Withhold answers less probable than this; nothing behind it: than the model's own threshold.",
        metavar="[PROBABILITY]",
    ),
]


def _least(reject: str | None) -> Any:
    """What `Predictor` takes."""
    if reject is None or reject == "stored":
        return reject
    least = _number(reject)
    if least is None:
        raise UsageError(f"--reject takes a probability from 0 to 1, or nothing for the stored one; got {reject!r}")
    return least


@app.command(cls=_Rejecting)
def evaluate(
    model: Model,
    data: Annotated[str, typer.Argument(help="A folder, table, list, tar or array file, or built-in data.")],
    split: Annotated[str | None, typer.Option(help="train, val or test; default: test where there is one.")] = None,
    topk: Annotated[int | None, typer.Option(min=1, help="Of the top-k accuracy.  (default: 5)")] = None,
    reject: Reject = None,
    report: Annotated[
        Path | None, typer.Option(help="An empty folder for a page, tables and the confusion matrix.", metavar="FOLDER")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1)] = 64,
    json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    on_bad: OnBad = None,
    max_pixels: MaxPixels = None,
    labels: Labels = None,
    unknown: Unknown = None,
    device: Device = "auto",
) -> None:
    """Score a model on labelled pictures: accuracy and its interval, per class, confusion, calibration."""
    from mixwise.config import MAX_PIXELS
    from mixwise.evaluation import evaluate as run
    from mixwise.report.evaluation import check_folder, write_evaluation

    if report is not None:
        check_folder(report, data)
    with progress("evaluating", err) as step:
        result = run(
            model,
            data,
            split=split,
            topk=topk,
            reject=_least(reject),
            batch_size=batch_size,
            device=device,
            on_bad=on_bad or "skip",
            max_pixels=max_pixels or MAX_PIXELS,
            labels=labels,
            unknown_classes=unknown or "error",
            progress=step,
        )
    files = [] if report is None else write_evaluation(result, report)
    if json:
        print(result.to_json())
        return
    _print_evaluation(result)
    if report is not None:
        out.print(f"\n{', '.join(file.name for file in files)} in {report}", highlight=False, markup=False)


@app.command(cls=_Rejecting)
def predict(
    model: Model,
    images: Annotated[
        list[str], typer.Argument(help="Pictures, or folders, lists, tables and tars of them.", metavar="IMAGES")
    ],
    topk: Annotated[int, typer.Option(min=1, help="How many classes to show.")] = 3,
    probs: Annotated[bool, typer.Option("--probs", help="The probabilities of all classes.")] = False,
    reject: Reject = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    csv: Annotated[Path | None, typer.Option(help="Write a CSV file; - for standard output.")] = None,
    batch_size: Annotated[int, typer.Option(min=1)] = 32,
    max_pixels: MaxPixels = None,
    device: Device = "auto",
) -> None:
    """Name what is in pictures. A picture that cannot be read is a row with its reason; the exit code is then 1."""
    from mixwise.config import MAX_PIXELS
    from mixwise.files import check_output, check_outside, replacing
    from mixwise.prediction import Predictor, find_images, to_json, write_csv

    if json and csv is not None:
        raise UsageError("--json and --csv are two forms of the same answers: choose one")
    if csv is not None and str(csv) != "-":
        for image in images:
            check_output(csv, suffixes=(".csv",), source=Path(image), overwrite=True)
            check_outside(csv, image)
    predictor = Predictor(model, device=device, max_pixels=max_pixels or MAX_PIXELS, reject=_least(reject))
    found = find_images(images)
    topk = min(topk, len(predictor.classes))
    classes = predictor.classes if probs else ()
    count = _Count(len(found))
    with progress("predicting", err) as report:
        answers = count.over(predictor.stream(found, topk=max(topk, len(classes)), batch_size=batch_size), report)
        if csv is not None and str(csv) == "-":
            write_csv(answers, sys.stdout, topk, classes)
        elif csv is not None:
            with replacing(csv) as path, open(path, "w", encoding="utf-8", newline="") as file:
                write_csv(answers, file, topk, classes)
        elif json:
            for p in answers:
                print(to_json(p, predictor.id, topk, classes))
        else:
            rows = list(answers)
    if csv is not None and str(csv) != "-":
        out.print(f"{len(found)} rows in {csv}", highlight=False, markup=False)
    elif csv is None and not json:
        _print_predictions(rows)
    if reject is not None:
        least = f"the most probable class has less than {predictor.decision.reject:.1%}"
        err.print(f"{count.withheld} of {len(found)} pictures are {predictor.task.withheld}: {least}", highlight=False)
    if count.errors:
        err.print(f"{count.errors} of {len(found)} pictures could not be read", style="red", highlight=False)
        raise typer.Exit(1)


class _Count:
    """Errors and withheld answers among predictions that pass by."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.errors = 0
        self.withheld = 0

    def over(self, items: Iterator["Prediction"], report: Any) -> Iterator["Prediction"]:
        for done, item in enumerate(items, start=1):
            self.errors += bool(item.error)
            self.withheld += not item.error and not item.labels
            report(done, self.total)
            yield item


def _print_predictions(rows: list["Prediction"]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("image", "label", "probability", "next"):
        table.add_column(column, justify="right" if column == "probability" else "left", overflow="fold")
    for p in rows:
        if p.error:
            table.add_row(escape(p.image), "[red]–[/]", "", f"[red]{escape(p.error)}[/]")
            continue
        answer = dict(p.labels)
        rest = ", ".join(f"{escape(label)} {value:.1%}" for label, value in p.top if label not in answer)
        label, given = p.label or "–", f"{p.probability:.1%}" if answer else ""
        if len(answer) > 1:
            label, given = ", ".join(f"{name} {value:.1%}" for name, value in p.labels), ""
        table.add_row(escape(p.image), f"[bold]{escape(label)}[/]", given, rest)
    out.print(table, highlight=False)


def _print_evaluation(result: "Evaluation") -> None:
    s, decision = result.scores, result.predictor.decision
    for note in result.notes:
        out.print(f"note: {note}", highlight=False, markup=False)
    for error in result.bad:
        out.print(str(error), style="yellow", highlight=False, markup=False)
    if result.bad:
        count, total = len(result.bad), len(result.bad) + s.images
        out.print(
            f"{count} of {total} pictures could not be read: they are not scored", style="yellow", highlight=False
        )
    before = f"{result.uncalibrated:.2%} without the temperature {decision.temperature:.3g}"
    rows = [
        *s.summary(),
        ("loss", f"{s.loss:.4f}", ""),
        ("calibration error", f"{s.calibration_error:.2%}", before if decision.temperature != 1 else ""),
    ]
    width = max(len(what) for what, _, _ in rows)
    out.print(f"{s.images} pictures ({result.split})\n", highlight=False)
    for what, value, remark in rows:
        out.print(f"{what:<{width}}  {value:>7}{f'  ({remark})' if remark else ''}", highlight=False, markup=False)
    found = s.table()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, column in enumerate(found.columns):
        table.add_column(column, justify="right" if i else "left")
    for row in found.cells():
        table.add_row(*map(escape, row))
    out.print()
    out.print(table, highlight=False)
    if s.confusion is not None:
        _print_confusions(s.confusion, result.predictor.classes)


def _print_confusions(counts: Any, names: tuple[str, ...], limit: int = 8) -> None:
    """The confusion matrix of up to 12 classes where their names fit side by side, else its largest mistakes."""
    needed = sum(cell_len(name) + 2 for name in names) + max(map(cell_len, names))
    if len(names) <= 12 and needed <= out.width:
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
    if wrong:
        out.print("\n[bold]most frequent mistakes[/]")
    for count, i, j in sorted(wrong, reverse=True)[:limit]:
        out.print(f"{count:4d} × {escape(names[i])} taken for {escape(names[j])}", highlight=False)
