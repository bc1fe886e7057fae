"""Models by name. House models for every mixer are in house.py; the papers' own presets get one file a paper here."""

from mixwise.models.compact import register_compact_models
from mixwise.models.house import register_house_models
from mixwise.models.registry import PRESETS, create_model, describe, list_models, model_config, register_preset

__all__ = ["PRESETS", "create_model", "describe", "list_models", "model_config", "register_preset"]

register_house_models()
register_compact_models()
