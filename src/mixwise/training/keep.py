"""What a run keeps while it trains: best and last weights, the table of metrics, and a state to resume from."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytorch_lightning as pl
from safetensors import SafetensorError

from mixwise.errors import MixwiseError
from mixwise.files import command
from mixwise.training.module import Trainable
from mixwise.training.run import Row, Run
from mixwise.weights import Header, save
from mixwise.weights.native import read_header


class Keeper(pl.Callback):
    """Writes the run folder at the end of epochs.

    The best weights are written whenever the task's metric on the validation pictures rises (on a tie, the lower loss
    wins); those whose validation loss is not finite are never the best. The last weights, the metrics and the resumable
    state are written after the first epoch, then at most every `interval` seconds, and after the last epoch; all
    randomness is addressed by epoch and batch, so whatever a crash takes away is computed again, equal. Of several
    processes the first one writes.
    """

    def __init__(self, run: Run, header: Callable[[], Header], interval: float) -> None:
        self.run = run
        self.header = header
        self.interval = interval
        self.rows: list[Row] = []
        self.best: dict[str, Any] = {"value": -1.0, "loss": math.inf, "epoch": 0, "weights": "raw"}
        self.saved = time.monotonic()
        self.started = time.monotonic()
        self.seconds = 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows, "best": self.best, "seconds": self.elapsed()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.rows, self.best, self.seconds = state_dict["rows"], state_dict["best"], state_dict["seconds"]

    def elapsed(self) -> float:
        """Seconds of training, over all sittings."""
        return self.seconds + time.monotonic() - self.started

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.started = time.monotonic()
        self.saved = self.started if self.rows else -math.inf

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        assert isinstance(module, Trainable)
        epoch, metric = trainer.current_epoch + 1, module.task.metric
        loss, value = module.take("train")
        row: Row = {"epoch": epoch, "lr": trainer.optimizers[0].param_groups[0]["lr"], "train_loss": round(loss, 6)}
        row[f"train_{metric}"] = round(value, 6)
        for name in module.candidates():
            measured = module.validated.get(name)
            row[f"{name}_val_loss"] = round(measured[0], 6) if measured else ""
            row[f"{name}_val_{metric}"] = round(measured[1], 6) if measured else ""
        row["seconds"] = round(self.elapsed(), 2)
        self.rows.append(row)
        with self.saving():
            if trainer.logger is not None:
                numbers = {k: float(v) for k, v in row.items() if v != "" and k != "epoch"}
                trainer.logger.log_metrics(numbers, step=epoch)
            self._keep_best(trainer, module, epoch)
            self._state(trainer, module)

    def on_exception(self, trainer: pl.Trainer, module: pl.LightningModule, exception: BaseException) -> None:
        """After Ctrl-C in the first epoch, the weights of the moment: every verb can use the run."""
        there = self.run.best.is_file() or self.run.last.is_file()
        if isinstance(exception, KeyboardInterrupt) and trainer.is_global_zero and not there:
            assert isinstance(module, Trainable)
            with self.saving():
                self._write(module, "raw", self.run.last, 0, {})

    def kept(self) -> str:
        """What there is of a run that stopped, as a sentence."""
        found = {path: read_header(path) for path in (self.run.best, self.run.last) if path.is_file()}
        if not found:
            return "Nothing was kept: no epoch was finished"
        best = found.get(self.run.best)
        if best is None:
            epoch = next(iter(found.values())).epoch
            last = self.run.last
            return f"Kept in {self.run.folder}: the weights after epoch {epoch}; --init {last} starts from them"
        said = f"the best weights so far (epoch {best.epoch}, {best.weights})"
        also = "" if self.run.last not in found else f" and those after epoch {found[self.run.last].epoch}"
        return f"Kept in {self.run.folder}: {said}{also}; --init {self.run.folder} starts from the best"

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """What goes wrong with a disk, as one sentence. Everything is written beside and renamed: nothing is lost."""
        try:
            yield
        except MixwiseError:
            raise
        except (OSError, RuntimeError, SafetensorError) as error:
            why = error.strerror or str(error) if isinstance(error, OSError) else str(error).splitlines()[0]
            raise MixwiseError(
                f"cannot write to {self.run.folder} ({why}); what was kept before is whole. When there is room again, "
                f"go on with: {command('mixwise', 'train', '--resume', self.run.folder)}"
            ) from None

    def _keep_best(self, trainer: pl.Trainer, module: Trainable, epoch: int) -> None:
        for name, (loss, value) in module.validated.items():
            if not math.isfinite(loss):
                continue
            if (0.0 if math.isnan(value) else value, -loss) > (self.best["value"], -self.best["loss"]):
                self.best = {"value": value, "loss": loss, "epoch": epoch, "weights": name}
                metrics = {f"val_{module.task.metric}": value, "val_loss": loss}
                if trainer.is_global_zero:
                    self._write(module, name, self.run.best, epoch, metrics)

    def _write(self, module: Trainable, name: str, path: Any, epoch: int, metrics: dict[str, float]) -> None:
        header = self.header().model_copy(update={"weights": name, "epoch": epoch, "metrics": metrics})
        save(path, module.candidates()[name].state_dict(), header)

    def _state(self, trainer: pl.Trainer, module: Trainable) -> None:
        last = trainer.current_epoch + 1 == trainer.max_epochs or trainer.should_stop
        due = last or time.monotonic() - self.saved >= self.interval
        if not trainer.strategy.broadcast(due):  # the clocks of several processes differ
            return
        self.saved = time.monotonic()
        if not trainer.is_global_zero:
            trainer.save_checkpoint(self.run.state)  # takes part and writes nothing
            return
        self.run.write_metrics(self.rows)
        name = "ema" if module.ema is not None else "raw"
        loss, value = module.validated.get(name, (None, None))
        metrics = {} if loss is None or value is None else {f"val_{module.task.metric}": value, "val_loss": loss}
        self._write(module, name, self.run.last, trainer.current_epoch + 1, metrics)
        self.run.write_state(trainer.save_checkpoint)
