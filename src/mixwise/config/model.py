"""What a model is made of."""

from typing import ClassVar, Literal, Self

from pydantic import Field
from pydantic import model_validator as check

from mixwise.config.base import Config, Options, Size

Task = Literal["classify", "multilabel", "points", "segment", "text"]
"""What a model is for: a score per class of an image or of a point cloud, any number of labels of an image, a map of
scores per class, a score per token of a vocabulary."""

PURPOSE: dict[Task, str] = {
    "classify": "classify images",
    "multilabel": "label images",
    "points": "classify point clouds",
    "segment": "segment images",
    "text": "complete texts",
}
"""The tasks in words."""


class BranchConfig(Config):
    """One residual branch: x + drop_path(scale · f(norm(x))), f a token mixer or a channel mixer by name."""

    mixer: str
    options: Options = {}
    norm: str | None = None
    """None: the backbone's norm."""
    norm_bias: bool | None = None
    """Whether the norm shifts; None: the backbone's."""


class StageConfig(Config):
    """`depth` equal blocks of width `dim`; in front of all stages but the first stands a downsampling."""

    depth: int = Field(gt=0)
    dim: int = Field(gt=0)
    branches: tuple[BranchConfig, ...] = Field(min_length=1)
    downsample: Literal["conv", "patch", "none"] = "conv"
    """conv: 3 × 3 or larger with padding and the backbone's norm. patch: as the stem of that name. none: the grid and
    the width stay."""
    downsample_options: Options = {}
    """Of the `patch` stem: kernel, padding, bias, norm, act."""
    stride: Size = (2, 2)
    positions: bool = False
    """Learned positions in front of the first block, starting at zero."""
    res_scale: float | None = None
    """Start of a learned factor per channel on the shortcut; None: no factor."""
    pyramid_norm: bool = False
    """A norm of its own, of the backbone's kind, on the map that `pyramid` gives of this stage."""


class ModelConfig(Config):
    """What every model's config says."""

    task: ClassVar[Task] = "classify"
    """What the model is for, unless it is trained for something else."""
    kind: str
    """Which architecture it is the config of; fixed by the class."""
    name: str = "custom"
    form: Literal["trainable", "reparameterized"] = "trainable"

    @property
    def input(self) -> str:
        """The shape that the model takes, in words."""
        raise NotImplementedError


class VisionConfig(ModelConfig):
    """A model of images."""

    image: Size = (224, 224)
    channels: int = Field(default=3, gt=0)
    classes: int = Field(default=1000, ge=0)
    """0: no head, the model gives the pooled features."""

    @property
    def input(self) -> str:
        """The shape that the model takes, in words."""
        return f"{self.channels} × {self.image[0]} × {self.image[1]} (channels × height × width)"


class BackboneConfig(VisionConfig):
    """stem → stages of blocks → norm → pool → head, or norm and pool the other way round."""

    kind: Literal["backbone"] = "backbone"
    stem: str = "patch"
    stem_options: Options = {}
    patch: Size = (16, 16)
    """Total stride of the stem."""
    stages: tuple[StageConfig, ...] = Field(min_length=1)
    norm: str = "layer"
    """In front of every branch that names no other."""
    norm_eps: float | None = Field(default=None, gt=0)
    """None: 1e-6 for layer, 1e-5 for the others."""
    norm_bias: bool | None = None
    """Whether these norms shift; None: only where the mixer behind can notice."""
    final_norm: str | None = None
    """Behind the last stage; None: the same as `norm`."""
    final_eps: float | None = Field(default=None, gt=0)
    """None: as `norm_eps`."""
    final_act: str = "identity"
    """Activation behind the final norm."""
    positions: Literal["none", "learned", "sincos", "sinusoid"] = "none"
    """learned: one vector per token. sincos: fixed, rows and columns. sinusoid: fixed, along the tokens in order."""
    position_grid: Size | None = None
    """Grid of the positions, stretched to the tokens at run time (sincos exactly, else bilinearly); None: their own."""
    prefix_positions: bool = True
    """Whether class and distillation token have a learned position too."""
    position_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Of the tokens behind the positions, prefix tokens included, in training."""
    class_token: bool = False
    class_token_std: float = Field(default=0.02, ge=0)
    """Of the normal that it starts from; 0: zero. The distillation token has 0.02."""
    distill_token: bool = False
    """A second prefix token for a teacher's labels, read by the head `distilled`."""
    pool: Literal["mean", "token", "prefix"] = "mean"
    """mean over the tokens of the grid; the class token; all prefix tokens (b, prefix, c)."""
    pool_first: bool = False
    """Pool, then normalise; otherwise normalise, then pool."""
    pooled_norm: str = "none"
    """A further norm between the pooled features and the head."""
    head: str = "linear"
    head_options: Options = {}
    init: Literal["own", "normal", "xavier", "flax"] = "own"
    """Start of the branches. own: each mixer's. normal: matrices normal with std 0.02, xavier: Xavier uniform, each
    matrix by itself (query, key and value too); linear layers' biases zero. flax: as xavier, the channel MLPs' biases
    normal with std 1e-6."""
    stem_init: Literal["torch", "normal", "lecun"] = "torch"
    """Start of the convolutions of stem and patch downsampling. torch: its default, uniform, the bias too. normal: std
    0.02. lecun: normal with variance 1 / fan-in, cut at two standard deviations, as in Flax. These two have no bias at
    the start."""
    drop_path: float = Field(default=0.0, ge=0, lt=1)
    drop_path_schedule: Literal["linear", "constant"] = "linear"
    drop_path_batch: bool = False
    """One draw a block for the whole batch, instead of one a sample."""
    drop_path_rescale: bool = True
    """Whether what is kept in training is divided by the probability to keep it."""
    layer_scale: float | None = None

    @property
    def prefix(self) -> int:
        """Number of prefix tokens."""
        return int(self.class_token) + int(self.distill_token)

    @check(mode="after")
    def _check(self) -> Self:
        if self.pool == "token" and not self.class_token:
            raise ValueError("pool='token' reads the class token, so class_token must be true")
        if self.distill_token and not self.class_token:
            raise ValueError("distill_token stands behind a class token, so class_token must be true")
        if (self.pool == "prefix") != (self.head == "distilled") or (self.head == "distilled") != self.distill_token:
            raise ValueError("distill_token, pool='prefix' and head='distilled' belong together")
        if self.prefix and len(self.stages) > 1:
            raise ValueError("a class token cannot pass a downsampling: use one stage, or class_token=false")
        if self.position_grid is not None and self.positions == "none":
            raise ValueError("position_grid belongs to positions, and positions is 'none'")
        if any(b.norm_bias is False and (b.norm or self.norm) == "none" for s in self.stages for b in s.branches):
            raise ValueError("norm_bias belongs to a norm, and norm is 'none'")
        return self
