"""Settings: frozen, round-tripping, and helpful when wrong."""

import pytest
from pydantic import ValidationError

from mixwise.config import Augment, BranchConfig, Data, Preprocess, Recipe, Train
from mixwise.errors import UsageError


def settings() -> Train:
    pre = Preprocess(image=(8, 12), channels=1, mean=(0.5,), std=(0.25,))
    return Train(
        model="pool_nano", classes=("a", "猫", "x'y"), data=Data(source="digits"), preprocess=pre, recipe=Recipe()
    )


def test_round_trip():
    config = settings()
    assert Train.from_toml(config.to_toml()) == config == Train.from_json(config.to_json())


def test_frozen():
    with pytest.raises(ValidationError):
        settings().seed = 3


def test_changed_by_path():
    config = settings().changed({"recipe.optimizer.lr": 0.5, "preprocess.image": (4, 4), "seed": 7})
    assert (config.recipe.optimizer.lr, config.preprocess.image, config.seed) == (0.5, (4, 4), 7)
    assert settings().recipe.optimizer.lr != 0.5


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("recipe.epoch", "did you mean 'epochs'"),
        ("recpie.epochs", "did you mean 'recipe'"),
        ("recipe.optimizer.rl", "unknown setting 'rl'"),
    ],
)
def test_wrong_path_names_the_nearest(path, message):
    with pytest.raises(UsageError, match=message):
        settings().changed({path: 1})


def test_tuples_in_options_round_trip():
    branch = BranchConfig(mixer="repmlp", options={"partition": (2, 3), "kernels": [1, 3]})
    assert BranchConfig.from_json(branch.to_json()) == branch == BranchConfig.from_toml(branch.to_toml())
    assert branch.options["kernels"] == (1, 3)


def test_paths_reach_into_tuples_and_free_keywords():
    config = settings().changed({"recipe.optimizer.betas.0": 0.8, "changes.drop_path": 0.3})
    assert config.recipe.optimizer.betas == (0.8, 0.999)
    assert config.changes == {"drop_path": 0.3}
    assert settings().changed({"changes.options.size": 5}).changes == {"options": {"size": 5}}
    with pytest.raises(UsageError, match="unknown setting 'x'"):
        settings().changed({"recipe.epochs.x": 1})


def test_wrong_value_names_the_setting():
    with pytest.raises(UsageError, match=r"recipe.epochs.*greater than 0.*got -1"):
        settings().changed({"recipe.epochs": -1})
    with pytest.raises(UsageError, match="one value per channel: 3"):
        settings().changed({"preprocess.channels": 3})
    with pytest.raises(UsageError, match="seed"):
        settings().changed({"seed": -1})
    with pytest.raises(UsageError, match="not valid JSON"):
        Train.from_json("{")
    with pytest.raises(UsageError, match="not valid TOML"):
        Train.from_toml("model = ")


def test_no_augmentation():
    assert Augment.none() == Augment(scale=1, ratio=1, flip=0)
