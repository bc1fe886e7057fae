"""Which pictures, and how they become numbers."""

from typing import Literal, Self

from pydantic import Field
from pydantic import model_validator as check

from mixwise.config.base import Config, Size

MAX_PIXELS = 1 << 26
"""Largest picture by default, height · width: every camera up to 64 megapixels, and a quarter of a GB in memory."""


class Preprocess(Config):
    """How a picture becomes numbers; it travels with the weights, so every verb does the same."""

    image: Size
    channels: Literal[1, 3, 4] = 3
    """1: grey, 3: RGB, 4: RGBA."""
    fit: Literal["crop", "squash", "pad"] = "crop"
    """crop: shorter side to the size, centre cut out. squash: both sides to the size. pad: longer side, rest filled."""
    crop_pct: float = Field(default=1.0, gt=0, le=1)
    """The share of the shorter side that the centre crop keeps; only fit="crop" cuts."""
    filter: Literal["bilinear", "bicubic", "lanczos", "nearest"] = "bicubic"
    mean: tuple[float, ...]
    """Per channel, on a scale of 0 to 1."""
    std: tuple[float, ...]
    background: tuple[int, int, int] = (255, 255, 255)
    """RGB, 0–255: what shows through transparency, and what fit="pad" fills with."""

    @check(mode="after")
    def _check(self) -> Self:
        if len(self.mean) != self.channels or len(self.std) != self.channels:
            raise ValueError(f"mean and std need one value per channel: {self.channels}")
        if any(s <= 0 for s in self.std):
            raise ValueError("std must be positive")
        return self


class Augment(Config):
    """Random changes to training pictures. All off is `Augment.none()`."""

    scale: float = Field(default=0.35, gt=0, le=1)
    """Random resized crop: least share of the area that is kept; 1: the evaluation view, only shifted by `shift`."""
    ratio: float = Field(default=4 / 3, ge=1)
    """Random resized crop: largest change of the aspect ratio."""
    shift: int = Field(default=0, ge=0)
    """Pad by so many pixels and cut a random window: for tiny pictures, with scale=1."""
    flip: float = Field(default=0.5, ge=0, le=1)
    """Probability of a horizontal mirror."""
    rotate: float = Field(default=0.0, ge=0, le=180)
    """Random rotation within ± this many degrees."""
    colour: float = Field(default=0.0, ge=0, le=1)
    """Strength of brightness, contrast and saturation jitter."""
    randaugment: int = Field(default=0, ge=0)
    """Number of RandAugment operations per picture."""
    magnitude: int = Field(default=9, ge=0, le=30)
    """Strength of RandAugment, 0–30, where it is on."""
    erase: float = Field(default=0.0, ge=0, le=1)
    """Probability of random erasing."""
    mixup: float = Field(default=0.0, ge=0)
    """α of mixup; 0: off."""
    cutmix: float = Field(default=0.0, ge=0)
    """α of cutmix; 0: off. With both on, each batch draws one of the two."""
    mix_prob: float = Field(default=1.0, ge=0, le=1)
    """Share of the batches that are mixed, where mixup or cutmix is on."""

    @classmethod
    def none(cls) -> Self:
        """No augmentation."""
        return cls(scale=1, ratio=1, flip=0)


class Data(Config):
    """Which pictures, and how they are split and read."""

    source: str
    """A folder or file in one of the layouts of docs/data.md, or the name of a data set."""
    val_split: float = Field(default=0.2, gt=0, lt=1)
    """Share of each class for validation where the folder has no split of its own."""
    split_seed: int = 0
    unknown: Literal["error", "drop"] = "error"
    """What a class does that the training pictures, or the given list of classes, lack: stop, or lose its pictures."""
    rename: tuple[tuple[str, str], ...] = ()
    """Names in the data, each with the class name that a list of labels gave it."""
    folds: int = Field(default=0, ge=0)
    """Of a cross-validation: training and validation pictures are pooled and divided into so many parts, class by
    class; 0: none."""
    fold: int = Field(default=0, ge=0)
    """Which part is validated on, from 1 to `folds`."""
    fingerprint: str = ""
    """Of the names and labels that the run was started with: a resumed run must find the same."""
    workers: int | None = Field(default=None, ge=0)
    """Loader processes; None: chosen from cores and size. It changes no result."""
    on_bad: Literal["skip", "error"] = "skip"
    """What a picture that cannot be read does: it is named and left out, or it stops the training."""
    max_bad: float = Field(default=0.2, ge=0, le=1)
    """The largest share of bad pictures of a split that is left out; more stop the training."""
    max_pixels: int = Field(default=MAX_PIXELS, gt=0)
    """Pictures of more pixels, height · width, count as bad."""
    cache: float = Field(default=512, ge=0)
    """MB of memory for the prepared pictures of each split, so that they are not read every epoch; 0: none. It changes
    no result."""
