"""Pictures: found in folders, decoded, augmented and served in batches."""

from mixwise.data.bad import BadImage, BadImages
from mixwise.data.builtin import BUILTIN, builtin, export_builtin
from mixwise.data.catalog import Catalog, Items
from mixwise.data.dataset import AddressedSampler, ImageDataset, loader
from mixwise.data.decode import decode, size_of
from mixwise.data.discover import discover
from mixwise.data.layout import IMAGE_EXTENSIONS
from mixwise.data.layouts import located, read_listing, unlabelled
from mixwise.data.source import Stored
from mixwise.data.statistics import Statistics, measure
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
