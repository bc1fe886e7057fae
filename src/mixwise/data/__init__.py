"""Pictures: found in folders, decoded, augmented and served in batches."""

from mixwise.data.builtin import BUILTIN, export_builtin
from mixwise.data.catalog import Catalog, Items
from mixwise.data.decode import BadImage, decode
from mixwise.data.discover import discover

__all__ = ["BUILTIN", "BadImage", "Catalog", "Items", "decode", "discover", "export_builtin"]
