"""Models on disk: the native format here, one file for each foreign format."""

from mixwise.weights.native import Header, load_file, read_header, save, weights_hash
from mixwise.weights.resolve import BEST, LAST, info, load, resolve

__all__ = [
    "BEST",
    "LAST",
    "Header",
    "info",
    "load",
    "load_file",
    "read_header",
    "resolve",
    "save",
    "weights_hash",
]
