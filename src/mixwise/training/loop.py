"""pytorch-lightning set up for any model and loader: the loop knows nothing of mixers."""

import contextlib
import logging
import math
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping
from pytorch_lightning.loggers import TensorBoardLogger
from pytorch_lightning.plugins.environments import LightningEnvironment
from pytorch_lightning.strategies import DDPStrategy
from rich.console import Console
from torch import Tensor, nn
from torch.utils.data import DataLoader

from mixwise.config import Recipe
from mixwise.device import Precision
from mixwise.errors import MixwiseError
from mixwise.tasks import Task
from mixwise.training.interrupt import Interrupt
from mixwise.training.module import Trainable


def validation_interval(recipe: Recipe, train_images: int, val_images: int) -> int:
    """Epochs between validations, so that they cost at most about a tenth of the training; a divisor of the epochs."""
    cost = val_images * (2 if recipe.ema else 1) / 3
    wanted = max(1, math.ceil(cost / max(1.0, 0.1 * train_images)))
    return max(k for k in range(1, wanted + 1) if recipe.epochs % k == 0)


def fit(
    model: nn.Module,
    train_loader: DataLoader,
    val_loader: DataLoader,
    recipe: Recipe,
    *,
    task: Task,
    classes: int,
    seed: int,
    device: str,
    precision: Precision,
    console: Console,
    compile: bool = False,
    devices: int = 1,
    deterministic: bool = False,
    weight: Tensor | None = None,
    names: Sequence[str] = (),
    callbacks: list[pl.Callback] | None = None,
    log_dir: Path | None = None,
    resume: Path | None = None,
    interval: int = 1,
) -> Trainable:
    """Train `model` in place by `recipe`; returns the trained module with its running average.

    Args:
        console: where sentences go.
        devices: processes that train together; this is one of them where there are several (see `processes.launch`).
        deterministic: only operations that give the same result every time.
        weight, names: as `Trainable` takes them.
        interval: epochs between validations.
        resume: a state written by `Keeper`, to go on from.

    Raises `KeyboardInterrupt` after Ctrl-C or SIGTERM, `DivergenceError` where numbers are no longer finite,
    `MixwiseError` where the state is of other settings.
    """
    quieten()

    def say(line: str) -> None:
        console.print(line, style="yellow", highlight=False, markup=False)

    steps = math.ceil(len(train_loader) / recipe.accumulate) * recipe.epochs
    module = Trainable(
        model,
        task,
        recipe,
        classes,
        steps=steps,
        seed=seed,
        compile=compile,
        weight=weight,
        images=len(train_loader.dataset),  # type: ignore[arg-type]
        names=names,
        say=say,
    )
    interrupt = Interrupt(console)
    extra: list[pl.Callback] = [interrupt, *(callbacks or [])]
    if recipe.patience:
        extra.append(_patience(recipe, task, interval))
    trainer = pl.Trainer(
        accelerator={"cuda": "gpu"}.get(device, device),
        precision=precision.lightning,  # type: ignore[arg-type]
        max_epochs=recipe.epochs,
        devices=devices,
        # Buffers are agreed on at the end of an epoch by the module: validation may have fewer batches on one process.
        strategy=DDPStrategy(broadcast_buffers=False) if devices > 1 else "auto",
        plugins=[LightningEnvironment()] if devices > 1 else None,
        check_val_every_n_epoch=interval,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        logger=TensorBoardLogger(log_dir, name="", version="tensorboard") if log_dir else False,
        log_every_n_steps=10**9,
        callbacks=extra,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=any(isinstance(c, pl.callbacks.ProgressBar) for c in extra),
    )
    try:
        with determined() if deterministic else contextlib.nullcontext():
            trainer.fit(module, train_loader, val_loader, ckpt_path=resume, weights_only=True)
    except SystemExit:  # what Lightning makes of Ctrl-C
        raise KeyboardInterrupt from None
    except (RuntimeError, ValueError) as error:
        if interrupt.asked:  # the signal went to the whole group, and a loader process or another rank was faster
            raise KeyboardInterrupt from None
        if resume is not None and "state dict" in str(error).replace("_", " "):
            raise MixwiseError(
                f"{resume} does not fit the config.toml beside it, which must have been edited since: put it back as "
                "it was; other settings need a new run, which may start from the weights of this one (--init)"
            ) from None
        raise
    return module


class Patience(EarlyStopping):
    """Early stopping that stays stopped: a run that is resumed after it came to its end is not trained further."""

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        trainer.should_stop = self.wait_count >= self.patience


def _patience(recipe: Recipe, task: Task, interval: int) -> Patience:
    """Stops at validation end, so that it has decided before `Keeper` writes the state of the epoch."""
    on_loss = recipe.patience_on == "loss"
    return Patience(
        "val_loss" if on_loss else f"val_{task.metric}",
        mode="min" if on_loss else "max",
        min_delta=recipe.min_delta,
        patience=math.ceil(recipe.patience / interval),
        check_on_train_epoch_end=False,
    )


@contextlib.contextmanager
def determined() -> Iterator[None]:
    """Only operations that give the same result every time; `MixwiseError` names one that cannot."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS asks for
    before = torch.are_deterministic_algorithms_enabled()
    benchmark = torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    except RuntimeError as error:
        if "determinis" not in str(error):
            raise
        what = str(error).partition(".")[0].partition(", but")[0]
        raise MixwiseError(f"--deterministic: {what}; train without it, or with another model") from None
    finally:
        torch.use_deterministic_algorithms(before)
        torch.backends.cudnn.benchmark = benchmark


def quieten() -> None:
    """Keep Lightning's advertisements and known harmless warnings off the user's terminal."""
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    harmless = ["many workers", "number of training batches", "in eval mode at the start", "treespec, LeafSpec"]
    harmless += ["sync_dist=True", "lr_scheduler.step", "find_unused_parameters"]
    for text in harmless:
        warnings.filterwarnings("ignore", message=f".*{text}.*")
