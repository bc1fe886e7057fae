"""Every setting as frozen, validated data that round-trips through JSON and TOML. Imports no torch."""

from mixwise.config.base import Config, Options, Size, pair
from mixwise.config.data import MAX_PIXELS, Augment, Data, Preprocess
from mixwise.config.decision import Decision
from mixwise.config.eanet import EANetConfig
from mixwise.config.model import PURPOSE, BackboneConfig, BranchConfig, ModelConfig, StageConfig, Task, VisionConfig
from mixwise.config.points import PCTConfig
from mixwise.config.repmlp import RepMLPBlockConfig, RepMLPPlainConfig, RepMLPResNetConfig, RepMLPStageConfig
from mixwise.config.text import GMLPTextConfig
from mixwise.config.training import Optimizer, Recipe, Train

__all__ = [
    "MAX_PIXELS",
    "PURPOSE",
    "Augment",
    "BackboneConfig",
    "BranchConfig",
    "Config",
    "Data",
    "Decision",
    "EANetConfig",
    "GMLPTextConfig",
    "ModelConfig",
    "Optimizer",
    "Options",
    "PCTConfig",
    "Preprocess",
    "Recipe",
    "RepMLPBlockConfig",
    "RepMLPPlainConfig",
    "RepMLPResNetConfig",
    "RepMLPStageConfig",
    "Size",
    "StageConfig",
    "Task",
    "Train",
    "VisionConfig",
    "pair",
]
