"""Another resolution: accuracy of a model that was trained at 32 pixels and resized, against the same model untrained.

    python benchmarks/unpack.py fashion_mnist_12k.npz fashion
    python benchmarks/resolution.py fashion

House nano models, isotropic, patch 4, so 8 × 8 tokens. Each is trained at `--image` pixels on `--train` pictures, then
carried to each of `--sizes` with `mixwise.resize` and measured on `--val` pictures as it is, and after one epoch more
at that size; a freshly initialised model of the resized one's config gets the same epoch (same pictures, order and
learning rate). "NAME expand" and "NAME smooth" are the same trained model carried over by that method.
"""

import argparse
import time
from dataclasses import replace

import numpy as np
import pytorch_lightning as pl
import torch
from rich.console import Console

from mixwise import resize
from mixwise.config import Augment, Optimizer, Preprocess, Recipe
from mixwise.data import Catalog, ImageDataset, Items, evaluation_transform, loader, training_transform
from mixwise.device import Precision
from mixwise.mixers import MIXERS
from mixwise.mixers.base import ResizeMethod
from mixwise.model import Model, build
from mixwise.models import create_model
from mixwise.tasks import task
from mixwise.training.choose import plan
from mixwise.training.loop import fit

METHODS: dict[str, list[ResizeMethod]] = {
    "token_mlp": ["expand"],
    "linear": ["expand"],
    "spatial_gate": ["expand"],
    "repmlp": ["smooth"],
}
"""Besides each mixer's own choice, where the size allows it."""


class Bench:
    """Pictures of one data set at any size, one recipe."""

    def __init__(self, data: str, image: int, train: int, val: int, seed: int) -> None:
        catalog, config = plan(data, {"preprocess.image": image, "model": "pool_nano"}, Console(quiet=True))
        self.catalog: Catalog = catalog
        self.pre: Preprocess = config.preprocess
        self.seed = seed
        self.train, self.val = (subset(catalog.splits[s], n) for s, n in (("train", train), ("val", val)))

    def fit(self, model: Model, size: int, epochs: int) -> Model:
        """Train for so many epochs at a size."""
        pre = self.pre.model_copy(update={"image": (size, size)})
        augment = Augment(scale=1, ratio=1, shift=size // 10, flip=0.5)
        recipe = Recipe(
            name="resolution",
            epochs=epochs,
            batch_size=32,
            augment=augment,
            optimizer=Optimizer(lr=2e-3, lr_batch=64),
        )
        pictures = ImageDataset(self.train, pre, training_transform(pre, augment), seed=self.seed, train=True)
        few = ImageDataset(subset(self.val, 32), pre, evaluation_transform(pre))
        fit(
            model,
            loader(pictures, 32, train=True, seed=self.seed, workers=0),
            loader(few, 32, train=False, workers=0),
            recipe,
            task=task("classify"),
            classes=len(self.catalog.classes),
            seed=self.seed,
            device="cpu",
            precision=Precision("fp32", ""),
            console=Console(),
            interval=epochs,
        )
        return model.eval()

    def accuracy(self, model: Model, size: int) -> float:
        """Top-1 on the validation pictures at a size."""
        pre = self.pre.model_copy(update={"image": (size, size)})
        hits = 0
        with torch.inference_mode():
            for x, y, _ in loader(ImageDataset(self.val, pre, evaluation_transform(pre)), 100, train=False, workers=0):
                hits += int((model.eval()(x).argmax(dim=1) == y).sum())
        return hits / len(self.val)


def subset(items: Items, count: int) -> Items:
    """So many of the items, drawn once and for all."""
    order = np.random.default_rng(0).permutation(len(items))[:count]
    pick = tuple(items.sources[i] for i in order), items.labels[order], tuple(items.names[i] for i in order)
    return replace(items, sources=pick[0], labels=pick[1], names=pick[2])


def main() -> None:
    """Parse, train, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="a folder of classes or of splits, or digits")
    chosen = ["token_mlp", "linear", "spatial_gate", "repmlp", "feed_forward", "pool", "external_attention"]
    parser.add_argument("--mixers", nargs="+", default=chosen, choices=sorted(MIXERS))
    parser.add_argument("--image", type=int, default=32)
    parser.add_argument("--sizes", type=int, nargs="+", default=[48, 64])
    parser.add_argument("--patch", type=int, default=4)
    parser.add_argument("--layout", default="isotropic", choices=["isotropic", "pyramid"])
    parser.add_argument("--train", type=int, default=2000)
    parser.add_argument("--val", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    a = parser.parse_args()
    start = time.monotonic()
    bench = Bench(a.data, a.image, a.train, a.val, a.seed)
    print(f"{len(bench.train)} training and {len(bench.val)} validation pictures of {a.data}, {a.epochs} epochs\n")
    columns = [f"{s}: {what}" for s in a.sizes for what in ("resized", "resized, 1 epoch", "fresh, 1 epoch")]
    print(f"| mixer | {a.image} | " + " | ".join(columns) + " |\n|" + "---|" * (len(columns) + 2), flush=True)
    for mixer in a.mixers:
        pl.seed_everything(a.seed, verbose=False)
        settings = {"channels": bench.pre.channels, "classes": len(bench.catalog.classes), "layout": a.layout}
        model = create_model(f"{mixer}_nano", image=a.image, patch=(a.patch, a.patch), **settings)
        bench.fit(model, a.image, a.epochs)
        base = f"{bench.accuracy(model, a.image):.1%}"
        methods: list[ResizeMethod] = ["auto", *METHODS.get(mixer, [])]
        for method in methods:
            cells = [mixer if method == "auto" else f"{mixer} {method}", base]
            for size in a.sizes:
                if method == "expand" and size % a.image:
                    cells += ["–"] * 3
                    continue
                resized = resize(model, size, method=method)
                cells.append(f"{bench.accuracy(resized, size):.1%}")
                pl.seed_everything(a.seed, verbose=False)
                for start_from in (resized, build(resized.config)):
                    cells.append(f"{bench.accuracy(bench.fit(start_from, size, 1), size):.1%}")
            print("| " + " | ".join(cells) + " |", flush=True)
    print(f"\n{(time.monotonic() - start) / 60:.0f} minutes, torch {torch.__version__}")


if __name__ == "__main__":
    main()
