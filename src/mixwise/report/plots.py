"""Plots, as SVG text for pages and as PNG files."""

import io
import warnings
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mixwise.files import replacing
from mixwise.tasks.calibration import Bin

INK, ACCENT, SECOND, PALE = "#1c2733", "#1769aa", "#c4551d", "#9aa7b4"


def svg(figure: Figure) -> Markup:
    """A figure as an SVG element."""
    stream = io.StringIO()
    with warnings.catch_warnings(), matplotlib.rc_context({"svg.fonttype": "none", "font.family": "sans-serif"}):
        warnings.filterwarnings("ignore", message="Glyph")  # the browser has fonts for every script
        figure.savefig(stream, format="svg", bbox_inches="tight", transparent=True)
    text = stream.getvalue()
    return Markup(text[text.index("<svg") :])


def png(figure: Figure, path: Path) -> None:
    """A figure as a PNG file on white."""
    with replacing(path) as temporary, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")
        figure.savefig(temporary, format="png", bbox_inches="tight", dpi=150)


def curves(rows: Sequence[dict[str, str]], metric: str) -> Figure:
    """Loss and the task's metric over epochs, from the rows of metrics.csv."""
    figure = Figure(figsize=(9, 3.1))
    loss, other = figure.subplots(1, 2)
    names = {"train": "training", "raw_val": "validation", "ema_val": "validation, averaged weights"}
    styles = {"train": (PALE, "-"), "raw_val": (ACCENT, "-"), "ema_val": (SECOND, "-")}
    for key, name in names.items():
        for axes, what in ((loss, "loss"), (other, metric)):
            points = [(int(r["epoch"]), float(r[f"{key}_{what}"])) for r in rows if r.get(f"{key}_{what}")]
            if points:
                colour, line = styles[key]
                marker = "." if len(points) < 3 else None
                axes.plot(*zip(*points, strict=True), line, color=colour, label=name, linewidth=1.6, marker=marker)
    for axes, title in ((loss, "loss"), (other, metric)):
        axes.set_title(title, color=INK, fontsize=11)
        axes.set_xlabel("epoch", color=INK)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    other.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    if loss.lines:
        loss.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    return figure


def reliability(bins: Sequence[Bin]) -> Figure:
    """How often answers of about the same probability are right, and below how many there are."""
    figure = Figure(figsize=(4.6, 4.2))
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    means, counts = [each.probability for each in bins], [each.count for each in bins]
    upper.plot((0, 1), (0, 1), "--", color=PALE, linewidth=1.2, label="as it should be")
    # An area for a number: a bin of one answer is always at the top or the bottom, and says nothing.
    areas = [6 + 150 * count / max(counts) for count in counts]
    upper.scatter(means, [each.share for each in bins], areas, color=ACCENT, alpha=0.8, label="measured", clip_on=False)
    upper.set_ylim(0, 1.03)
    upper.set_ylabel("right", color=INK)
    upper.legend(frameon=False, fontsize=8)
    lower.bar(means, counts, width=0.04, color=PALE)
    lower.set_xlim(0, 1.03)
    lower.set_ylabel("answers", color=INK)
    lower.set_xlabel("probability", color=INK)
    for axes in (upper, lower):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    upper.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    figure.tight_layout()
    return figure


def confusion_matrix(counts: np.ndarray, names: Sequence[str], limit: int = 30) -> Figure:
    """Truth in rows, answers in columns, shaded by the share of the row; the `limit` most confused classes if more."""
    picked = np.arange(len(names))
    if len(names) > limit:
        wrong = counts.sum(1) + counts.sum(0) - 2 * counts.diagonal()
        picked = np.sort(np.argsort(-wrong, kind="stable")[:limit])
    shown = counts[np.ix_(picked, picked)]
    share = shown / np.maximum(1, counts[picked].sum(1, keepdims=True))
    side = max(3.2, 0.34 * len(picked) + 1.2)
    figure = Figure(figsize=(side, side))
    axes = figure.subplots()
    axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
    labels = [_short(names[int(i)]) for i in picked]
    axes.set_xticks(
        range(len(picked)), labels, rotation=60, ha="right", rotation_mode="anchor", parse_math=False, fontsize=8
    )
    axes.set_yticks(range(len(picked)), labels, parse_math=False, fontsize=8)
    axes.set_xlabel("answer", color=INK)
    axes.set_ylabel("truth", color=INK)
    for (row, column), count in np.ndenumerate(shown):
        if count:
            colour = "white" if share[row, column] > 0.5 else INK
            axes.text(column, row, str(count), ha="center", va="center", fontsize=7, color=colour)
    axes.spines[:].set_visible(False)
    if len(picked) < len(names):
        axes.set_title(f"the {len(picked)} of {len(names)} classes with the most mistakes", color=INK, fontsize=10)
    return figure


def _short(name: str, head: int = 20, tail: int = 12) -> str:
    """A name without its middle where it would leave the matrix no room; tables have it whole."""
    return name if len(name) <= head + tail + 1 else f"{name[:head]}…{name[-tail:]}"
