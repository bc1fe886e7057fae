"""Ctrl-C and SIGTERM: the first one lets the step finish, the second one stops at once."""

import os
import signal
import threading
from typing import Any

import pytorch_lightning as pl
from rich.console import Console

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt(pl.Callback):
    """Turns the first signal into a `KeyboardInterrupt` between two batches, where the run folder is whole."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.asked = False
        self.before: dict[int, Any] = {}

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python allows no handlers
            self.before = {number: signal.signal(number, self._first) for number in SIGNALS}

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def on_exception(self, trainer: pl.Trainer, module: pl.LightningModule, exception: BaseException) -> None:
        for number in self.before:  # while Lightning cleans up; it puts back its callers' handlers afterwards
            signal.signal(number, self._second)

    def on_train_batch_start(self, trainer: pl.Trainer, module: Any, batch: Any, batch_idx: int) -> None:
        self._stop()

    def on_validation_batch_start(self, trainer: pl.Trainer, module: Any, *_: Any) -> None:
        self._stop()

    def _stop(self) -> None:
        if self.asked:
            raise KeyboardInterrupt

    def _first(self, number: int, frame: Any) -> None:
        self.asked = True
        for each in SIGNALS:
            signal.signal(each, self._second)
        self.console.print("\nstopping after this step; once more stops at once", highlight=False)

    def _second(self, number: int, frame: Any) -> None:
        os._exit(128 + number)
