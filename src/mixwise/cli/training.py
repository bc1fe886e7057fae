"""The verbs about pictures: train, export-data."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from mixwise.cli.shared import PICTURES, Labels, MaxPixels, OnBad, Unknown, app, out
from mixwise.errors import UsageError


class _Train(TyperCommand):
    """`--pretrained` alone means the public weights of the model."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = list(args)
        for i, argument in reversed(list(enumerate(given))):
            if argument == "--pretrained" and (i + 1 == len(given) or given[i + 1].startswith("-")):
                given.insert(i + 1, "yes")
        return super().parse_args(ctx, given)


WEIGHTS, TRAINING, MACHINE = "Model and weights", "Training", "Machine and run"


@app.command(cls=_Train)
def train(
    data: Annotated[
        str | None, typer.Argument(help="A folder, table, list, tar or array file, or built-in data: digits.")
    ] = None,
    image_size: Annotated[int | None, typer.Option(min=1, help="Side in pixels.", rich_help_panel=PICTURES)] = None,
    kfold: Annotated[
        int | None,
        typer.Option(min=2, help="Cross-validation: so many trainings, and a table.", rich_help_panel=PICTURES),
    ] = None,
    val_split: Annotated[
        float | None,
        typer.Option(
            help="Share of each class held out, without a val split.  (default: 0.2)", rich_help_panel=PICTURES
        ),
    ] = None,
    split_seed: Annotated[
        int | None, typer.Option(help="Which pictures these are.  (default: 0)", rich_help_panel=PICTURES)
    ] = None,
    labels: Labels = None,
    unknown: Unknown = None,
    on_bad: OnBad = None,
    max_pixels: MaxPixels = None,
    model: Annotated[
        str | None, typer.Option(help="A name from `mixwise list`, or auto.  (default: auto)", rich_help_panel=WEIGHTS)
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
            help="Rare classes count as much as common ones: none, loss or sampler.  (default: none)",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Same seed, same weights.  (default: 0)", rich_help_panel=TRAINING)
    ] = None,
    recipe: Annotated[Path | None, typer.Option(help="A TOML file with settings.", rich_help_panel=TRAINING)] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", help="One setting: path=value. Repeatable.", rich_help_panel=TRAINING),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="auto, cpu, cuda or mps.  (default: auto)", rich_help_panel=MACHINE)
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
        on_bad=on_bad,
        max_pixels=max_pixels,
        val_split=val_split,
        split_seed=split_seed,
        unknown=unknown,
    ) | parse_changes(changes or [])
    if kfold is not None and resume is not None:
        raise UsageError("--resume goes on with the folds that were begun: give no --kfold with it")
    if kfold is None and not (resume is not None and is_cross_validation(resume)):
        run(data, out=output, recipe=recipe, changes=settings, labels=labels, resume=resume, console=out)
    else:
        cross_validate(
            data,
            kfold or 0,
            out=output,
            recipe=recipe,
            changes=settings,
            labels=labels,
            resume=resume,
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
