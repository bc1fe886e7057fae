"""What `train` chooses, and that it says why."""

import io

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from mixwise import UsageError, train
from mixwise.models import presets
from mixwise.training.choose import choose_image, choose_model, choose_recipe, plan


def folder(path, height, width, mode="RGB", count=6):
    generator = np.random.default_rng(0)
    for name in ("left", "right"):
        (path / name).mkdir(parents=True)
        for i in range(count):
            pixels = generator.integers(0, 255, (height, width, 3), np.uint8)
            Image.fromarray(pixels).convert(mode).save(path / name / f"{i}.png")
    return path


@pytest.mark.parametrize(
    ("size", "image"), [((8, 8), (8, 8)), ((28, 28), (28, 28)), ((32, 40), (32, 40)), ((200, 300), (128, 128))]
)
def test_image_size_follows_the_pictures(size, image):
    assert choose_image(*size) == image


@pytest.mark.parametrize("images", [20, 300, 5_000, 200_000])
@pytest.mark.parametrize("image", [(8, 8), (28, 28), (112, 96), (128, 128)])
def test_choices_exist_and_give_reasons(images, image):
    model, why = choose_model(images, image)
    assert model in presets()
    assert len(why) > 20
    recipe = choose_recipe(images, image)
    assert recipe.epochs >= 10


@pytest.mark.parametrize(("side", "scale"), [(60, 0.65), (200, 0.35)])
def test_small_pictures_keep_more_of_what_they_show(tmp_path, side, scale):
    """By the size that they have, not the one that they are trained at."""
    _, config = plan(folder(tmp_path, side, side), {"preprocess.image": 64}, Console(quiet=True))
    assert config.recipe.augment.scale == scale


def test_plan_prints_what_it_chose(tmp_path):
    text = io.StringIO()
    catalog, config = plan(folder(tmp_path, 30, 40, "L"), {}, Console(file=text, width=200))
    assert config.preprocess.channels == 1
    assert config.classes == ("left", "right") == catalog.classes
    assert "choice" in text.getvalue()
    assert "val is 2 of the train pictures" in text.getvalue()


def test_settings_win(tmp_path):
    settings = {"preprocess.channels": 3, "preprocess.image": (16, 24), "model": "pool_nano", "data.val_split": 0.5}
    _, config = plan(folder(tmp_path, 30, 40), settings, Console(quiet=True))
    assert (config.preprocess.image, config.model, config.data.val_split) == ((16, 24), "pool_nano", 0.5)
    with pytest.raises(UsageError, match="did you mean 'pool_nano'"):
        plan(tmp_path, {"model": "pool_nan"}, Console(quiet=True))


def test_the_shipped_recipe_is_what_would_be_chosen(tmp_path):
    from pathlib import Path

    from mixwise.training.settings import read_recipe

    recipe = Path(__file__).parent.parent / "recipes" / "small_photos.toml"
    data = folder(tmp_path, 200, 300, count=5)
    _, by_file = plan(data, read_recipe(recipe), Console(quiet=True))
    _, chosen = plan(data, {}, Console(quiet=True))
    own = {"name": chosen.recipe.name, "epochs": chosen.recipe.epochs}  # epochs follow the number of pictures
    assert by_file.recipe.model_copy(update=own) == chosen.recipe
    assert (by_file.model, by_file.preprocess) == (chosen.model, chosen.preprocess)


@pytest.mark.parametrize(
    "wrong",
    [
        {"recipe.foo": 1},
        {"recipe.optimizer.lr": -1},
        {"recipe.balance": "both"},
        {"recipe.optimizer.lr": float("inf")},
        {"recipe.optimizer.betas": [0.9, 1]},
        {"changes": 5},
        {"preprocess.image": "abc"},
        {"preprocess.image": 1.5, "pretrained": "no such file.safetensors"},
    ],
)
def test_wrong_settings_are_refused_before_pictures_and_weights_are_looked_at(tmp_path, wrong):
    with pytest.raises(UsageError, match=next(iter(wrong))):
        train(tmp_path / "nothing is here", changes=wrong)


@pytest.mark.parametrize("mean", [0.5, (0.5, 0.5, 0.5), "grey"])
def test_a_normalisation_that_fits_no_channel_is_refused(tmp_path, mean):
    settings = {"model": "pool_nano", "preprocess.mean": mean}
    with pytest.raises(UsageError, match="mean"):
        plan(folder(tmp_path, 30, 40, "L"), settings, Console(quiet=True))
