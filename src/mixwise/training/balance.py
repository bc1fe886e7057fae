"""Classes of unequal size: how much each picture and each class counts."""

import numpy as np
from torch import Tensor

from mixwise.config import Recipe
from mixwise.tasks import Task


def class_counts(labels: np.ndarray, classes: int) -> np.ndarray:
    """Pictures of each class, (classes,), from labels as `Items` has them."""
    return np.bincount(labels, minlength=classes) if labels.ndim == 1 else labels.sum(axis=0).astype(np.int64)


def picture_weights(labels: np.ndarray, classes: int) -> np.ndarray:
    """How often each picture should be drawn, (n,): so that every class comes as often as any other.

    With several labels a picture, its rarest label decides; pictures without a label count as a class of their own.
    """
    counts = class_counts(labels, classes).clip(min=1)
    if labels.ndim == 1:
        return 1 / counts[labels]
    none = labels.sum(axis=1) == 0
    return np.where(none, 1 / max(1, int(none.sum())), (labels / counts).max(axis=1))


def loss_weights(recipe: Recipe, task: Task, labels: np.ndarray, classes: int) -> Tensor | None:
    """What `Task.loss` takes as `weight`; None without `recipe.balance = "loss"`."""
    return task.balance(class_counts(labels, classes), len(labels)) if recipe.balance == "loss" else None


def drawing_weights(recipe: Recipe, labels: np.ndarray, classes: int) -> np.ndarray | None:
    """What `AddressedSampler` takes as `weights`; None without `recipe.balance = "sampler"`."""
    return picture_weights(labels, classes) if recipe.balance == "sampler" else None


def balance_line(recipe: Recipe, task: Task, labels: np.ndarray, names: tuple[str, ...]) -> str:
    """What `recipe.balance` does to these classes, as one line."""
    weight = loss_weights(recipe, task, labels, len(names))
    if weight is None:
        return "sampler: every class is drawn equally often"
    rows = [f"{name} ×{value:.2g}" for value, name in sorted(zip(weight.tolist(), names, strict=True), reverse=True)]
    return "loss: " + ", ".join(rows if len(rows) <= 12 else [*rows[:3], "…", *rows[-3:]])
