"""EANet: the external-attention block and the network, whose weights are given by a rule."""

import re
import zlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mixwise.models.eanet import BLOCKS, ExternalAttentionBlock, eanet
from mixwise.weights.eanet import external_attention_block
from parity.case import Case, Vector, builder, from_format


def as_is(x: Tensor) -> Tensor:
    """A map stays a map."""
    return x


def slots_first(x: Tensor) -> Tensor:
    """(b, n, s) → (b, s, n)."""
    return x.transpose(1, 2)


@builder("external_attention", "External_attention")
def block(vector: Vector) -> Case:
    return Case(
        lambda: ExternalAttentionBlock(vector.arguments["c"], eps=1e-9),
        external_attention_block("", ""),
        inter={
            "query": ("query", as_is),
            "slot_logits": ("attention.key", slots_first),
            "values": ("attention.value", slots_first),
        },
    )


@builder("external_attention", "EANet")
def network(vector: Vector) -> Case:
    a = vector.arguments
    config = eanet(
        image=vector.size,
        classes=a["n_classes"],
        blocks=BLOCKS[f"r{a['n_layers']}"],
        output_stride=a["stride"],
    )
    return from_format(
        "eanet", config, inter={"stem": ("stem", as_is), "ea": ("block", as_is), "logits_low": ("head", as_is)}
    )


def weights_by_rule(vector: Vector) -> Mapping[str, Tensor]:
    """The weights that the json of a vector describes, checked against the values that it states."""
    return _drawn(vector.path)


@lru_cache(maxsize=1)
def _drawn(path: Path) -> dict[str, Tensor]:
    rule = Vector.read(path).meta["weights"]
    state = {key: _tensor(rule["seed"], key, tuple(shape), rule["keys"]) for key, shape in rule["keys"].items()}
    for key, (first, last, total) in rule["check"].items():
        tensor = state[key].double().flatten()
        assert (tensor[0].item(), tensor[-1].item()) == (first, last), key
        assert abs(tensor.sum().item() - total) <= 1e-9 * tensor.abs().sum().item(), key
    return state


GAINS = {"linu.linear_0.weight": 2.0, "linu.linear_1.weight": 8.0, "fc2.weight": 1.0}


def _tensor(seed: str, key: str, shape: tuple[int, ...], keys: Mapping[str, list[int]]) -> Tensor:
    path, name = key.rsplit(".", 1)
    if name == "num_batches_tracked":
        return torch.tensor(0)
    r = np.random.RandomState(zlib.crc32(f"{seed}/{key}".encode()))
    if f"{path}.running_mean" in keys:
        value = _norm_tensor(r, path, name, shape)
    elif name == "bias":
        value = 0.3 * r.standard_normal(shape)
    else:
        value = r.standard_normal(shape) * GAINS.get(key, 1.4) / np.sqrt(np.prod(shape[1:]))
    return torch.from_numpy(np.asarray(value, dtype=np.float32))


def _norm_tensor(r: np.random.RandomState, path: str, name: str, shape: tuple[int, ...]) -> np.ndarray:
    n = shape[0]
    small = (np.arange(n) + zlib.crc32(path.encode())) % min(4, n) == 0
    if name == "running_var":
        return r.uniform(0.5, 2.0, shape) * np.where(small, 0.001, 1.0)
    if name == "weight":
        gain = 0.4 if re.search("bn3|downsample", path) else 1.0
        return (1 + 0.3 * r.standard_normal(shape)) * gain * np.where(small, 0.03, 1.0)
    return 0.3 * r.standard_normal(shape)
