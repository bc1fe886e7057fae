"""Every setting as frozen, validated data that round-trips through JSON and TOML. Imports no torch."""

import json
import tomllib
from typing import Annotated, Any, Literal, Self

import tomli_w
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PositiveInt, ValidationError
from pydantic import model_validator as check

from mixwise.errors import UsageError, unknown


def pair(value: Any) -> Any:
    """One number for both sides: 64 → (64, 64); anything else stays.

    >>> pair(64), pair((32, 48))
    ((64, 64), (32, 48))
    """
    return (value, value) if isinstance(value, int) else value


def _tuples(value: Any) -> Any:
    """Lists as tuples at any depth, so that what was read from a file equals what was written."""
    if isinstance(value, dict):
        return {key: _tuples(inner) for key, inner in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


Size = Annotated[tuple[PositiveInt, PositiveInt], BeforeValidator(pair)]
"""(height, width), at least 1; one number means both."""

Options = Annotated[dict[str, Any], AfterValidator(_tuples)]
"""Free keywords of a mixer or a preset, checked by whoever takes them."""


class Config(BaseModel):
    """Base of all configurations: frozen, no unknown fields, errors in one sentence."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def parse(cls, data: dict[str, Any], where: str = "") -> Self:
        """Build from plain data; every mistake becomes one `UsageError` that names the field."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise UsageError("; ".join(_sentence(cls, e, where) for e in error.errors())) from None

    def to_json(self) -> str:
        """As JSON text."""
        return self.model_dump_json()

    @classmethod
    def from_json(cls, text: str) -> Self:
        """From JSON text."""
        try:
            return cls.parse(json.loads(text))
        except json.JSONDecodeError as error:
            raise UsageError(f"the text is not valid JSON: {error}") from None

    def to_toml(self) -> str:
        """As TOML text. TOML has no null: fields that are None are left out, and None is their default."""
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))

    @classmethod
    def from_toml(cls, text: str, where: str = "") -> Self:
        """From TOML text."""
        try:
            data = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f"{where or 'the text'} is not valid TOML: {error}") from None
        return cls.parse(data, where)

    def changed(self, changes: dict[str, Any]) -> Self:
        """A copy with fields replaced, addressed by dotted path: `changed({"optimizer.lr": 1e-3})`."""
        data = self.model_dump(mode="json")
        for path, value in changes.items():
            *parents, last = path.split(".")
            node: Any = data
            for key in parents:
                node = node[_key(node, key, path)]
            free = parents[-1:] in (["changes"], ["options"]) and isinstance(node, dict)
            node[last if free else _key(node, last, path)] = value
        return type(self).parse(data)


def _key(node: Any, key: str, path: str) -> str | int:
    """The key or index that a step of a dotted path means in plain data, or a sentence with those that exist."""
    allowed: list[str] = []
    if isinstance(node, dict):
        allowed = list(node)
    elif isinstance(node, list):
        allowed = [str(i) for i in range(len(node))]
    if key not in allowed:
        raise unknown("setting", key, allowed, f"{path!r}")
    return key if isinstance(node, dict) else int(key)


def _sentence(cls: type[BaseModel], error: Any, where: str) -> str:
    path = ".".join(str(part) for part in error["loc"])
    place = f" in {where}" if where else ""
    if error["type"] == "extra_forbidden":
        model: Any = cls
        for part in error["loc"][:-1]:
            field = getattr(model, "model_fields", {}).get(part)
            model = field.annotation if field else None
        return str(unknown("setting", path, getattr(model, "model_fields", {}), where))
    return f"setting {path!r}{place}: {error['msg']}, got {error['input']!r}"


# --- the backbone -----------------------------------------------------------------------------------------------------


class BranchConfig(Config):
    """One residual branch: x + drop_path(scale · f(norm(x))), f a token mixer or a channel mixer by name."""

    mixer: str
    options: Options = {}
    norm: str | None = None
    """None: the backbone's norm."""
    norm_bias: bool | None = None
    """Whether the norm shifts; None: only where the mixer can notice."""


class StageConfig(Config):
    """`depth` equal blocks of width `dim`; in front of all stages but the first stands a downsampling."""

    depth: int = Field(gt=0)
    dim: int = Field(gt=0)
    branches: tuple[BranchConfig, ...] = Field(min_length=1)
    downsample: Literal["conv", "patch"] = "conv"
    stride: Size = (2, 2)


class BackboneConfig(Config):
    """stem → stages of blocks → norm → pool → head."""

    name: str = "custom"
    image: Size = (224, 224)
    channels: int = Field(default=3, gt=0)
    classes: int = Field(default=1000, ge=0)
    stem: Literal["conv", "patch"] = "patch"
    patch: Size = (16, 16)
    stages: tuple[StageConfig, ...] = Field(min_length=1)
    norm: str = "layer"
    final_act: str = "identity"
    """Activation between the final norm and the pooling."""
    positions: Literal["none", "learned", "sincos"] = "none"
    class_token: bool = False
    pool: Literal["mean", "token"] = "mean"
    pooled_norm: str = "none"
    """Norm between the pooling and the head."""
    drop_path: float = Field(default=0.0, ge=0, lt=1)
    drop_path_schedule: Literal["linear", "constant"] = "linear"
    layer_scale: float | None = None
    form: Literal["trainable", "reparameterized"] = "trainable"

    @check(mode="after")
    def _check(self) -> Self:
        if self.pool == "token" and not self.class_token:
            raise ValueError("pool='token' reads the class token, so class_token must be true")
        if self.class_token and len(self.stages) > 1:
            raise ValueError("a class token cannot pass a downsampling: use one stage, or class_token=false")
        return self


# --- data -------------------------------------------------------------------------------------------------------------


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
    """A folder, or the name of a built-in data set."""
    val_split: float = Field(default=0.2, gt=0, lt=1)
    """Share of each class for validation where the folder has no split of its own."""
    split_seed: int = 0
    fingerprint: str = ""
    """Of the names and labels that the run was started with: a resumed run must find the same."""
    workers: int | None = Field(default=None, ge=0)
    """Loader processes; None: chosen from cores and size. It changes no result."""


# --- training ---------------------------------------------------------------------------------------------------------


class Optimizer(Config):
    """AdamW. No weight decay on norms, biases and other 1-d parameters."""

    lr: float = Field(default=1e-3, gt=0)
    """Peak learning rate for a batch of `lr_batch`; scaled linearly to the batch that is used."""
    lr_batch: int = Field(default=64, gt=0)
    weight_decay: float = Field(default=0.05, ge=0)
    betas: tuple[float, float] = (0.9, 0.999)
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
    """Stop after so many epochs without a better validation accuracy; 0: never."""
    optimizer: Optimizer = Optimizer()
    augment: Augment = Augment()


class Train(Config):
    """Everything a run is made from; `config.toml` of a run folder."""

    model: str
    """A preset name."""
    changes: Options = {}
    """What differs from the preset besides image, channels and classes: `create_model(model, **changes)`."""
    classes: tuple[str, ...]
    """Class names in the order of the model's outputs."""
    data: Data
    preprocess: Preprocess
    recipe: Recipe
    seed: int = Field(default=0, ge=0, lt=2**32)
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    compile: bool = False
    state_every: float = Field(default=20.0, ge=0)
    """Seconds between resumable states. It changes no result."""
