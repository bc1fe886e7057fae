"""`report.html` of a run."""

from pathlib import Path

from mixwise.config import Train
from mixwise.evaluation import Evaluation
from mixwise.files import write_text
from mixwise.report.page import page
from mixwise.training.run import Run


def write_report(run: Run, config: Train, found: Evaluation) -> Path:
    """Write report.html for the best weights of a run, from what they say about its validation pictures."""
    write_text(run.report_file, page(found, run.folder.name, settings=config, epochs=run.read_metrics()))
    return run.report_file
