"""What a segmentation network with external attention is made of."""

from typing import ClassVar, Literal

from pydantic import Field, PositiveInt

from mixwise.config.base import Size
from mixwise.config.model import Task, VisionConfig


class EANetConfig(VisionConfig):
    """What an EANet is made of. Its convolutions take any image size; `image` is that of training."""

    task: ClassVar[Task] = "segment"
    kind: Literal["eanet"] = "eanet"
    image: Size = (513, 513)
    classes: int = Field(default=21, ge=0)
    """0: no last convolution and no upsampling, the model gives the map (b, hidden, rows, columns)."""
    blocks: tuple[PositiveInt, PositiveInt, PositiveInt, PositiveInt] = (3, 4, 6, 3)
    """Bottlenecks of the four stages."""
    width: int = Field(default=64, gt=0)
    """Of the first stage's bottlenecks; the stages give 4, 8, 16 and 32 times as many channels."""
    output_stride: Literal[8, 16] = 8
    """Pixels a token of the last map is apart from the next."""
    dim: int = Field(default=512, gt=0)
    """Channels of the external attention."""
    memory: int = Field(default=64, gt=0)
    """Slots of the external attention."""
    eps: float | None = Field(default=1e-9, gt=0)
    """Added to the sum over slots; None: nothing."""
    hidden: int = Field(default=256, gt=0)
    """Channels in front of the last convolution."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Of whole channels there."""
