"""A run on disk: one folder with everything that came of a training."""

import csv
import io
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console

from mixwise.config import Train
from mixwise.errors import MixwiseError, UsageError
from mixwise.files import check_outside, command, rotate, write_text
from mixwise.weights import BEST, LAST

Row = dict[str, float | int | str]
"""One line of metrics.csv."""


class Run:
    """The files of a run folder.

    model.safetensors (best), last.safetensors, config.toml, labels.csv, verdicts.jsonl, metrics.csv, report.html,
    tensorboard/, state.ckpt
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).expanduser()
        self.best = self.folder / BEST
        self.last = self.folder / LAST
        self.config_file = self.folder / "config.toml"
        self.verdicts_file = self.folder / "verdicts.jsonl"
        self.labels_file = self.folder / "labels.csv"
        self.metrics_file = self.folder / "metrics.csv"
        self.report_file = self.folder / "report.html"
        self.state = self.folder / "state.ckpt"
        self.previous_state = self.folder / "state.previous.ckpt"

    @classmethod
    def create(cls, folder: str | Path | None, name: str, data: str | Path) -> "Run":
        """A new, empty run folder outside `data`: `folder`, or runs/<name>-<n> with the first free n."""
        run = cls(free_folder(name) if folder is None else folder)
        run.check_new(data)
        try:
            run.folder.mkdir(parents=True, exist_ok=folder is not None)
        except FileExistsError:  # another training that starts at this moment was faster
            return cls.create(folder, name, data)
        return run

    def check_new(self, data: str | Path) -> None:
        """Refuse a place in `data`, or one that has something in it."""
        check_outside(self.folder, data)
        if self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
            raise UsageError(
                f"{self.folder} exists and is not empty; choose another --out, "
                f"or go on with it: --resume {command(self.folder)}"
            )

    @classmethod
    def existing(cls, folder: str | Path) -> "Run":
        """The run in `folder`, to be resumed."""
        run = cls(folder)
        if not run.config_file.is_file():
            raise MixwiseError(f"{run.folder} is not a run folder: it has no config.toml")
        return run

    @property
    def begun(self) -> bool:
        """Whether a training was started in it: there is more than what is written before the first step."""
        return any(
            path not in (self.config_file, self.verdicts_file, self.labels_file) for path in self.folder.iterdir()
        )

    def write_config(self, config: Train) -> None:
        """Write config.toml."""
        write_text(self.config_file, config.to_toml())

    def read_config(self) -> Train:
        """Read config.toml."""
        return Train.from_toml(self.config_file.read_text(encoding="utf-8"), str(self.config_file))

    def write_metrics(self, rows: list[Row]) -> None:
        """Write metrics.csv, one row an epoch."""
        text = io.StringIO()
        writer = csv.DictWriter(text, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_text(self.metrics_file, text.getvalue())

    def read_metrics(self) -> list[dict[str, str]]:
        """The rows of metrics.csv as text."""
        if not self.metrics_file.is_file():
            return []
        with open(self.metrics_file, encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    def write_state(self, write: Callable[[Path], object]) -> None:
        """Keep the resumable state of before as well: a damaged file never loses the run."""
        rotate(self.state, self.previous_state, write)


def free_folder(name: str) -> Path:
    """runs/<name>-<n> with the first free n."""
    taken = {p.name for p in Path("runs").glob(f"{name}-*")} if Path("runs").is_dir() else set()
    return Path("runs") / f"{name}-{next(n for n in range(1, len(taken) + 2) if f'{name}-{n}' not in taken)}"


def usable_state(run: Run, console: Console) -> Path | None:
    """The newest state that can be read: the last one, or the one before where the last is damaged."""
    for state in (run.state, run.previous_state):
        if not state.is_file():
            continue
        try:
            epoch = torch.load(state, map_location="cpu", weights_only=True)["epoch"] + 1
        except Exception as error:
            console.print(
                f"{state} cannot be read ({type(error).__name__}); trying the one before", highlight=False, markup=False
            )
            continue
        console.print(f"going on after epoch {epoch} ({state.name})", highlight=False)
        return state
    if run.begun:
        console.print("no state was saved yet: starting from the first epoch", highlight=False)
    return None
