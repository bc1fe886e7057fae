"""Which processor and which precision, and why."""

from pathlib import Path
from typing import NamedTuple

import torch

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
