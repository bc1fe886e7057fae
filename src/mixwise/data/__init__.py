"""Pictures: found in folders, decoded, augmented and served in batches.

What makes tensors is imported when it is first asked for: looking at pictures needs no torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from mixwise.data.bad import BadImage, BadImages
from mixwise.data.builtin import BUILTIN, builtin, export_builtin
from mixwise.data.catalog import Catalog, Items
from mixwise.data.decode import decode, size_of
from mixwise.data.discover import discover
from mixwise.data.layout import IMAGE_EXTENSIONS
from mixwise.data.layouts import located, read_listing, unlabelled
from mixwise.data.source import Stored
from mixwise.data.statistics import Statistics, measure

if TYPE_CHECKING:
    from mixwise.data.dataset import AddressedSampler, ImageDataset, loader
    from mixwise.data.transforms import Transform, evaluation_transform, training_transform, unnormalize

__all__ = [
    "BUILTIN",
    "IMAGE_EXTENSIONS",
    "AddressedSampler",
    "BadImage",
    "BadImages",
    "Catalog",
    "ImageDataset",
    "Items",
    "Statistics",
    "Stored",
    "Transform",
    "builtin",
    "decode",
    "discover",
    "evaluation_transform",
    "export_builtin",
    "loader",
    "located",
    "measure",
    "read_listing",
    "size_of",
    "training_transform",
    "unlabelled",
    "unnormalize",
]

_HOMES = {
    "AddressedSampler": "dataset",
    "ImageDataset": "dataset",
    "loader": "dataset",
    "Transform": "transforms",
    "evaluation_transform": "transforms",
    "training_transform": "transforms",
    "unnormalize": "transforms",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mixwise.data' has no attribute {name!r}")
    return getattr(importlib.import_module(f"mixwise.data.{_HOMES[name]}"), name)
