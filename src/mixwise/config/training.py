"""How to train."""

from typing import Annotated, Literal

from pydantic import Field

from mixwise.config.base import Config, Options
from mixwise.config.data import Augment, Data, Preprocess

Share = Annotated[float, Field(ge=0, lt=1)]


class Optimizer(Config):
    """AdamW. No weight decay on norms, biases and other 1-d parameters, class tokens and positions."""

    lr: float = Field(default=1e-3, gt=0, allow_inf_nan=False)
    """Peak learning rate for a batch of `lr_batch`; scaled linearly to the batch that is used."""
    lr_batch: int = Field(default=64, gt=0)
    weight_decay: float = Field(default=0.05, ge=0, allow_inf_nan=False)
    decay_positions: bool = False
    """Positions decay too, as in the published training of the feed-forward-only model, arXiv 2105.02723."""
    betas: tuple[Share, Share] = (0.9, 0.999)
    clip: float = Field(default=1.0, ge=0)
    """Largest gradient norm; 0: no clipping."""


class Recipe(Config):
    """How to train, whatever the model and the data."""

    name: str = "custom"
    epochs: int = Field(default=100, gt=0)
    warmup: float = Field(default=0.05, ge=0, lt=1)
    """Share of all steps with a rising learning rate; a cosine to zero follows."""
    batch_size: int = Field(default=32, gt=0)
    accumulate: int = Field(default=1, gt=0)
    """Batches per optimiser step; the effective batch is batch_size · accumulate."""
    label_smoothing: float = Field(default=0.1, ge=0, lt=1)
    ema: float = Field(default=0.0, ge=0, lt=1)
    """Decay of the averaged weights, reached after a warm-up; 0: off."""
    patience: int = Field(default=0, ge=0)
    """Stop after so many epochs in which `patience_on` did not improve by more than `min_delta`; 0: never."""
    patience_on: Literal["metric", "loss"] = "metric"
    """What has to improve on the validation pictures: the task's metric (accuracy, mAP) or the loss."""
    min_delta: float = Field(default=0.0, ge=0)
    """The least change that counts as an improvement, where `patience` is on; accuracy is a share of 1."""
    balance: Literal["none", "loss", "sampler"] = "none"
    """Rare classes count as much as common ones: by weights in the loss, or by being drawn as often. With several
    labels a picture, the loss weighs each label's yes."""
    freeze: Literal["none", "backbone"] = "none"
    """backbone: only the head is trained; everything before it keeps its weights and its running statistics."""
    optimizer: Optimizer = Optimizer()
    augment: Augment = Augment()


class Train(Config):
    """Everything a run is made from; `config.toml` of a run folder."""

    model: str
    """A preset name."""
    changes: Options = {}
    """What differs from the preset besides image, channels and classes: `create_model(model, **changes)`."""
    task: Literal["classify", "multilabel"] = "classify"
    """One label per picture, or any number of them; it follows from the data."""
    classes: tuple[str, ...]
    """Class names in the order of the model's outputs."""
    pretrained: str = ""
    """Where the first weights come from: a file, or the public weights NAME.TAG. Empty: fresh ones."""
    pretrained_hash: str = ""
    """Of these weights: a run that goes on from no state must find the same."""
    data: Data
    preprocess: Preprocess
    recipe: Recipe
    seed: int = Field(default=0, ge=0, lt=2**32)
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    devices: int = Field(default=1, gt=0)
    """Processes that train together, one a GPU; on the CPU they share the cores. Each takes batches of `batch_size`, so
    the effective batch, and with it the learning rate, grows with them."""
    deterministic: bool = False
    """Only operations that give the same result every time; one that has no such form stops the training."""
    compile: bool = False
    state_every: float = Field(default=20.0, ge=0)
    """Seconds between resumable states. It changes no result."""
