"""What every model is, and how its config becomes it."""

import copy
from collections.abc import Callable
from typing import Any, NoReturn, Self, TypeVar

import torch
from torch import Tensor, nn

from mixwise.config import ModelConfig, Size, VisionConfig
from mixwise.errors import UsageError, unknown
from mixwise.mixers.base import ResizeMethod


class Model(nn.Module):
    """A model that is built from its config alone: `type(model)(model.config)` is the same architecture, fresh."""

    config: ModelConfig
    trainable_when_fused: bool = False
    """Set by `reparameterize(trainable=True)`."""

    def example(self, batch: int = 1) -> Tensor:
        """An input of the shape that the model takes; of noise, always the same."""
        config = self.config
        if not isinstance(config, VisionConfig):
            raise NotImplementedError
        shape = (batch, config.channels, *config.image)
        return torch.randn(shape, generator=torch.Generator().manual_seed(0))

    def reparameterize(self, *, trainable: bool = False) -> Self:
        """A new, equal, cheaper model for inference (evaluation mode). The original is left as it is.

        Equality holds for the statistics that the batch norms have now. Training the result is another training than
        that of the original, without its norms and branches, so it has to be asked for.

        Args:
            trainable: let `train()` pass; otherwise it raises `UsageError`.
        """
        model = copy.deepcopy(self).eval()
        model.trainable_when_fused = trainable
        if self.config.form != "reparameterized":
            with torch.no_grad():
                model.fold()
            model.config = self.config.model_copy(update={"form": "reparameterized"})
        return model

    def train(self, mode: bool = True) -> Self:
        """As in torch, but a re-parameterised model refuses unless it was made with trainable=True."""
        if mode and self.config.form == "reparameterized" and not self.trainable_when_fused:
            raise UsageError(
                f"{self.config.name} is re-parameterised: its norms are folded away, so training it is not training "
                "the original; train the trainable form, or ask for it with reparameterize(trainable=True)"
            )
        return super().train(mode)

    def fold(self) -> None:
        """Fold what algebra allows, in place; how a fresh model gets the shape of a re-parameterised one too."""
        raise NotImplementedError

    def refit(self, image: Size, method: ResizeMethod) -> ModelConfig:
        """Carry the weights to another image size, in place; returns the config that they now fit.

        `mixwise.resize` is the way to call it. Here: for models of images whose weights do not depend on the size.
        """
        if not isinstance(self.config, VisionConfig):
            raise UsageError(f"{self.config.name} is no model of images and has no image size")
        return self.config.model_copy(update={"image": image})


def image_size(config: VisionConfig, images: Tensor) -> Size:
    """(height, width) of images (b, channels, h, w); `UsageError` where they have another form."""
    if images.dim() != 4 or images.shape[1] != config.channels:
        raise UsageError(
            f"{config.name} takes images (b, {config.channels}, h, w), got a tensor of shape {tuple(images.shape)}"
        )
    return int(images.shape[2]), int(images.shape[3])


def refuse_size(config: VisionConfig, size: Size) -> NoReturn:
    """The sentence of a model whose weights belong to one image size."""
    h, w = config.image
    raise UsageError(
        f"{config.name} has weights for {h}×{w} pixels and was given {size[0]}×{size[1]}; the size that works is "
        f"{h}×{w} (create the model with image=({size[0]}, {size[1]}) to train it at the other)"
    )


M = TypeVar("M", bound=type[Model])

ARCHITECTURES: dict[str, tuple[type[ModelConfig], Callable[[Any], Model]]] = {}
"""Config class and model class by kind."""


def register_architecture(config: type[ModelConfig]) -> Callable[[M], M]:
    """Class decorator: the model is built from configs of this class, and its files can be read."""

    def add(cls: M) -> M:
        ARCHITECTURES[config.model_fields["kind"].default] = (config, cls)
        return cls

    return add


def build(config: ModelConfig) -> Model:
    """A fresh model from a config of any architecture."""
    return ARCHITECTURES[config.kind][1](config)


def parse_config(data: Any) -> ModelConfig:
    """The config that plain data describes, by its `kind`; a config passes."""
    if isinstance(data, ModelConfig):
        return data
    kind = data.get("kind", "backbone") if isinstance(data, dict) else None
    if not isinstance(kind, str):
        raise UsageError(f"a model's config must be a table with a kind, got {data!r}")
    if kind not in ARCHITECTURES:
        raise unknown("kind of model", kind, ARCHITECTURES)
    return ARCHITECTURES[kind][0].parse(data)
