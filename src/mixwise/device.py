"""Which processor and which precision, and why; and the device without memory."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from mixwise.errors import UsageError


class Precision(NamedTuple):
    """A precision and the reason for it."""

    name: str
    """fp32, bf16 or fp16."""
    why: str

    @property
    def lightning(self) -> str:
        """Lightning's name for it."""
        return {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}[self.name]


def choose_device(wanted: str = "auto") -> str:
    """cpu, cuda or mps; "auto" takes the best that is there."""
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if wanted == "auto":
        return next(name for name in ("cuda", "mps", "cpu") if there[name])
    if not there.get(wanted, False):
        raise UsageError(
            f"device {wanted!r} is not available here; available: {', '.join(n for n in there if there[n])}"
        )
    return wanted


def has_native_bf16() -> bool:
    """Whether this processor multiplies bfloat16 in hardware (AVX512-BF16, AMX or Arm BF16)."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="ignore")
    except OSError:
        return False
    lines = [line for line in flags.splitlines() if line.startswith(("flags", "Features"))]
    words = set(lines[0].split()) if lines else set()
    return bool(words & {"avx512_bf16", "amx_bf16", "bf16"})


def choose_precision(wanted: str, device: str) -> Precision:
    """The precision to train with; "auto" is bf16 where the hardware has it, else fp32."""
    if wanted == "fp16" and device != "cuda":
        raise UsageError(f"precision fp16 needs a CUDA device, this run is on {device}; allowed here: fp32, bf16")
    if wanted != "auto":
        return Precision(wanted, "as asked")
    if device == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
        return Precision("bf16", "this GPU has it") if native else Precision("fp32", "this GPU has no bf16")
    if device == "cpu" and has_native_bf16():
        return Precision("bf16", "this processor has native bf16")
    return Precision("fp32", f"no native bf16 on this {device} device")


@contextmanager
def shapes_only() -> Iterator[None]:
    """Modules that are built inside have shapes and no memory; no values are drawn for them.

    >>> with shapes_only():
    ...     torch.nn.Linear(2, 3).weight.device
    device(type='meta')
    """
    with torch.device("meta"), _Unfilled():
        yield


class _Unfilled(TorchFunctionMode):
    """Leaves out what fills a tensor without memory: that takes longer than all else in building a model."""

    FILLS = frozenset(
        getattr(place, name)
        for place, names in (
            (torch.Tensor, ("fill_", "normal_", "uniform_", "zero_")),
            (nn.init, ("constant_", "kaiming_uniform_", "normal_", "ones_", "trunc_normal_", "uniform_", "zeros_")),
        )
        for name in names
    )

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        filled = args[0] if args else (kwargs or {}).get("tensor")
        if func in self.FILLS and filled is not None and filled.is_meta:
            return filled
        return func(*args, **(kwargs or {}))
