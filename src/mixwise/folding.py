"""Moving a factor and a summand per channel into the layer before or behind them, in float64."""

import torch
from torch import Tensor, nn

Layer = nn.Linear | nn.Conv2d


def _columns(layer: Layer, scale: Tensor) -> Tensor:
    """`scale` (inputs,) in the shape that multiplies the layer's weight."""
    if isinstance(layer, nn.Linear):
        return scale
    per_group = scale.view(layer.groups, 1, -1).expand(-1, layer.out_channels // layer.groups, -1)
    return per_group.reshape(layer.out_channels, -1, 1, 1)


def _store(layer: Layer, weight: Tensor, bias: Tensor | None) -> None:
    """Give a layer new numbers in its own precision; a bias is made where there was none."""
    dtype, grad = layer.weight.dtype, layer.weight.requires_grad
    layer.weight = nn.Parameter(weight.to(dtype), requires_grad=grad)
    if bias is not None:
        layer.bias = nn.Parameter(bias.to(dtype), requires_grad=grad)


@torch.no_grad()
def absorb_before(layer: Layer, scale: Tensor | None, shift: Tensor | None) -> None:
    """layer(x · scale + shift) → layer(x), in place. A padded convolution cannot absorb a shift exactly."""
    weight = layer.weight.double()
    bias = None if layer.bias is None else layer.bias.double()
    if shift is not None:
        moved = (weight * _columns(layer, shift)).flatten(1).sum(1)
        bias = moved if bias is None else bias + moved
    _store(layer, weight if scale is None else weight * _columns(layer, scale), bias)


@torch.no_grad()
def absorb_after(layer: Layer, scale: Tensor | None, shift: Tensor | None) -> None:
    """layer(x) · scale + shift → layer(x), in place."""
    weight = layer.weight.double()
    bias = None if layer.bias is None else layer.bias.double()
    if scale is not None:
        weight = weight * scale.double().view(-1, *[1] * (weight.dim() - 1))
        bias = None if bias is None else bias * scale.double()
    if shift is not None:
        bias = shift.double() if bias is None else bias + shift.double()
    _store(layer, weight, bias)
