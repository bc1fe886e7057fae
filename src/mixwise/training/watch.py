"""Warnings while a training runs: what looks wrong although nothing fails."""

from typing import Any

import pytorch_lightning as pl
from rich.console import Console

from mixwise.training.module import Trainable

FAR = 0.1
"""How far the averaged weights may be below the trained ones, as a share of 1."""
PATIENCE = 3
"""Validations in a row that they may be."""


class Watch(pl.Callback):
    """Tells, once each, of averaged weights far below the raw ones, and of a first validation without error."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.below = 0
        self.validations = 0

    def state_dict(self) -> dict[str, Any]:
        return {"below": self.below, "validations": self.validations}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.below, self.validations = state_dict["below"], state_dict["validations"]

    def on_validation_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        assert isinstance(module, Trainable)
        self.validations += 1
        values = {name: value for name, (_, value) in module.validated.items()}
        if self.validations == 1 and max(values.values()) == 1:
            self._warn(
                f"the first validation, after epoch {trainer.current_epoch + 1}, reached 100 % {module.task.metric}: "
                "either the task is very easy, or the answer stands in the pictures (a border, a date, the same "
                "picture in train and val)"
            )
        self.below = self.below + 1 if values.get("ema", 1) < values["raw"] - FAR else 0
        if self.below == PATIENCE:
            self._warn(
                f"the averaged weights were far below the trained ones in {PATIENCE} validations "
                f"({values['ema']:.1%} and {values['raw']:.1%} now): their decay {module.recipe.ema:g} is long for so "
                "few steps; the better weights are kept either way (--set recipe.ema=0 saves the work)"
            )

    def _warn(self, text: str) -> None:
        self.console.print(f"warning: {text}", style="yellow", highlight=False, markup=False)
