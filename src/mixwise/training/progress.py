"""One line that moves: epoch, loss, metric, images per second and the time left."""

import time
from typing import Any

import pytorch_lightning as pl
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mixwise.training.module import Trainable


class ProgressLine(pl.callbacks.ProgressBar):
    """A rich progress bar over all epochs; on a pipe or in a log file, a plain line about every tenth of the run."""

    def __init__(self, console: Console, epochs: int, metric: str) -> None:
        super().__init__()
        self.console = console
        self.epochs = epochs
        self.metric = metric
        self.images = 0
        self.mark = 0.0
        self.shown = 0.0
        self.rate = 0.0
        self.value = float("nan")
        self.bar = Progress(
            TextColumn("epoch"),
            MofNCompleteColumn(),
            BarColumn(bar_width=24),
            TextColumn(
                "loss {task.fields[loss]}  val {task.fields[metric]} {task.fields[value]}  {task.fields[rate]} images/s"
            ),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = self.bar.add_task("", total=epochs, loss="–", metric=metric, value="–", rate="–")

    def disable(self) -> None:
        """Asked of all processes but the first, whose console is quiet already."""

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.bar.start()
        self.mark = time.monotonic()

    def on_train_epoch_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.mark, self.images = time.monotonic(), 0

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.images += len(batch[1]) * trainer.world_size
        now = time.monotonic()
        if now - self.shown < 0.25:
            return
        self.shown = now
        self.rate = self.images / max(1e-6, now - self.mark)
        if self.console.is_terminal:
            done = trainer.current_epoch + (batch_idx + 1) / trainer.num_training_batches
            self._show(int(done), self._loss(module))

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        assert isinstance(module, Trainable)
        epoch = trainer.current_epoch + 1
        if module.validated:
            self.value = max(value for _, value in module.validated.values())
        loss = self._loss(module)
        self._show(epoch, loss)
        if not self.console.is_terminal and (epoch % max(1, self.epochs // 10) == 0 or epoch == self.epochs):
            value = f"val {self.metric} {self._percent()}"
            text = f"epoch {epoch}/{self.epochs}  loss {loss}  {value}  {self.rate:.0f} images/s"
            self.console.print(text, highlight=False)

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.bar.stop()

    def on_exception(self, trainer: pl.Trainer, module: pl.LightningModule, exception: BaseException) -> None:
        self.bar.stop()

    def _loss(self, module: pl.LightningModule) -> str:
        assert isinstance(module, Trainable)
        total = module.sums.get("train")
        return "–" if total is None else f"{float(total[0] / total[1]):.3f}"

    def _percent(self) -> str:
        return "–" if self.value != self.value else f"{self.value:.1%}"

    def _show(self, epochs: int, loss: str) -> None:
        value, rate = self._percent(), f"{self.rate:.0f}"
        self.bar.update(self.task, completed=epochs, loss=loss, value=value, rate=rate)
