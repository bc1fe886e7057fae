"""Weights that hide nothing: norms, statistics, scales and biases away from their starting values."""

import torch
from torch import nn


def lively(module: nn.Module, *, seed: int = 1) -> nn.Module:
    """Move every parameter and batch-norm statistic off its start, in place, without blowing the outputs up."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            if not tensor.is_floating_point():
                continue
            if name.endswith("running_var") or (tensor.dim() <= 1 and "bias" not in name and "mean" not in name):
                tensor.copy_(torch.empty_like(tensor).uniform_(0.5, 1.5, generator=generator))
            elif tensor.dim() <= 1:
                tensor.copy_(torch.empty_like(tensor).normal_(0, 0.2, generator=generator))
            else:
                fan = tensor[0].numel()
                tensor.copy_(torch.empty_like(tensor).normal_(0, 0.5 * fan**-0.5, generator=generator))
    return module
