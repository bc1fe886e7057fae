"""Answers of a model on some pictures, to compare two forms of it."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mixwise.config import Preprocess, VisionConfig
from mixwise.data import ImageDataset, Items, builtin, evaluation_transform, loader
from mixwise.model import Model
from mixwise.prediction import find_images
from mixwise.weights import Header


def some_pictures(images: Sequence[str] | None, count: int) -> Items:
    """At most `count` pictures, evenly spread over files and folders; None: over the built-in digits for testing."""
    if images is None:
        found = builtin("digits").splits["test"]
        kept = _spread(len(found), count)
        return Items(tuple(found.sources[i] for i in kept), found.labels[kept], tuple(found.names[i] for i in kept))
    paths = find_images(images)
    chosen = tuple(paths[i] for i in _spread(len(paths), count))
    return Items(chosen, np.zeros(len(chosen), dtype=np.int64), tuple(map(str, chosen)))


def _spread(total: int, count: int) -> list[int]:
    return [i * total // min(count, total) for i in range(min(count, total))]


def preprocessing(header: Header, config: VisionConfig) -> Preprocess:
    """That of a model file; without one in its header, values from -1 to 1."""
    half = (0.5,) * config.channels
    plain = {"image": config.image, "channels": config.channels, "mean": half, "std": half}
    return header.preprocess or Preprocess.parse(plain)


def prepared(items: Items, pre: Preprocess, *, batch_size: int = 32) -> list[Tensor]:
    """Pictures as a model takes them, in batches (b, c, h, w)."""
    dataset = ImageDataset(items, pre, evaluation_transform(pre), train=False)
    return [batch for batch, _, _ in loader(dataset, batch_size, train=False, workers=0)]


def answers(model: Model, items: Items, pre: Preprocess) -> Tensor:
    """What a model of images says about pictures, (n, classes) in float32; of an answer per place, the mean."""
    dtype = next(model.parameters()).dtype
    rows = []
    with torch.inference_mode():
        for batch in prepared(items, pre):
            answer = model(batch.to(dtype)).float()
            rows.append(answer if answer.dim() == 2 else answer.flatten(2).mean(dim=2))
    return torch.cat(rows)
