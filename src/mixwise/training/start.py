"""What a training starts from: fresh weights, or those of a file or of the public."""

from typing import Any

import pytorch_lightning as pl

from mixwise.config import PURPOSE, ModelConfig, Train, VisionConfig
from mixwise.errors import MixwiseError, UsageError
from mixwise.model import Model, build
from mixwise.models import create_model, model_config
from mixwise.weights import weights_hash
from mixwise.weights.pretrained import Start, adapted, load_start

YES = "yes"
"""`pretrained` for the default public weights of the model."""


def read_start(settings: dict[str, Any]) -> Start | None:
    """The weights that the settings `pretrained` and `model` mean; None: fresh ones."""
    wanted = settings.get("pretrained")
    if not wanted:
        return None
    name = str(settings.get("model", "auto"))
    return load_start(None if name == "auto" else name, True if wanted in (True, YES) else wanted)


def check_same(start: Start | None, config: Train) -> None:
    """`MixwiseError` where the weights that an interrupted run started from are others now."""
    if start is not None and start_hash(start) != config.pretrained_hash:
        raise MixwiseError(
            f"the weights of {config.pretrained} are not those that the run was started from; start a new run"
        )


def start_hash(start: Start) -> str:
    """By which the weights of a start are recognised."""
    return weights_hash(start.model.state_dict())[:16]


def initial_model(config: Train, start: Start | None, like: ModelConfig | None = None) -> tuple[Model, str]:
    """The model of a run at its start, the same for the same seed, and a line about where its weights come from.

    Args:
        start: weights to start from; None: fresh ones.
        like: the config of the model, where a state will bring all weights.
    """
    pl.seed_everything(config.seed, verbose=False)
    if like is not None:
        return build(like), ""
    own = {"image": config.preprocess.image, "channels": config.preprocess.channels, "classes": len(config.classes)}
    changes = {**own, **config.changes}
    task = model_config(config.model).task
    if task != "classify":
        raise UsageError(f"{config.model} is a model to {PURPOSE[task]}, and training is for classifiers of images")
    model = create_model(config.model, **changes) if start is None else adapted(start, changes, classes=config.classes)
    if start is None:
        return model, ""
    wrong = next((n for n, t in start.model.state_dict().items() if not bool(t.isfinite().all())), None)
    if wrong is not None:
        raise MixwiseError(f"{start.source} cannot be started from: {wrong} holds values that are not finite numbers")
    head = "head and all"
    if start.header.classes != config.classes:
        there = start.header.classes
        why = "the classes have other names" if len(there) == len(config.classes) else f"{len(there)} classes there"
        why = "the classes stand in another order there" if sorted(there) == sorted(config.classes) else why
        head = f"all but the head, which is new for {len(config.classes)} classes ({why})"
    return model.train(), f"{config.pretrained}, {head}{_carried(start)}"


def _carried(start: Start) -> str:
    """Where the weights were made for another image size, from which."""
    old, new = start.header.config, start.model.config
    if not isinstance(old, VisionConfig) or not isinstance(new, VisionConfig) or old.image == new.image:
        return ""
    return f"; carried over from {old.image[0]}×{old.image[1]} pixels"
