"""pytorch-lightning set up for any model and loader: the loop knows nothing of mixers."""

import logging
import math
import warnings
from pathlib import Path

import pytorch_lightning as pl
from pytorch_lightning.callbacks import EarlyStopping
from pytorch_lightning.loggers import TensorBoardLogger
from torch import nn
from torch.utils.data import DataLoader

from mixwise.config import Recipe
from mixwise.device import Precision
from mixwise.tasks import Task
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
    compile: bool = False,
    callbacks: list[pl.Callback] | None = None,
    log_dir: Path | None = None,
    resume: Path | None = None,
    interval: int = 1,
) -> Trainable:
    """Train `model` in place by `recipe`; returns the trained module with its running average.

    Args:
        interval: epochs between validations.
        resume: a state written by `Keeper`, to go on from.
    """
    quieten()
    steps = math.ceil(len(train_loader) / recipe.accumulate) * recipe.epochs
    module = Trainable(model, task, recipe, classes, steps=steps, seed=seed, compile=compile)
    extra: list[pl.Callback] = list(callbacks or [])
    if recipe.patience:
        # At validation end, so that it has decided before `Keeper` writes the state of the epoch.
        patience = math.ceil(recipe.patience / interval)
        stop = EarlyStopping(f"val_{task.metric}", mode="max", patience=patience, check_on_train_epoch_end=False)
        extra.append(stop)
    trainer = pl.Trainer(
        accelerator={"cuda": "gpu"}.get(device, device),
        precision=precision.lightning,  # type: ignore[arg-type]
        max_epochs=recipe.epochs,
        accumulate_grad_batches=recipe.accumulate,
        devices=1,
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
        trainer.fit(module, train_loader, val_loader, ckpt_path=resume, weights_only=True)
    except SystemExit:  # what Lightning makes of Ctrl-C
        raise KeyboardInterrupt from None
    return module


def quieten() -> None:
    """Keep Lightning's advertisements and known harmless warnings off the user's terminal."""
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    harmless = ["many workers", "number of training batches", "in eval mode at the start", "treespec, LeafSpec"]
    harmless.append("returned `None`")  # for a batch of which no picture could be read
    for text in harmless:
        warnings.filterwarnings("ignore", message=f".*{text}.*")
