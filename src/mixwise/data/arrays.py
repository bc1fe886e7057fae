"""Pictures that are in memory already: arrays and tensors as Pillow images of 8 bits a channel."""

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from mixwise.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor


def is_tensor(source: Any) -> bool:
    """Whether something is a tensor, without importing torch: before that is imported there are none."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(source, torch.Tensor)


def from_tensor(tensor: "Tensor") -> Image.Image:
    """A tensor (1 | 3 | 4, h, w) as a Pillow image."""
    if tensor.ndim != 3 or tensor.shape[0] not in (1, 3, 4):
        raise UsageError(f"decode: a tensor must be (c, h, w) with c 1, 3 or 4, got shape {tuple(tensor.shape)}")
    values = tensor.detach().cpu()
    if values.is_floating_point():
        values = values.float()  # numpy has no bfloat16
    return from_array(values.permute(1, 2, 0).numpy())


def from_array(array: np.ndarray) -> Image.Image:
    """An array (h, w) or (h, w, 1 | 3 | 4) as a Pillow image."""
    flat = array[:, :, 0] if array.ndim == 3 and array.shape[2] == 1 else array
    if not (flat.ndim == 2 or (flat.ndim == 3 and flat.shape[2] in (3, 4))) or 0 in flat.shape:
        raise UsageError(f"decode: an array must be (h, w) or (h, w, c) with c 1, 3 or 4, got shape {array.shape}")
    if flat.dtype == np.uint8:
        return Image.fromarray(np.ascontiguousarray(flat))
    if flat.dtype == np.bool_:
        scaled = flat * 255.0
    elif flat.dtype == np.uint16:
        scaled = flat / 257
    elif flat.dtype.kind == "f":
        if not (flat.min() >= 0 and flat.max() <= 1):
            raise UsageError(f"decode: floats must be in [0, 1], got {flat.min():.4g} to {flat.max():.4g}")
        scaled = flat.astype(np.float64) * 255
    else:
        raise UsageError(f"decode: values must be uint8, uint16, bool or float, got {flat.dtype}")
    return Image.fromarray(np.rint(scaled).astype(np.uint8))
