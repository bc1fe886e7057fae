"""The verb about class names: classes."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from mixwise.cli.shared import app, escape, out
from mixwise.errors import UsageError


@app.command()
def classes(
    source: Annotated[str, typer.Argument(help="A run folder, a .safetensors file, or data.", metavar="RUN|DATA")],
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object of number and name.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print rows of number and name.")] = False,
    output: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write a .txt, .json or .csv that --labels reads.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file where it exists.")] = False,
) -> None:
    """Show which class name belongs to which number."""
    from mixwise.files import check_output, check_outside
    from mixwise.labels import SUFFIXES, as_csv, as_json, write_labels

    if json + csv + (output is not None) > 1:
        raise UsageError("--json, --csv and --out are three forms of the same list: choose one")
    if output is not None:
        check_output(output, suffixes=SUFFIXES, source=Path(source), overwrite=force)
        check_outside(output, source)
    names, notes, pictures = _classes(source)
    if output is not None:
        write_labels(output, names)
        out.print(f"{len(names)} names in {output}", highlight=False, markup=False)
    elif json or csv:
        print((as_json if json else as_csv)(names), end="")
    else:
        for note in notes:
            out.print(f"note: {note}", highlight=False, markup=False)
        _print_classes(names, pictures)


def _classes(source: str) -> tuple[tuple[str, ...], tuple[str, ...], dict[str, list[int]]]:
    """(names, notes, pictures of each class by split) of a model or of data."""
    from mixwise.weights.resolve import is_model

    if is_model(source):
        from mixwise.weights import info

        return info(source).classes, (), {}
    from mixwise.data import discover
    from mixwise.data.listing import counts

    catalog = discover(source, split_single=False)
    found = {name: counts(items, len(catalog.classes)) for name, items in catalog.splits.items()}
    return catalog.classes, catalog.notes, {name: [int(n) for n in numbers] for name, numbers in found.items()}


def _print_classes(names: tuple[str, ...], pictures: dict[str, list[int]]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("index", "name", *pictures):
        table.add_column(column, justify="left" if column == "name" else "right")
    for i, name in enumerate(names):
        table.add_row(str(i), escape(name), *(str(found[i]) for found in pictures.values()))
    out.print(table, highlight=False)
