"""The page of `mixwise check --html`: what is there and what was found, with thumbnails, in one file."""

from pathlib import Path

import jinja2

from mixwise.config import Preprocess
from mixwise.data import BadImage
from mixwise.files import write_text
from mixwise.report.page import thumbnail
from mixwise.screening import Check, Finding

SHOWN = 24
"""Thumbnails of one finding at most."""

_VIEW = Preprocess(image=(96, 96), mean=(0.5,) * 3, std=(0.5,) * 3)


def write_page(path: Path, result: Check) -> None:
    """Write what `check` found as a page that needs no other file."""
    loader = jinja2.PackageLoader("mixwise.report", "templates")
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    counts = result.summary.splits.values()
    totals = {name: sum(split[name] for split in counts) for name in result.summary.classes}
    page = environment.get_template("check.html").render(
        result=result,
        summary=result.summary,
        readable=sum(result.summary.pictures.values()),
        totals=totals,
        largest=max(totals.values(), default=0),
        findings=[(finding, _tiles(result, finding)) for finding in result.findings],
        shown=SHOWN,
    )
    write_text(path, page)


def _tiles(result: Check, finding: Finding) -> list[list[tuple[str, str, str]]]:
    """For each group (name, thumbnail or nothing, why there is none), as many as fit on the page."""
    by_name = {picture.name: picture for picture in result.pictures}
    below = Path(result.data)  # what no split uses is named by its path there
    tiles = []
    for group in finding.groups[:SHOWN]:
        row = []
        for name in group[:SHOWN]:
            picture = by_name.get(name)
            if picture is not None and picture.verdict.reason:
                row.append((name, "", picture.verdict.detail))
                continue
            try:
                row.append((name, thumbnail(str(below / name) if picture is None else picture.source, _VIEW, 96), ""))
            except BadImage as error:
                row.append((name, "", error.detail))
        tiles.append(row)
    return tiles
