"""The file format: one `.safetensors` whose header holds everything needed to use the weights. No pickle."""

import hashlib
import importlib.metadata
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import BeforeValidator, SerializeAsAny
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from mixwise.config import Config, Decision, ModelConfig, Preprocess, Task
from mixwise.errors import MixwiseError
from mixwise.files import replacing
from mixwise.model import Model, build, parse_config

KEY = "mixwise"
FORMAT = 1


class Header(Config):
    """What a model file says about itself."""

    format: int = FORMAT
    task: Task = "classify"
    config: Annotated[SerializeAsAny[ModelConfig], BeforeValidator(parse_config)]
    classes: tuple[str, ...] = ()
    """Names in the order of the outputs."""
    preprocess: Preprocess | None = None
    weights: Literal["raw", "ema"] = "raw"
    """Whether these are the trained weights or their running average."""
    epoch: int | None = None
    """Epochs trained."""
    metrics: dict[str, float] = {}
    """Measured on the validation pictures with exactly these weights, as shares of 1."""
    decision: Decision = Decision()
    """How probabilities become answers; of a file without it, the defaults."""
    versions: dict[str, str] = {}
    origin: str = ""
    """Of a converted file: which file, format and public weights it was made from."""


def versions() -> dict[str, str]:
    """Versions of what computes the numbers."""
    return {name: importlib.metadata.version(name) for name in ("mixwise", "torch", "torchvision", "timm", "pillow")}


def save(path: Path, state: Mapping[str, Tensor], header: Header) -> None:
    """Write weights and header to `path` in one step: a crash leaves the old file.

    Metrics that are not finite are left out, since JSON has no such numbers.
    """
    finite = {name: value for name, value in header.metrics.items() if math.isfinite(value)}
    header = header.model_copy(update={"metrics": finite})
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    with replacing(path) as temporary:
        save_file(tensors, temporary, metadata={KEY: header.to_json()})


def is_native(path: Path) -> bool:
    """Whether a file is one of ours; its weights may still be damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            return KEY in (file.metadata() or {})
    except (SafetensorError, OSError, ValueError):
        return False


def read_header(path: Path) -> Header:
    """The header alone, without reading the weights."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise MixwiseError(f"{path} is not a readable safetensors file ({error})") from None
    if KEY not in metadata:
        raise MixwiseError(
            f"{path} is a safetensors file without a mixwise header: bare weights do not say their model"
        )
    try:
        found = json.loads(metadata[KEY])
    except json.JSONDecodeError:
        found = None
    if not isinstance(found, dict):
        raise MixwiseError(f"{path} has a damaged mixwise header: it is no JSON table")
    if found.get("format") != FORMAT:
        raise MixwiseError(f"{path} has format {found.get('format')}; this version of mixwise reads format {FORMAT}")
    return Header.parse(found, str(path))


def load_file(path: Path) -> tuple[Model, Header]:
    """The model in evaluation mode, and the header. Every key must fit."""
    header = read_header(path)
    model = build(header.config)
    with safe_open(path, framework="pt") as file:
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (safe_open is no mapping)
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise MixwiseError(f"{path} does not fit its own config {header.config.name}: {error}") from None
    return model.eval(), header


def weights_hash(state: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, types, shapes and bytes: equal exactly where the weights are equal."""
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
