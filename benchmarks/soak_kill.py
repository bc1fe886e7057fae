"""Kill a training at random points, again and again, and compare its end with that of an unbroken one.

    python benchmarks/soak_kill.py [--kills 50] [--seed 0] [--workers 0]

Each try is a process of its own that is killed without warning (SIGKILL): while it starts, reads, learns, validates or
writes. The next try goes on from what it finds. When all kills are done the training is let to its end; the hash of its
last weights must be that of the unbroken run. Exit code 1 where it is not.
"""

import argparse
import multiprocessing
import os
import random
import signal
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from mixwise import train
from mixwise.training.run import Run
from mixwise.weights import load_file, weights_hash

CHANGES = {"recipe.batch_size": 16, "recipe.ema": 0.9, "recipe.augment.cutmix": 1.0, "state_every": 0}
MOST = 2
"""Epochs that a try may finish before it is killed."""


def learn(out: Path, epochs: int, workers: int) -> None:
    """Begin a training, or go on with it; runs in a process of its own."""
    torch.set_num_threads(1)
    if Run(out).config_file.is_file():
        train(resume=out)
    else:
        changes = CHANGES | {"recipe.epochs": epochs, "data.workers": workers, "precision": "fp32"}
        train(out.parent / "data", model="pool_nano", out=out, changes=changes, device="cpu")


def draw(folder: Path) -> None:
    """Pictures to learn from: 40 of either of two classes."""
    generator = np.random.default_rng(0)
    for side, name in enumerate(("left", "right")):
        (folder / name).mkdir(parents=True)
        for i in range(40):
            pixels = generator.integers(0, 200, (8, 8), np.uint8)
            pixels[:, 7 * side] = 255
            Image.fromarray(pixels).save(folder / name / f"{i}.png")


def last_hash(out: Path) -> str:
    """Of the weights after the last epoch."""
    return weights_hash(load_file(Run(out).last)[0].state_dict())


def epochs_done(out: Path) -> int:
    """Of the newest state; 0 where there is none."""
    for state in (Run(out).state, Run(out).previous_state):
        try:
            return int(torch.load(state, weights_only=True)["epoch"]) + 1
        except (OSError, RuntimeError, EOFError):
            continue
    return 0


def soak(folder: Path, *, kills: int, seed: int, workers: int = 0) -> tuple[str, str, list[int]]:
    """Hashes of the unbroken run and of the one that was killed, and the epochs that were done at each kill."""
    processes = multiprocessing.get_context("fork")  # torch is loaded once
    epochs = kills * MOST + 2
    draw(folder / "data")

    def child(name: str) -> multiprocessing.process.BaseProcess:
        process = processes.Process(target=learn, args=(folder / name, epochs, workers))
        process.start()
        return process

    start = time.monotonic()
    child("unbroken").join()
    an_epoch = (time.monotonic() - start) / epochs
    draws = random.Random(seed)
    done: list[int] = []
    while len(done) < kills:
        process = child("killed")
        _wait(Run(folder / "killed").state, draws.randint(0, MOST), draws.uniform(0, 2 * an_epoch), process)
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
        done.append(epochs_done(folder / "killed"))
    child("killed").join()
    return last_hash(folder / "unbroken"), last_hash(folder / "killed"), done


def _wait(state: Path, epochs: int, seconds: float, process: multiprocessing.process.BaseProcess) -> None:
    """Until so many states were written, or as many seconds have passed since the one before it."""
    seen, written, mark = _time_of(state), 0, time.monotonic()
    while process.is_alive() and written < epochs + 1:
        now = _time_of(state)
        if now != seen:
            seen, written, mark = now, written + 1, time.monotonic()
        if written == epochs and time.monotonic() - mark > seconds:
            return
        time.sleep(0.001)


def _time_of(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def main() -> None:
    """Parse, soak, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        ours, killed, done = soak(Path(folder), kills=arguments.kills, seed=arguments.seed, workers=arguments.workers)
    print(f"killed {len(done)} times; epochs done by then: {done}")
    print(f"unbroken {ours}\nkilled   {killed}")
    raise SystemExit(ours != killed)


if __name__ == "__main__":
    main()
