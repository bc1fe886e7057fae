"""The verb that looks before anything is trained: check."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from mixwise.cli.shared import Labels, MaxPixels, OnBad, Unknown, app, err, escape, out, progress

if TYPE_CHECKING:
    from mixwise.screening import Check
    from mixwise.screening.check import Summary

_MARKS = {"stop": "[red]stop[/]", "warning": "[yellow]warning[/]", "note": "[dim]note[/]"}

_CLASSES = 24
"""More classes than this are shown by their largest and smallest."""


@app.command()
def check(
    data: Annotated[str, typer.Argument(help="A folder of classes or of splits, or built-in data: digits.")],
    html: Annotated[Path | None, typer.Option(help="Write a page with thumbnails of what was found.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    near: Annotated[bool, typer.Option("--near", help="Look for pictures that look alike, too: a hint.")] = False,
    cache: Annotated[
        Path | None, typer.Option(help="Keep what was seen in FILE; what has not changed is not read again.")
    ] = None,
    labels: Labels = None,
    unknown: Unknown = None,
    on_bad: OnBad = None,
    max_pixels: MaxPixels = None,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as well: exit code 1.")] = False,
) -> None:
    """Say what is in a folder of pictures, what is wrong, and what training would do. Exit code 1: it would stop."""
    from mixwise.config import Data
    from mixwise.screening import check as run
    from mixwise.screening.check import check_beside

    if html is not None:
        check_beside(html, data, (".html", ".htm"))
    given = {"unknown": unknown, "on_bad": on_bad, "max_pixels": max_pixels}
    settings = Data.parse({"source": data} | {name: value for name, value in given.items() if value is not None})
    with progress("checking", err) as report:
        result = run(data, near=near, cache=cache, settings=settings, labels=labels, progress=report)
    if html is not None:
        from mixwise.report.check import write_page

        write_page(html, result)
    if json:
        print(result.to_json())
    else:
        _print(result)
        if html is not None:
            out.print(f"page     {html}", highlight=False, markup=False)
    if not (result.clean if strict else result.runs):
        raise typer.Exit(1)


def _print(result: "Check") -> None:
    if result.summary.classes:
        _print_summary(result.data, result.summary)
    for note in result.notes:
        out.print(f"         {note}", highlight=False, markup=False)
    if result.findings:
        _print_findings(result)
    else:
        out.print("\nnothing wrong was found", highlight=False)
    verdict = "[bold]training would run[/]" if result.runs else "[bold red]training would stop[/]"
    out.print(f"\n{verdict}", highlight=False)


def _print_summary(data: str, s: "Summary") -> None:
    from mixwise.data.listing import counted

    readable = sum(s.pictures.values())
    classes = counted(len(s.classes), "class")
    out.print(f"data     {escape(data)}: {readable:,} pictures that can be read, {classes}\n", highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("class")
    for split in s.splits:
        table.add_column(split, justify="right")
    for name, cells in _rows(s):
        table.add_row(escape(name), *cells)
    table.add_row("[bold]all[/]", *(f"[bold]{count:,}[/]" for count in s.pictures.values()))
    out.print(table, highlight=False)
    if s.height and s.width and s.bytes:
        low, middle, high = (f"{h:.0f} × {w:.0f}" for h, w in zip(s.height, s.width, strict=True))
        small, usual, large = (_size(value) for value in s.bytes)
        mean, std = (", ".join(f"{value:.3f}" for value in values) for values in (s.mean, s.std))
        out.print(
            f"\nsizes    least {low}, median {middle}, largest {high} (height × width, each by itself)\n"
            f"files    {small} to {large}, median {usual}\n"
            f"formats  {_counts(s.formats)}\nmodes    {_counts(s.modes)}\n"
            f"colours  mean {mean}; standard deviation {std} (red, green, blue; 0 to 1)",
            highlight=False,
        )


def _rows(s: "Summary") -> Iterable[tuple[str, list[str]]]:
    """Classes with their counts; of many classes the smallest and the largest."""

    def cells(name: str) -> list[str]:
        return [f"{counts[name]:,}" if counts[name] else "–" for counts in s.splits.values()]

    if len(s.classes) <= _CLASSES:
        return [(name, cells(name)) for name in s.classes]
    ranked = sorted(s.classes, key=lambda name: (-sum(counts[name] for counts in s.splits.values()), name))
    hidden = (f"… {len(ranked) - 16} more", ["…"] * len(s.splits))
    return [*((n, cells(n)) for n in ranked[:8]), hidden, *((n, cells(n)) for n in ranked[-8:])]


def _print_findings(result: "Check", limit: int = 6) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in ("", "found", "training"):
        table.add_column(column, overflow="fold", ratio=None if not column else 3 if column == "found" else 2)
    why = {picture.name: f": {picture.verdict.detail}" for picture in result.pictures if picture.verdict.detail}
    for finding in result.findings:
        sign = " = " if finding.kind.startswith("same") else " ~ "
        shown = [escape(sign.join(name + why.get(name, "") for name in group)) for group in finding.groups[:limit]]
        if len(finding.groups) > limit:
            shown.append(f"… {len(finding.groups) - limit} more")
        places = "".join(f"\n[dim]{place}[/]" for place in shown)
        table.add_row(_MARKS[finding.level], f"{escape(finding.text)}{places}", escape(finding.action))
    out.print()
    out.print(table, highlight=False)


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def _size(count: float) -> str:
    return (
        f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB" if count >= 1e3 else f"{count:.0f} bytes"
    )
