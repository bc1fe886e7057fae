"""Small data, from scratch, at equal wall time: what `mixwise train` chooses, against torchvision's ResNet-18.

    python benchmarks/small_data.py FOLDER --seeds 3

The first model (`auto`) trains by the recipe that `mixwise train FOLDER` would choose, all of its epochs. The others
get the same pictures, image size, augmentation, batch size, optimiser, averaged weights, precision, loop and wall-
clock time: their number of epochs comes from their own speed, measured first, and their cosine ends with the time.
`--minutes` gives all of them so many minutes instead. Learning rates are those of the recipe unless `--lr MODEL=…`
says otherwise.

One line a run, then a table of the best and of the last validation accuracy (averaged or raw weights, the better).
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import pytorch_lightning as pl
import torch
import torchvision
from rich.console import Console
from torch import nn
from torch.utils.data import DataLoader

from mixwise.config import Train
from mixwise.data import ImageDataset, evaluation_transform, loader, training_transform
from mixwise.device import choose_device, choose_precision
from mixwise.tasks import task
from mixwise.training.choose import plan
from mixwise.training.loop import fit, validation_interval
from mixwise.training.module import Trainable
from mixwise.training.settings import parse_changes
from mixwise.training.start import initial_model


class Watch(pl.Callback):
    """Seconds of every epoch and the accuracies after it."""

    def __init__(self, verbose: bool) -> None:
        self.marks = [time.monotonic()]
        self.accuracy: list[float] = []
        self.verbose = verbose

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.marks = [time.monotonic()]

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        assert isinstance(module, Trainable)
        self.marks.append(time.monotonic())
        loss = module.take("train")[0]
        if module.validated:
            self.accuracy.append(max(a for _, a in module.validated.values()))
            every = max(1, trainer.max_epochs // 10) if trainer.max_epochs else 1
            if self.verbose and (trainer.current_epoch + 1) % every == 0:
                values = {k: f"{a:.2%}" for k, (_, a) in module.validated.items()}
                print(f"    epoch {trainer.current_epoch + 1:4d}  loss {loss:.3f}  {values}", flush=True)


def make(name: str, config: Train) -> nn.Module:
    """A fresh model: `resnet18`, or the model of the plan."""
    pl.seed_everything(config.seed, verbose=False)
    if name != "resnet18":
        return initial_model(config, None)[0]
    model = torchvision.models.resnet18(num_classes=len(config.classes))
    if config.preprocess.channels != 3:
        model.conv1 = nn.Conv2d(config.preprocess.channels, 64, 7, 2, 3, bias=False)
    return model.to(memory_format=torch.channels_last)


def run(name: str, config: Train, loaders: Sequence[DataLoader], epochs: int, interval: int, verbose: bool) -> Watch:
    """Train once for so many epochs."""
    watch = Watch(verbose)
    device = choose_device(config.device)
    fit(
        make(name, config),
        loaders[0],
        loaders[1],
        config.recipe.model_copy(update={"epochs": epochs}),
        task=task(config.task),
        classes=len(config.classes),
        seed=config.seed,
        device=device,
        precision=choose_precision(config.precision, device),
        console=Console(),
        callbacks=[watch],
        interval=interval,
    )
    return watch


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--minutes", type=float, help="for every model, instead of the recipe's epochs")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--models", nargs="+", default=["auto", "resnet18"])
    parser.add_argument("--set", action="append", default=[], help="settings for both, path=value")
    parser.add_argument("--lr", action="append", default=[], help="MODEL=learning rate")
    parser.add_argument("--epochs", action="append", default=[], help="MODEL=epochs, instead of measuring the speed")
    parser.add_argument("--speed-only", action="store_true", help="print seconds per epoch and stop")
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    rates = dict(pair.split("=") for pair in arguments.lr)
    fixed = dict(pair.split("=") for pair in arguments.epochs)
    results: dict[str, list[tuple[float, float]]] = {}
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
        minutes = arguments.minutes
        for name in arguments.models:
            settings = {"seed": seed} | parse_changes(arguments.set)
            settings["model"] = "auto" if name == "resnet18" else name
            if name in rates:
                settings["recipe.optimizer.lr"] = float(rates[name])
            catalog, config = plan(arguments.data, settings, Console(quiet=True))
            pre, recipe = config.preprocess, config.recipe
            train_items, val_items = catalog.splits["train"], catalog.splits["val"]
            train_set = ImageDataset(train_items, pre, training_transform(pre, recipe.augment), seed=seed, train=True)
            val_set = ImageDataset(val_items, pre, evaluation_transform(pre), train=False)
            loaders = (
                loader(train_set, recipe.batch_size, train=True, seed=seed, workers=0),
                loader(val_set, 64, train=False, workers=0),
            )
            shown = config.model if name == "auto" else name
            if name in fixed:
                epochs = int(fixed[name])
            elif minutes is None and not arguments.speed_only:
                epochs = recipe.epochs
            else:
                marks = run(name, config, loaders, 3, 3, verbose=False).marks
                epochs = max(1, round((minutes or 15) * 60 / (marks[2] - marks[1])))
                epochs -= epochs % 4 if epochs > 8 else 0  # validation comes after a divisor of the epochs
                print(f"{shown}: {marks[2] - marks[1]:.2f} s an epoch, {epochs} epochs", flush=True)
            if arguments.speed_only:
                continue
            interval = validation_interval(
                recipe.model_copy(update={"epochs": epochs}), len(train_items), len(val_items)
            )
            watch = run(name, config, loaders, epochs, interval, arguments.verbose)
            minutes = minutes or (watch.marks[-1] - watch.marks[0]) / 60
            best, last = max(watch.accuracy), watch.accuracy[-1]
            results.setdefault(shown, []).append((best, last))
            print(
                json.dumps(
                    {
                        "model": shown,
                        "seed": seed,
                        "best": round(best, 4),
                        "last": round(last, 4),
                        "epochs": epochs,
                        "minutes": round((watch.marks[-1] - watch.marks[0]) / 60, 2),
                        "lr": recipe.optimizer.lr,
                    }
                ),
                flush=True,
            )
    machine = f"{processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    print(f"\n{arguments.data}, image {pre.image}, {machine}")
    for name, values in results.items():
        cells = []
        for what, column in zip(("best", "last"), zip(*values, strict=True), strict=True):
            spread = f" ± {statistics.stdev(column):.2%}" if len(column) > 1 else ""
            cells.append(f"{what} {statistics.mean(column):.2%}{spread}")
        print(f"  {name:24s} {', '.join(cells)} (n={len(values)})")


def processor() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    main()
