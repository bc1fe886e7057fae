"""What every verb shares: the application, where it prints, and how."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

import mixwise

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

WIDE = 100_000
"""Columns of a pipe or file, where rows of tables must stay whole for other programs."""

PICTURES = "Pictures"
"""The help panel of what is asked of the data."""

Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
Labels = Annotated[
    Path | None,
    typer.Option(help="Class names in order, and what other names mean.", metavar="FILE", rich_help_panel=PICTURES),
]
Unknown = Annotated[
    Literal["error", "drop"] | None,
    typer.Option(help="Classes that are not known: stop, or drop their pictures.", rich_help_panel=PICTURES),
]
Model = Annotated[Path, typer.Argument(help="A run folder or a .safetensors file.", metavar="RUN")]
OnBad = Annotated[
    str | None,
    typer.Option(
        help="Pictures that cannot be read: skip (named and left out) or error (stop).  (default: skip)",
        rich_help_panel=PICTURES,
    ),
]
MaxPixels = Annotated[
    int | None,
    typer.Option(
        min=1, help="Larger pictures, height × width, are not read.  (default: 67108864)", rich_help_panel=PICTURES
    ),
]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"mixwise {mixwise.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


@contextlib.contextmanager
def progress(what: str, console: Console) -> Iterator[Any]:
    """A callback (done, total) that draws a bar once the work has taken a second; silent on a pipe."""
    from rich.progress import Progress

    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def escape(text: str) -> str:
    """Text from outside, so that brackets in it are no styles."""
    import rich.markup

    return rich.markup.escape(text)
