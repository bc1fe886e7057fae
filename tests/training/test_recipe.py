"""Shipped recipes that come with a number."""

from pathlib import Path

import pytest

from mixwise import train
from mixwise.training.choose import choose_recipe
from mixwise.training.run import Run
from mixwise.training.settings import read_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "digits.toml"

CURVE = {1: (1.918, 0.417), 2: (1.052, 0.883), 3: (0.758, 0.970)}
"""Epoch → (training loss, raw validation accuracy) of the short variant, on the machine that the recipe names."""


def test_tr19_the_short_variant_of_the_digits_recipe_repeats_its_curve(tmp_path):
    """Other processors round otherwise, so to 10 % of the loss and five points."""
    changes = {"precision": "fp32", "state_every": 1000}
    made = train("digits", recipe=RECIPE, epochs=3, seed=0, out=tmp_path / "run", changes=changes, device="cpu")
    run = Run(made.run)
    chosen = choose_recipe(1197, (8, 8))
    assert run.read_config().recipe == chosen.model_copy(update={"name": "digits", "epochs": 3})
    for row in run.read_metrics():
        loss, accuracy = CURVE[int(row["epoch"])]
        assert float(row["train_loss"]) == pytest.approx(loss, rel=0.1)
        assert float(row["raw_val_accuracy"]) == pytest.approx(accuracy, abs=0.05)
    assert "recipe.epochs" in read_recipe(RECIPE)
