"""What a run keeps while it trains: best and last weights, the table of metrics, and a state to resume from."""

import math
import time
from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl

from mixwise.errors import MixwiseError
from mixwise.training.module import Trainable
from mixwise.training.run import Row, Run
from mixwise.weights import Header, save


class Keeper(pl.Callback):
    """Writes the run folder at the end of epochs.

    The best weights are written whenever the task's metric on the validation pictures rises (on a tie, the lower loss
    wins). The last weights, the metrics and the resumable state are written at most every `interval` seconds and after
    the last epoch; all randomness is addressed by epoch and batch, so whatever a crash takes away is computed again,
    equal.
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
        self.started = self.saved = time.monotonic()

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        assert isinstance(module, Trainable)
        epoch, metric = trainer.current_epoch + 1, module.task.metric
        loss, value = module.take("train")
        if not math.isfinite(loss):
            kept = f"the best weights so far are kept in {self.run.best}" if self.rows else "nothing was learned yet"
            raise MixwiseError(
                f"training diverged in epoch {epoch}: the loss is {loss}. Try a lower learning rate "
                f"(--set recipe.optimizer.lr={module.recipe.optimizer.lr / 3:.2g}); {kept}"
            )
        row: Row = {"epoch": epoch, "lr": trainer.optimizers[0].param_groups[0]["lr"], "train_loss": round(loss, 6)}
        row[f"train_{metric}"] = round(value, 6)
        for name in module.candidates():
            measured = module.validated.get(name)
            row[f"{name}_val_loss"] = round(measured[0], 6) if measured else ""
            row[f"{name}_val_{metric}"] = round(measured[1], 6) if measured else ""
        row["seconds"] = round(self.elapsed(), 2)
        self.rows.append(row)
        if trainer.logger is not None:
            numbers = {k: float(v) for k, v in row.items() if v != "" and k != "epoch"}
            trainer.logger.log_metrics(numbers, step=epoch)
        self._keep_best(module, epoch)
        self._state(trainer, module)

    def _keep_best(self, module: Trainable, epoch: int) -> None:
        for name, (loss, value) in module.validated.items():
            if (value, -loss) > (self.best["value"], -self.best["loss"]):
                self.best = {"value": value, "loss": loss, "epoch": epoch, "weights": name}
                self._write(module, name, self.run.best, epoch, {f"val_{module.task.metric}": value, "val_loss": loss})

    def _write(self, module: Trainable, name: str, path: Any, epoch: int, metrics: dict[str, float]) -> None:
        header = self.header().model_copy(update={"weights": name, "epoch": epoch, "metrics": metrics})
        save(path, module.candidates()[name].state_dict(), header)

    def _state(self, trainer: pl.Trainer, module: Trainable) -> None:
        last = trainer.current_epoch + 1 == trainer.max_epochs or trainer.should_stop
        if not last and time.monotonic() - self.saved < self.interval:
            return
        self.run.write_metrics(self.rows)
        name = "ema" if module.ema is not None else "raw"
        loss, value = module.validated.get(name, (None, None))
        metrics = {} if loss is None or value is None else {f"val_{module.task.metric}": value, "val_loss": loss}
        self._write(module, name, self.run.last, trainer.current_epoch + 1, metrics)
        self.run.write_state(trainer.save_checkpoint)
        self.saved = time.monotonic()
