"""A trained model as an equal, cheaper one for inference: fold, prove it on noise and on pictures, write, report."""

import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mixwise.comparison import prepared, preprocessing, some_pictures
from mixwise.config import VisionConfig
from mixwise.errors import MixwiseError, UsageError
from mixwise.files import check_output
from mixwise.model import Model
from mixwise.norms import Affine, TokenBatchNorm
from mixwise.weights import load_file, resolve, save

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 2e-2}
"""Largest |Δ| accepted, relative to the largest output."""
BATCH = 8
"""Images that are compared at a time; a segmentation network takes gigabytes for more."""


class Side(NamedTuple):
    """One of the two forms."""

    parameters: int
    operators: int
    """Kernels that one forward pass calls."""
    norms: int
    """Batch norms and affine maps left."""
    milliseconds: float
    """Of a forward pass with one image: median of repeats, the two forms in turns."""


class Reparameterization(NamedTuple):
    """What folding changed, measured."""

    noise: float
    """Largest |Δ| of the outputs on normal noise."""
    pictures: float
    """Largest |Δ| on pictures."""
    largest: float
    """Largest |output| of the original."""
    same_top1: float
    """Share of the pictures with the same first class."""
    pictures_compared: int
    before: Side
    after: Side


def reparam(
    model: str | Path,
    out: str | Path,
    *,
    images: list[str] | None = None,
    limit: int = 64,
    repeats: int = 9,
    overwrite: bool = False,
) -> Reparameterization:
    """Fold a model file and write the result, after checking that it answers the same.

    Args:
        model: run folder or `.safetensors`.
        out: the file to write, another than `model`; its header says form = reparameterized, and it loads only in
            that form.
        images: files or folders to compare on; None: the built-in digits, drawn to the model's size.
        limit: how many pictures at most, evenly spread.
        repeats: timings of each form.
        overwrite: replace `out` where it is another file than the one that is read.

    Raises `MixwiseError` where the outputs differ by more than rounding (`TOLERANCE`); then nothing is written.
    """
    source, target = resolve(model), Path(out).expanduser()
    check_output(target, suffixes=(".safetensors",), source=source, overwrite=overwrite)
    loaded, header = load_file(source)
    if header.config.form == "reparameterized":
        raise UsageError(f"{model} is re-parameterised already")
    if not isinstance(loaded.config, VisionConfig):
        raise UsageError(f"{loaded.config.name} does not take images, so there is nothing to compare it on")
    fused = loaded.reparameterize()
    pictures = torch.cat(prepared(some_pictures(images, limit), preprocessing(header, loaded.config)))
    report = compare(loaded, fused, pictures, repeats=repeats)
    dtype = next(loaded.parameters()).dtype
    gap = max(report.noise, report.pictures)
    if not gap <= TOLERANCE[dtype] * report.largest:
        raise MixwiseError(
            f"re-parameterising {model} moved its outputs by {gap:.2g}, more than rounding explains: "
            "nothing was written"
        )
    save(target, fused.state_dict(), header.model_copy(update={"config": fused.config}))
    return report


@torch.inference_mode()
def compare(original: Model, fused: Model, pictures: Tensor, *, repeats: int = 9) -> Reparameterization:
    """Both forms on noise and on normalised pictures (b, c, h, w), and what each costs."""
    weight = next(original.parameters())
    pictures = pictures.to(weight.dtype)
    noise = torch.randn(pictures.shape, generator=torch.Generator().manual_seed(0)).to(weight.dtype)
    gaps, largest, same = [], 0.0, 1.0
    for x in (noise, pictures):
        shares, apart = [], []
        for batch in x.split(BATCH):
            a, b = original(batch).double(), fused(batch).double()
            apart.append(float((a - b).abs().max()))
            largest = max(largest, float(a.abs().max()))
            shares.append(float((a.argmax(1) == b.argmax(1)).double().mean()) * len(batch) / len(x))
        gaps.append(max(apart))
        same = sum(shares)
    times = _interleaved((original, fused), pictures[:1], repeats)
    before, after = (_side(m, pictures[:1], t) for m, t in zip((original, fused), times, strict=True))
    return Reparameterization(gaps[0], gaps[1], largest, same, len(pictures), before, after)


class _Counter(TorchDispatchMode):
    """Counts the operators that touch data; views are free."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def _side(model: Model, x: Tensor, milliseconds: float) -> Side:
    with _Counter() as counter:
        model(x)
    norms = sum(isinstance(m, TokenBatchNorm | Affine | torch.nn.BatchNorm2d) for m in model.modules())
    return Side(sum(p.numel() for p in model.parameters()), counter.count, norms, milliseconds)


def _interleaved(models: tuple[Model, Model], x: Tensor, repeats: int) -> list[float]:
    """Median milliseconds of each model, measured in turns after a warm-up."""
    found: list[list[float]] = [[] for _ in models]
    for turn in range(repeats + 2):
        for model, times in zip(models, found, strict=True):
            start = time.perf_counter()
            model(x)
            if turn >= 2:
                times.append(1000 * (time.perf_counter() - start))
    return [statistics.median(times) for times in found]
