"""Settings of a run from where people write them: recipe files and `path=value` texts."""

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mixwise.errors import UsageError

OWN = (
    "task",
    "classes",
    "data.source",
    "data.fingerprint",
    "data.rename",
    "data.folds",
    "data.fold",
    "pretrained_hash",
)
"""What a config.toml says of the run that it was written for and not of another."""


def read_recipe(recipe: str | Path | None) -> dict[str, Any]:
    """The settings of a recipe file by dotted path, without those that say which pictures it was made for."""
    if recipe is None:
        return {}
    path = Path(recipe).expanduser()
    if not path.is_file():
        raise UsageError(f"no recipe file at {path}")
    try:
        settings = _flat(tomllib.loads(path.read_text(encoding="utf-8")))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from None
    return {k: v for k, v in settings.items() if k not in OWN}


def short_settings(
    *,
    model: str | None,
    epochs: int | None,
    batch_size: int | None,
    image: int | tuple[int, int] | None,
    lr: float | None,
    balance: str | None,
    seed: int | None,
    device: str | None,
    devices: int | None,
    deterministic: bool,
    compile: bool,
    init: str | Path | None,
    pretrained: bool | str | Path | None,
    freeze: str | None,
    on_bad: str | None,
    max_pixels: int | None,
    val_split: float | None,
    split_seed: int | None,
    unknown: str | None,
) -> dict[str, Any]:
    """The settings that have short names, by dotted path, without those that were not given."""
    if init is not None and pretrained:
        raise UsageError("--init and --pretrained both say which weights to start from: give one of them")
    start = pretrained if init is None else Path(init)
    settings = {
        "model": model,
        "pretrained": str(start) if isinstance(start, Path) else start or None,
        "seed": seed,
        "device": device,
        "devices": devices,
        "deterministic": deterministic or None,
        "compile": compile or None,
        "preprocess.image": image,
        "recipe.epochs": epochs,
        "recipe.batch_size": batch_size,
        "recipe.optimizer.lr": lr,
        "recipe.balance": balance,
        "recipe.freeze": freeze,
        "data.on_bad": on_bad,
        "data.max_pixels": max_pixels,
        "data.val_split": val_split,
        "data.split_seed": split_seed,
        "data.unknown": unknown,
    }
    return {name: value for name, value in settings.items() if value is not None}


def _flat(data: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict) and prefix + key != "changes":
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def parse_changes(pairs: Sequence[str]) -> dict[str, Any]:
    """`path=value` texts as settings; the value is read as JSON where it is JSON, else as text.

    >>> parse_changes(["recipe.epochs=5", "precision=fp32"])
    {'recipe.epochs': 5, 'precision': 'fp32'}
    """
    changes = {}
    for pair in pairs:
        path, equals, value = pair.partition("=")
        if not equals or not path:
            raise UsageError(f"--set takes path=value, got {pair!r}; for example --set recipe.optimizer.lr=0.001")
        try:
            changes[path] = json.loads(value)
        except json.JSONDecodeError:
            changes[path] = value
    return changes
