"""mixwise: vision backbones that mix tokens without self-attention.

The names below load on first use, so `import mixwise` is quick and pulls in no torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mixwise.backbone import Backbone, Features
    from mixwise.config import BackboneConfig
    from mixwise.errors import MixwiseError, UsageError
    from mixwise.mixers import Mixer, register
    from mixwise.models import create_model, list_models

__version__ = "0.1.0"

_HOMES = {
    "Backbone": "mixwise.backbone",
    "BackboneConfig": "mixwise.config",
    "Features": "mixwise.backbone",
    "Mixer": "mixwise.mixers",
    "MixwiseError": "mixwise.errors",
    "UsageError": "mixwise.errors",
    "create_model": "mixwise.models",
    "list_models": "mixwise.models",
    "register": "mixwise.mixers",
}

__all__ = [
    "Backbone",
    "BackboneConfig",
    "Features",
    "Mixer",
    "MixwiseError",
    "UsageError",
    "create_model",
    "list_models",
    "register",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mixwise' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
