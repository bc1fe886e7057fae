"""PCT files of Strawberry-Eat-Mango/PCT_Pytorch, the port that the authors of PCT point to: `pct` and `pct_position`.

Their layers are 1 × 1 convolutions of one dimension, linear layers here. The convolutions of queries and keys are one
tensor under two names. A file does not say the groups, the number of points or that sampling starts at the first point
of a cloud: that is `order="given"` here.
"""

import torch
from torch import Tensor

from mixwise.config import ModelConfig, PCTConfig
from mixwise.errors import MixwiseError
from mixwise.weights.mapping import Entry, Format, Shapes, batch_norm, module, register_format, same, squeezed


def _conv(ours: str, theirs: str, *, bias: bool = False) -> list[Entry]:
    return [
        squeezed(f"{ours}.weight", f"{theirs}.weight", 1),
        *([same(f"{ours}.bias", f"{theirs}.bias")] if bias else []),
    ]


def _conv_norm(ours: str, conv: str, norm: str, *, bias: bool = False) -> list[Entry]:
    return [*_conv(f"{ours}.linear", conv, bias=bias), *batch_norm(f"{ours}.norm", norm)]


def _shared(ours: str, query: str, key: str) -> Entry:
    """Queries and keys."""

    def read(q: Tensor, k: Tensor) -> Tensor:
        if not torch.equal(q, k):
            raise MixwiseError(f"{query} and {key} are not the same, and queries are keys here")
        return k.reshape(k.shape[:2])

    return Entry(ours, (query, key), read, lambda x: (x[..., None].clone(), x[..., None]))


def pct(config: PCTConfig) -> list[Entry]:
    """Keys of the class `Pct`, without or with the code of positions."""
    entries = _conv_norm("embed.0", "conv1", "bn1") + _conv_norm("embed.2", "conv2", "bn2")
    for i in range(len(config.groups)):
        entries += _conv_norm(f"groups.{i}.first", f"gather_local_{i}.conv1", f"gather_local_{i}.bn1")
        entries += _conv_norm(f"groups.{i}.second", f"gather_local_{i}.conv2", f"gather_local_{i}.bn2")
    for i in (1,) if config.positions else (1, 2):
        entries += _conv_norm(f"before.{2 * i - 2}", f"pt_last.conv{i}", f"pt_last.bn{i}")
    if config.positions:
        entries += _conv("position", "pt_last.pos_xyz", bias=True)
    for i in range(config.depth):
        ours, theirs = f"layers.{i}", f"pt_last.sa{i + 1}"
        entries.append(_shared(f"{ours}.attention.key.weight", f"{theirs}.q_conv.weight", f"{theirs}.k_conv.weight"))
        entries += _conv(f"{ours}.attention.value", f"{theirs}.v_conv", bias=True)
        entries += _conv_norm(f"{ours}.out", f"{theirs}.trans_conv", f"{theirs}.after_norm", bias=True)
    entries += _conv_norm("fuse.0", "conv_fuse.0", "conv_fuse.1")
    if config.classes:
        for i in range(len(config.hidden)):
            entries += module(f"head.{3 * i}.linear", f"linear{i + 1}", bias=i > 0)
            entries += batch_norm(f"head.{3 * i}.norm", f"bn{i + 6}")
        entries += module(f"head.{3 * len(config.hidden)}", f"linear{len(config.hidden) + 1}")
    return entries


def _adapt(config: ModelConfig, shapes: Shapes) -> ModelConfig:
    return config.model_copy(update={"classes": shapes.get("linear3.bias", (0,))[0]})


register_format(
    Format(
        "pct",
        "PCT of Strawberry-Eat-Mango/PCT_Pytorch, which the authors point to",
        ("pct", "pct_position"),
        lambda shapes: "gather_local_0.conv1.weight" in shapes and "pt_last.sa1.k_conv.weight" in shapes,
        pct,
        lambda config: {},
        adapt=_adapt,
        notes=('the authors start sampling at the first point of a cloud: create_model(..., order="given") does so',),
    )
)
