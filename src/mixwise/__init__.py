"""mixwise: vision backbones that mix tokens without self-attention.

The names below load on first use, so `import mixwise` is quick and pulls in no torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mixwise.backbone import Backbone, Features
    from mixwise.config import BackboneConfig
    from mixwise.crossvalidation import CrossValidation, cross_validate
    from mixwise.errors import MixwiseError, UsageError
    from mixwise.evaluation import Evaluation, evaluate
    from mixwise.mixers import Mixer, register
    from mixwise.models import list_models
    from mixwise.prediction import Prediction, Predictor
    from mixwise.reparameterization import Reparameterization, reparam
    from mixwise.resizing import resize
    from mixwise.screening import Check, check
    from mixwise.trainer import TrainResult, train
    from mixwise.weights import Header, create_model, info, load
    from mixwise.weights.convert import convert

__version__ = "0.1.0"

_HOMES = {
    "Backbone": "mixwise.backbone",
    "BackboneConfig": "mixwise.config",
    "Check": "mixwise.screening",
    "CrossValidation": "mixwise.crossvalidation",
    "Evaluation": "mixwise.evaluation",
    "Features": "mixwise.backbone",
    "Header": "mixwise.weights",
    "Mixer": "mixwise.mixers",
    "MixwiseError": "mixwise.errors",
    "Prediction": "mixwise.prediction",
    "Predictor": "mixwise.prediction",
    "Reparameterization": "mixwise.reparameterization",
    "TrainResult": "mixwise.trainer",
    "UsageError": "mixwise.errors",
    "check": "mixwise.screening",
    "convert": "mixwise.weights",
    "create_model": "mixwise.weights",
    "cross_validate": "mixwise.crossvalidation",
    "evaluate": "mixwise.evaluation",
    "info": "mixwise.weights",
    "list_models": "mixwise.models",
    "load": "mixwise.weights",
    "register": "mixwise.mixers",
    "reparam": "mixwise.reparameterization",
    "resize": "mixwise.resizing",
    "train": "mixwise.trainer",
}

__all__ = [
    "Backbone",
    "BackboneConfig",
    "Check",
    "CrossValidation",
    "Evaluation",
    "Features",
    "Header",
    "Mixer",
    "MixwiseError",
    "Prediction",
    "Predictor",
    "Reparameterization",
    "TrainResult",
    "UsageError",
    "check",
    "convert",
    "create_model",
    "cross_validate",
    "evaluate",
    "info",
    "list_models",
    "load",
    "register",
    "reparam",
    "resize",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mixwise' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
