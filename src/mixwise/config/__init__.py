"""Every setting as frozen, validated data that round-trips through JSON and TOML. Imports no torch."""

from mixwise.config.base import Config, Options, Size, pair
from mixwise.config.data import Augment, Data, Preprocess
from mixwise.config.eanet import EANetConfig
from mixwise.config.model import BackboneConfig, BranchConfig, ModelConfig, StageConfig, VisionConfig
from mixwise.config.training import Optimizer, Recipe, Train

__all__ = [
    "Augment",
    "BackboneConfig",
    "BranchConfig",
    "Config",
    "Data",
    "EANetConfig",
    "ModelConfig",
    "Optimizer",
    "Options",
    "Preprocess",
    "Recipe",
    "Size",
    "StageConfig",
    "Train",
    "VisionConfig",
    "pair",
]
