"""What a language model is made of."""

from typing import ClassVar, Literal

from pydantic import Field

from mixwise.config.base import Options
from mixwise.config.model import ModelConfig, Task


class GMLPTextConfig(ModelConfig):
    """embedding → blocks, each a spatial gate behind a layer norm → norm → (hidden layer →) logits of every token."""

    task: ClassVar[Task] = "text"
    kind: Literal["gmlp_text"] = "gmlp_text"
    vocabulary: int = Field(gt=0)
    """Number of token ids."""
    length: int = Field(gt=0)
    """Tokens that the weights are for."""
    dim: int = Field(gt=0)
    depth: int = Field(gt=0)
    gate: Options = {}
    """Of the mixer `spatial_gate`."""
    norm_eps: float = Field(default=1e-6, gt=0)
    """Of all norms but the one in the gate."""
    head: Literal["linear", "hidden"] = "hidden"
    """hidden: norm(gelu(linear)) as wide as the model in front of the logits, as in BERT."""
    tied: bool = True
    """Whether the matrix of the logits is the embedding."""
    drop_path: float = Field(default=0.0, ge=0, lt=1)
    """The same for every block."""

    @property
    def input(self) -> str:
        """The shape that the model takes, in words."""
        return f"{self.length} token ids below {self.vocabulary}"
