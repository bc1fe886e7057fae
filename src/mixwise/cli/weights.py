"""The verbs about models and their files: info, reparam, resize, list, convert."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Table
from rich.text import Text

from mixwise.cli.shared import Model, app, err, out, progress
from mixwise.errors import UsageError
from mixwise.files import command

if TYPE_CHECKING:
    from mixwise.config import Decision, Preprocess

Force = Annotated[bool, typer.Option("--force", help="Replace OUT where it exists.")]


@app.command()
def info(model: Model, json: Annotated[bool, typer.Option("--json", help="Print the header as JSON.")] = False) -> None:
    """Show what a model file says about itself."""
    from mixwise.weights import info as read

    header = read(model)
    if json:
        print(header.to_json())
        return
    config = header.config
    epoch = "" if header.epoch is None else f", after epoch {header.epoch}"
    names = ", ".join(header.classes[:100]) + (", …" if len(header.classes) > 100 else "")
    rows = {
        "model": f"{config.name}, {config.form}",
        "task": header.task,
        "input": config.input,
        "preprocessing": _preprocessing(header.preprocess),
        "classes": f"{len(header.classes)}: {names}" if header.classes else "none stored",
        "weights": f"{header.weights}{epoch}",
        "decision": _decision(header.decision),
        "measured": ", ".join(f"{k} {v:.4f}" for k, v in header.metrics.items()) or "nothing",
        "made with": ", ".join(f"{k} {v}" for k, v in header.versions.items()),
    }
    if header.origin:
        rows["made from"] = header.origin
    _print_rows(list(rows.items()))


@app.command()
def reparam(
    model: Model,
    output: Annotated[Path, typer.Option("--out", "-o", help="The .safetensors file to write.")],
    images: Annotated[list[str] | None, typer.Option(help="What to compare on; default: digits.")] = None,
    force: Force = False,
) -> None:
    """Fold norms, scales and local branches into the layers beside them: equal outputs, fewer operators."""
    from mixwise.reparameterization import reparam as fold

    report = fold(model, output, images=images, overwrite=force)
    table = Table("", "before", "after", box=None, pad_edge=False)
    for name in ("parameters", "operators", "norms", "milliseconds"):
        before, after = (getattr(side, name) for side in (report.before, report.after))
        table.add_row(name, *(f"{v:,.1f}" if isinstance(v, float) else f"{v:,}" for v in (before, after)))
    out.print(table, highlight=False)
    out.print(
        f"largest |Δ|: {report.noise:.1e} on noise, {report.pictures:.1e} on {report.pictures_compared} pictures "
        f"(largest output {report.largest:.3g}); same first class: {report.same_top1:.1%}\n"
        f"written to {output}\nnext: {command('mixwise', 'predict', output, 'IMAGES')}",
        highlight=False,
        markup=False,
    )


@app.command()
def resize(
    model: Model,
    image_size: Annotated[str, typer.Option(metavar="HxW", help="Height x width in pixels, or one side.")],
    output: Annotated[Path, typer.Option("--out", "-o", help="The .safetensors file to write.")],
    method: Annotated[
        Literal["auto", "smooth", "expand"], typer.Option(help="smooth interpolates, expand makes the papers' copies.")
    ] = "auto",
    images: Annotated[list[str] | None, typer.Option(help="What to compare on; default: digits.")] = None,
    force: Force = False,
) -> None:
    """Carry a model's weights to another image size, and say how much its answers move on real pictures."""
    from mixwise.resizing import parse_size, resize_file

    made = resize_file(model, output, parse_size(image_size), method=method, images=images, overwrite=force)
    config, (before, after) = made.header.config, (f"{n / 1e6:.2f} M" for n in made.parameters)
    out.print(
        f"{config.name}: {made.before[0]}×{made.before[1]} → {made.after[0]}×{made.after[1]} pixels, "
        f"{before} → {after} parameters\n"
        f"on {made.pictures} pictures ({made.source}): same top-1 {made.same:.1%}, "
        f"mean |Δ logit| {made.change:.3g} where logits have a standard deviation of {made.spread:.3g}\n{output}",
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
    table.add_column("what mixes the tokens")
    with progress("counting parameters", err) as report:
        for done, name in enumerate(names):
            report(done, len(names))
            parameters, summary = describe(name)
            table.add_row(name, f"{parameters / 1e6:.2f} M", Text(summary, no_wrap=True, overflow="ellipsis"))
    out.print(table, highlight=False)


@app.command()
def convert(
    checkpoint: Annotated[
        Path | None, typer.Argument(help="Somebody's checkpoint, or with --to a model of ours.", metavar="CHECKPOINT")
    ] = None,
    output: Annotated[Path | None, typer.Option("--out", "-o", help="The file to write.", metavar="OUT")] = None,
    model: Annotated[
        str | None, typer.Option(help="The model, as NAME or NAME.TAG; otherwise found by its shapes.")
    ] = None,
    source: Annotated[str | None, typer.Option("--from", help="The format, otherwise found by its keys.")] = None,
    to: Annotated[str | None, typer.Option(help="Write a model of ours for others: timm, or a format.")] = None,
    image_size: Annotated[
        str | None, typer.Option(help="What the weights are for, where it is not the model's own.", metavar="HxW")
    ] = None,
    new_head: Annotated[int | None, typer.Option(min=1, help="Make a fresh head for so many classes.")] = None,
    weights: Annotated[
        Literal["raw", "ema"] | None, typer.Option(help="Which to take where the file has both.")
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(help="Class names in the order of the outputs, a line each or JSON.")
    ] = None,
    force: Force = False,
    list_formats: Annotated[bool, typer.Option("--list", help="List the formats and leave.")] = False,
) -> None:
    """Make a model file of somebody's checkpoint, or the other way round; all is checked before anything is written."""
    if list_formats:
        _print_formats()
        return
    if checkpoint is None or output is None:
        raise UsageError("`mixwise convert CHECKPOINT -o OUT` needs both; --list shows the formats")
    if to is not None:
        reading: dict[str, object] = {
            "--model": model,
            "--from": source,
            "--image-size": image_size,
            "--new-head": new_head,
        }
        reading |= {"--weights": weights, "--labels": labels}
        wrong = ", ".join(name for name, value in reading.items() if value is not None)
        if wrong:
            raise UsageError(f"--to writes the model as it is, without {wrong}")
        _convert_back(checkpoint, output, to, force)
        return
    from mixwise.labels import read_labels
    from mixwise.resizing import parse_size
    from mixwise.weights import convert as run

    made = run(
        checkpoint,
        output,
        model=model,
        source=source,
        image=None if image_size is None else parse_size(image_size),
        new_head=new_head,
        weights=weights,
        classes=() if labels is None else read_labels(labels).names,
        overwrite=force,
    )
    header = made.header
    count = sum(p.numel() for p in made.model.parameters())
    rows = [
        ("format", _about(made.format)),
        ("model", f"{header.config.name}, {count:,} parameters"),
        ("input", header.config.input),
        ("preprocessing", _preprocessing(header.preprocess)),
    ]
    rows += [("checked", said) for said in made.checks] + [("note", said) for said in made.notes]
    _print_rows([*rows, ("written", _written(output))])
    if header.task == "classify" and header.classes and header.preprocess is not None:
        out.print(f"\nnext:  {command('mixwise', 'predict', output, 'IMAGES')}", highlight=False, markup=False)


def _convert_back(model: Path, output: Path, to: str, force: bool) -> None:
    from mixwise.weights import convert_back

    made = convert_back(model, output, to=to, overwrite=force)
    rows = [
        ("format", _about(made.format)),
        ("model", f"{made.header.config.name}, {len(made.tensors)} tensors"),
        *[("checked", said) for said in made.checks],
        ("written", _written(output)),
    ]
    _print_rows(rows)
    if made.use:
        out.print(f"\nnext:  {made.use}", highlight=False, markup=False)


def _print_formats() -> None:
    from mixwise.weights import FORMATS

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("format", "whose files", "models"):
        table.add_column(column, no_wrap=column == "format", overflow="fold")
    for form in FORMATS.values():
        table.add_row(form.name, form.about, " ".join(form.presets))
    out.print(table, highlight=False, markup=False)


def _about(form: str) -> str:
    from mixwise.weights import FORMATS

    return f"{form}: {FORMATS[form].about}"


def _written(path: Path) -> str:
    return f"{path}, {path.expanduser().stat().st_size / 1e6:.1f} MB"


def _print_rows(rows: list[tuple[str, str]]) -> None:
    """Name and value side by side, a line each; a name that stands above is not repeated."""
    width, before = max(len(name) for name, _ in rows), ""
    for name, value in rows:
        out.print(f"{'' if name == before else name:<{width}}  {value}", highlight=False, markup=False)
        before = name


def _decision(decision: "Decision") -> str:
    parts = [f"temperature {decision.temperature:.3g}"]
    if decision.reject is not None:
        parts.append(f"--reject withholds answers below {decision.reject:.1%}")
    if decision.thresholds:
        parts.append(f"thresholds {min(decision.thresholds):.1%} to {max(decision.thresholds):.1%}")
    return ", ".join(parts)


def _preprocessing(pre: "Preprocess | None") -> str:
    if pre is None:
        return "none stored"
    crop = f" {pre.crop_pct:g}" if pre.fit == "crop" else ""
    return f"fit {pre.fit}{crop}, {pre.filter}, mean {_numbers(pre.mean)}, std {_numbers(pre.std)} on pixels 0–1"


def _numbers(values: tuple[float, ...]) -> str:
    return "(" + ", ".join(f"{v:.3f}" for v in values) + ")"
