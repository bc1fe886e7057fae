"""Models by name. House and compact models exist for every mixer; the papers' own presets get one file a paper here."""

from mixwise.models.registry import create_model, describe, list_models, model_config, presets, register_preset

__all__ = ["create_model", "describe", "list_models", "model_config", "presets", "register_preset"]
