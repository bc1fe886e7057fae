"""The command line: one function a verb; each parses, calls one library function, and prints.

Nothing here imports torch before a verb runs, so `mixwise --help` answers at once.
"""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from mixwise.errors import MixwiseError, UsageError

if TYPE_CHECKING:
    from mixwise.evaluation import Evaluation
    from mixwise.prediction import Prediction

app = typer.Typer(
    name="mixwise",
    help="Vision backbones that mix tokens without self-attention: train, evaluate, predict.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
out = Console(soft_wrap=True)
err = Console(stderr=True, soft_wrap=True)

Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
Model = Annotated[Path, typer.Argument(help="A run folder or a .safetensors file.", metavar="RUN")]


@app.command()
def train(
    data: Annotated[
        str | None, typer.Argument(help="A folder of classes or of splits, or built-in data: digits.")
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
    resume: Annotated[Path | None, typer.Option(help="Go on with an interrupted run.", metavar="RUN")] = None,
) -> None:
    """Train a classifier on your pictures; everything lands in one run folder."""
    from mixwise.trainer import parse_changes
    from mixwise.trainer import train as run

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
        resume=resume,
        console=out,
    )


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

    with _progress("evaluating", err) as progress:
        result = run(model, data, split=split, topk=topk, batch_size=batch_size, device=device, progress=progress)
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
    with _progress("predicting", err) as progress:
        answers = _counted(predictor.stream(found, topk=topk, batch_size=batch_size), len(found), progress)
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
def info(model: Model, json: Annotated[bool, typer.Option("--json", help="Print the header as JSON.")] = False) -> None:
    """Show what a model file says about itself."""
    from mixwise.weights import info as read

    header = read(model)
    if json:
        print(header.to_json())
        return
    config, pre = header.config, header.preprocess
    table = Table.grid(padding=(0, 2))
    rows = {
        "model": f"{config.name}, {config.form}",
        "task": header.task,
        "input": config.input,
        "preprocessing": "none stored"
        if pre is None
        else f"fit {pre.fit}, {pre.filter}, mean {_numbers(pre.mean)}, std {_numbers(pre.std)} on pixels 0–1",
        "classes": f"{len(header.classes)}: {', '.join(header.classes)}",
        "weights": f"{header.weights}, after epoch {header.epoch}",
        "measured": ", ".join(f"{k} {v:.4f}" for k, v in header.metrics.items()) or "nothing",
        "made with": ", ".join(f"{k} {v}" for k, v in header.versions.items()),
    }
    for name, value in rows.items():
        table.add_row(name, value, style=None)
    out.print(table, highlight=False, markup=False)


@app.command()
def reparam(
    model: Model,
    output: Annotated[Path, typer.Option("--out", "-o", help="The .safetensors file to write.")],
    images: Annotated[list[str] | None, typer.Option(help="What to compare on; default: digits.")] = None,
) -> None:
    """Fold norms, scales and local branches into the layers beside them: equal outputs, fewer operators."""
    from mixwise.reparameterization import reparam as fold

    report = fold(model, output, images=images)
    table = Table("", "before", "after", box=None, pad_edge=False)
    for name in ("parameters", "operators", "norms", "milliseconds"):
        before, after = (getattr(side, name) for side in (report.before, report.after))
        table.add_row(name, *(f"{v:,.1f}" if isinstance(v, float) else f"{v:,}" for v in (before, after)))
    out.print(table, highlight=False)
    out.print(
        f"largest |Δ|: {report.noise:.1e} on noise, {report.pictures:.1e} on {report.pictures_compared} pictures "
        f"(largest output {report.largest:.3g}); same first class: {report.same_top1:.1%}\n"
        f"written to {output}\nnext: mixwise predict {output} IMAGES",
        highlight=False,
        markup=False,
    )


@app.command("list")
def list_(
    pattern: Annotated[str, typer.Argument(help="A shell pattern, such as 'pool*'.")] = "*",
    json: Annotated[bool, typer.Option("--json", help="Print the names as a JSON list.")] = False,
) -> None:
    """List the models by name."""
    import json as encoder

    from mixwise.models import describe, list_models

    names = list_models(pattern)
    if not names:
        raise UsageError(f"no model matches {pattern!r}; `mixwise list` shows all")
    if json:
        print(encoder.dumps(names))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("model", no_wrap=True, min_width=max(map(len, names)))
    table.add_column("parameters", justify="right", no_wrap=True, min_width=10)
    table.add_column("what mixes the tokens", no_wrap=True, overflow="ellipsis")
    for name in names:
        parameters, summary = describe(name)
        table.add_row(name, f"{parameters / 1e6:.2f} M", summary)
    out.print(table, highlight=False)


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


def _numbers(values: tuple[float, ...]) -> str:
    return "(" + ", ".join(f"{v:.3f}" for v in values) + ")"


@contextlib.contextmanager
def _progress(what: str, console: Console) -> Iterator[Any]:
    """A callback (done, total) that draws a bar once the work has taken a second; silent on a pipe."""
    from rich.progress import Progress

    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _counted(items: Iterator["Prediction"], total: int, progress: Any) -> Iterator["Prediction"]:
    for done, item in enumerate(items, start=1):
        progress(done, total)
        yield item


def _print_predictions(rows: list["Prediction"]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("image", "label", "probability", "next"):
        table.add_column(column, justify="right" if column == "probability" else "left", overflow="fold")
    for p in rows:
        if p.error:
            table.add_row(_escape(p.image), "[red]–[/]", "", f"[red]{_escape(p.error)}[/]")
        else:
            rest = ", ".join(f"{_escape(label)} {value:.1%}" for label, value in p.top[1:])
            table.add_row(_escape(p.image), f"[bold]{_escape(p.label)}[/]", f"{p.probability:.1%}", rest)
    out.print(table, highlight=False)


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


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
        table.add_row(_escape(c.name), str(c.support), *cells)
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
            table.add_column(_escape(name), justify="right")
        for i, name in enumerate(names):
            cells = [f"[bold]{n}[/]" if i == j else str(n) if n else "·" for j, n in enumerate(counts[i])]
            table.add_row(_escape(name), *cells)
        out.print()
        out.print(table, highlight=False)
        return
    wrong = [(int(counts[i, j]), i, j) for i in range(len(names)) for j in range(len(names)) if i != j and counts[i, j]]
    out.print("\n[bold]most frequent mistakes[/]")
    for count, i, j in sorted(wrong, reverse=True)[:limit]:
        out.print(f"{count:4d} × {_escape(names[i])} taken for {_escape(names[j])}", highlight=False)


def main() -> None:
    """Run the command line; errors become one sentence and an exit code: 2 for usage, 1 for failure."""
    try:
        app()
    except MixwiseError as error:
        err.print(f"[red]error:[/] {_escape(str(error))}", highlight=False)
        raise SystemExit(error.exit_code) from None
    except (OSError, UnicodeDecodeError) as error:
        err.print(f"[red]error:[/] {_escape(str(error))}", highlight=False)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        err.print("interrupted", highlight=False)
        raise SystemExit(130) from None
