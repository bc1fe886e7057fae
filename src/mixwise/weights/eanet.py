"""EANet files of MenghaoGuo/EANet: a dictionary with the weights under `net` and a number of steps.

The keys do not tell the output stride, 8 in the authors' setting: name the preset. The memories of the block are 1 × 1
convolutions of one dimension there, linear layers here.
"""

from typing import Any

from mixwise.config import EANetConfig, ModelConfig
from mixwise.weights.mapping import Entry, Format, batch_norm, module, register_format, same, squeezed


def _conv_norm(ours: str, conv: str, norm: str) -> list[Entry]:
    return [same(f"{ours}.conv.weight", f"{conv}.weight"), *batch_norm(f"{ours}.norm", norm)]


def external_attention_block(ours: str, theirs: str) -> list[Entry]:
    """The class `External_attention`; a prefix ends in its dot or is empty."""
    return [
        *module(f"{ours}query", f"{theirs}conv1"),
        squeezed(f"{ours}attention.key.weight", f"{theirs}linear_0.weight", 1),
        squeezed(f"{ours}attention.value.weight", f"{theirs}linear_1.weight", 1),
        *_conv_norm(f"{ours}out", f"{theirs}conv2.0", f"{theirs}conv2.1"),
    ]


def eanet(config: EANetConfig) -> list[Entry]:
    """Keys of the network; the ResNet is `extractor` there, a sequence."""
    entries = _conv_norm("stem.0", "extractor.0.0", "extractor.0.1")
    entries += _conv_norm("stem.2", "extractor.0.3", "extractor.0.4")
    entries += _conv_norm("stem.4", "extractor.0.6", "extractor.1")
    for stage, depth in enumerate(config.blocks):
        for i in range(depth):
            ours, theirs = f"stages.{stage}.{i}", f"extractor.{stage + 4}.{i}"
            for n in (1, 2, 3):
                entries += _conv_norm(f"{ours}.conv{n}", f"{theirs}.conv{n}", f"{theirs}.bn{n}")
            if i == 0:
                entries += _conv_norm(f"{ours}.shortcut", f"{theirs}.downsample.0", f"{theirs}.downsample.1")
    entries += _conv_norm("reduce", "fc0.conv", "fc0.bn")
    entries += external_attention_block("block.", "linu.")
    entries += _conv_norm("refine", "fc1.0.conv", "fc1.0.bn")
    return entries + (module("head", "fc2") if config.classes else [])


def _preprocess(config: ModelConfig) -> dict[str, Any]:
    normal = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
    return normal | {"fit": "pad", "filter": "bilinear", "background": (0, 0, 0)}


register_format(
    Format(
        "eanet",
        "EANet of its authors (MenghaoGuo/EANet)",
        ("eanet_*_os8", "eanet_*_os16"),
        lambda shapes: "linu.linear_0.weight" in shapes and "extractor.0.0.weight" in shapes,
        eanet,
        _preprocess,
    )
)
