"""Small sets of pictures, and trainings of seconds."""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from mixwise import TrainResult, train

SIDES = [np.s_[:, 1], np.s_[:, 6], np.s_[1, :], np.s_[6, :]]

Draw = Callable[..., Path]


@pytest.fixture
def draw(tmp_path: Path) -> Draw:
    """draw(name, a=20, b=3): a folder with so many pictures of each class, 8 × 8, grey.

    Each of up to four classes has a bright line at a side of its own; `noise` hides it, 1 wholly.
    """

    def make(name: str, /, noise: float = 0.2, **counts: int) -> Path:
        generator = np.random.default_rng(0)
        for side, (label, count) in zip(SIDES, counts.items(), strict=False):
            folder = tmp_path / name / label
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = np.full((8, 8), 40.0)
                pixels[side] = 220
                pixels = pixels * (1 - noise) + generator.integers(0, 256, (8, 8)) * noise
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{i}.png")
        return tmp_path / name

    return make


@pytest.fixture
def learn(tmp_path: Path) -> Callable[..., tuple[TrainResult, str]]:
    """learn(data, **{dotted settings}) trains pool_nano for two epochs; the result, and what was printed."""

    def run(data: object, out: str = "run", init: object = None, **settings: object) -> tuple[TrainResult, str]:
        text = io.StringIO()
        quick = {
            "model": "pool_nano",
            "recipe.epochs": 2,
            "recipe.batch_size": 16,
            "precision": "fp32",
            "state_every": 0,
        }
        if init is not None:
            del quick["model"]
        changes = {k: v for k, v in (quick | settings).items() if v is not None}
        made = train(
            str(data),
            out=tmp_path / out,
            init=init,
            changes=changes,
            device="cpu",
            console=Console(file=text, width=200),
        )
        return made, text.getvalue()

    return run
