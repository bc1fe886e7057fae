"""`mixwise evaluate --report FOLDER`: a page, tables for other programs, and the confusion matrix as a picture."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from mixwise.errors import UsageError
from mixwise.evaluation import Evaluation
from mixwise.files import check_outside, replacing, write_text
from mixwise.prediction import cells, columns
from mixwise.report.page import page
from mixwise.report.plots import confusion_matrix, png


def check_folder(folder: Path, data: str | Path) -> None:
    """Refuse, before any work is done, a folder that has something in it, or that lies in the pictures' folder."""
    place = folder.expanduser().resolve()
    check_outside(folder, data)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise UsageError(f"{folder} exists and is not an empty folder; choose another place for the report")


def write_evaluation(found: Evaluation, folder: str | Path) -> list[Path]:
    """Write report.html, per_class.csv, predictions.csv, and with one label a picture confusion.csv and confusion.png.

    predictions.csv has the columns of `mixwise predict --csv --probs`, then `truth`, and `right`: 1, 0, or nothing
    for a withheld answer.

    Returns: the files. Raises `UsageError` where the folder is not empty or lies in the folder of the pictures.
    """
    folder = Path(folder).expanduser()
    check_folder(folder, found.source)
    table, names = found.scores.table(), found.predictor.classes
    files = [folder / "report.html", folder / "per_class.csv", folder / "predictions.csv"]
    write_text(files[0], page(found, found.source))
    _write_rows(files[1], table.columns, [["" if v != v else v for v in row] for row in table.rows])
    _write_rows(files[2], [*columns(0, names), "truth", "right"], _answers(found))
    if found.scores.confusion is not None:
        files += [folder / "confusion.csv", folder / "confusion.png"]
        counts = zip(names, found.scores.confusion.tolist(), strict=True)
        _write_rows(files[3], ["truth \\ answer", *names], ([name, *row] for name, row in counts))
        png(confusion_matrix(found.scores.confusion, names), files[4])
    return files


def _answers(found: Evaluation) -> Iterable[list[Any]]:
    predictor, names = found.predictor, found.predictor.classes
    truths = predictor.task.labels(found.target, names)
    for name, truth, row in zip(found.items.names, truths, found.probabilities, strict=True):
        p = predictor.prediction(name, row, len(names))
        answer = dict(p.labels)
        given = ";".join(label for label in names if label in answer)
        withheld = predictor.task.withheld and not answer
        yield [*cells(p, 0, names), truth, "" if withheld else int(given == truth)]


def _write_rows(path: Path, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(head)
        writer.writerows(rows)
