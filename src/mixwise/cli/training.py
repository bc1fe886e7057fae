"""The verbs about pictures: train, export-data."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from mixwise.cli.shared import Labels, MaxPixels, OnBad, Unknown, app, out


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
