"""Speed of a training step against timm's own models, and what the training loop costs over a bare one.

    python benchmarks/training.py [--batch 32] [--repeats 7]

Both models run in this process on the same batch, interleaved; the figure is the ratio of the medians, mixwise over
timm, in images per second of forward + loss + backward + AdamW. The shapes are the papers' Mixer-S/16 and gMLP-S/16.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import timm
import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from mixwise.backbone import Backbone
from mixwise.config import BackboneConfig, BranchConfig, Optimizer, Recipe, StageConfig
from mixwise.device import Precision, has_native_bf16
from mixwise.tasks import task
from mixwise.training.loop import fit
from mixwise.training.optim import adamw


def mixer_s16() -> Backbone:
    """MLP-Mixer-S/16: 18,528,264 parameters."""
    branches = (
        BranchConfig(mixer="token_mlp", options={"hidden": 256}),
        BranchConfig(mixer="mlp", options={"out_bias": True}),
    )
    return Backbone(BackboneConfig(stages=(StageConfig(depth=8, dim=512, branches=branches),)))


def gmlp_s16() -> Backbone:
    """gMLP-S/16 with mean read-out: 19,422,656 parameters."""
    branches = (BranchConfig(mixer="spatial_gate", options={"ratio": 6.0, "out_bias": True}),)
    return Backbone(BackboneConfig(stages=(StageConfig(depth=30, dim=256, branches=branches),)))


def stepper(model: nn.Module, images: Tensor, target: Tensor, bf16: bool) -> Callable[[], None]:
    """One training step of a bare PyTorch loop."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = F.cross_entropy(model(images), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def interleaved(steps: dict[str, Callable[[], None]], repeats: int) -> dict[str, float]:
    """Median seconds of each, taking turns."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for round_ in range(repeats + 1):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            if round_:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def against_timm(batch: int, repeats: int) -> None:
    """Print the ratios."""
    images, target = torch.randn(batch, 3, 224, 224), torch.randint(1000, (batch,))
    precisions = [False, True] if has_native_bf16() else [False]
    for name, make in {"mixer_s16_224": mixer_s16, "gmlp_s16_224": gmlp_s16}.items():
        ours, theirs = make(), timm.create_model(name)
        count = [sum(p.numel() for p in m.parameters()) for m in (ours, theirs)]
        assert count[0] == count[1], f"{name}: {count}"
        steps = {}
        for bf16 in precisions:
            kind = "bf16" if bf16 else "fp32"
            steps[f"mixwise {kind}"] = stepper(ours, images, target, bf16)
            steps[f"timm {kind}"] = stepper(theirs, images, target, bf16)
        seconds = interleaved(steps, repeats)
        print(f"\n{name}, batch {batch}, median of {repeats}")
        for key, value in seconds.items():
            print(f"  {key:14s} {batch / value:7.1f} images/s")
        print(f"  fp32: mixwise is {seconds['timm fp32'] / seconds['mixwise fp32']:.2f} × timm")
        if len(precisions) == 2:
            print(f"  bf16: mixwise is {seconds['timm bf16'] / seconds['mixwise bf16']:.2f} × timm")
            print(
                f"  mixwise auto (bf16) is {seconds['timm fp32'] / seconds['mixwise bf16']:.2f} × timm's default (fp32)"
            )


class Repeated(Dataset):
    """The same pictures again and again: what is measured is the loop, not the reading."""

    def __init__(self, images: Tensor, target: Tensor, batches: int) -> None:
        self.images, self.target, self.batches = images, target, batches

    def __len__(self) -> int:
        return self.batches

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        return self.images, self.target, index


def loop_overhead(batch: int, repeats: int, batches: int = 8) -> None:
    """Print what `mixwise.training.loop.fit` costs over a bare loop with the same model and optimiser."""
    images, target = torch.randn(batch, 3, 224, 224), torch.randint(1000, (batch,))
    recipe = Recipe(epochs=1, batch_size=batch, optimizer=Optimizer(clip=0), label_smoothing=0)
    data = DataLoader(Repeated(images, target, batches), batch_size=None)
    precision = Precision("bf16" if has_native_bf16() else "fp32", "measured")

    def bare() -> None:
        model = mixer_s16()
        optimizer = adamw(model, recipe.optimizer, batch)
        with_bf16 = precision.name == "bf16"
        for x, y, _ in data:
            with torch.autocast("cpu", torch.bfloat16, enabled=with_bf16):
                loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def whole() -> None:
        one = DataLoader(Repeated(images[:1], target[:1], 1), batch_size=None)
        fit(
            mixer_s16(),
            data,
            one,
            recipe,
            task=task("classify"),
            classes=1000,
            seed=0,
            device="cpu",
            precision=precision,
            console=Console(),
        )

    seconds = interleaved({"bare": bare, "whole": whole}, repeats)
    print(f"\nloop, mixer_s16 at batch {batch}, {batches} steps, {precision.name}, median of {repeats}")
    print(
        f"  bare PyTorch {seconds['bare'] / batches:.3f} s a step, mixwise {seconds['whole'] / batches:.3f} s a step, "
        f"overhead {seconds['whole'] / seconds['bare'] - 1:+.1%} (with the set-up of the loop)"
    )


def main() -> None:
    """Parse and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, timm {timm.__version__}")
    against_timm(arguments.batch, arguments.repeats)
    loop_overhead(arguments.batch, max(3, arguments.repeats // 2))


if __name__ == "__main__":
    main()
