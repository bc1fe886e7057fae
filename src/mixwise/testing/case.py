"""One mixer, built one way, with inputs and weights that hide nothing."""

import zlib
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from mixwise.layers import Grid
from mixwise.mixers import Mixer


@dataclass(frozen=True)
class Case:
    """A mixer with options, a width and a grid to test it on."""

    name: str
    cls: type[Mixer]
    dim: int
    grid: Grid
    options: dict[str, Any]

    @property
    def tokens(self) -> int:
        return self.grid[0] * self.grid[1]

    def fresh(self, *, prefix: int = 0) -> Mixer:
        """The mixer as it is initialised, always with the same random numbers."""
        torch.manual_seed(0)
        return self.cls(self.dim, self.tokens + prefix, self.grid, **self.options)

    def module(self, *, prefix: int = 0) -> Mixer:
        """The mixer in float64 and evaluation mode, with weights and statistics that hide nothing."""
        return randomize(self.fresh(prefix=prefix)).double().eval()

    def input(self, batch: int = 2, tokens: int | None = None, *, seed: int = 1) -> Tensor:
        """Normal tokens (b, n, c) in float64."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(batch, tokens or self.tokens, self.dim, generator=generator, dtype=torch.float64)

    def hold(self, promise: bool, sentence: str) -> None:
        """Raise unless the promise is kept."""
        if not promise:
            with_options = f" with {self.options}" if self.options else ""
            raise AssertionError(f"mixer {self.name!r}{with_options}: {sentence}")


M = TypeVar("M", bound=nn.Module)


def randomize(module: M) -> M:
    """Fill parameters and batch-norm statistics in place with values drawn from their own names, none of them special.

    Matrices are normal with variance 1/columns, vectors and variances uniform in [0.5, 1.5], means in [-0.5, 0.5].
    """
    with torch.no_grad():
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            if name.endswith("running_mean"):
                tensor.copy_(torch.rand(tensor.shape, generator=generator) - 0.5)
            elif tensor.requires_grad and tensor.dim() > 1:
                tensor.copy_(torch.randn(tensor.shape, generator=generator) * tensor.shape[-1] ** -0.5)
            elif tensor.requires_grad or name.endswith("running_var"):
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
    return module


def gap(a: Tensor, b: Tensor) -> float:
    """Largest difference over the largest entry of b."""
    return float((a - b).detach().abs().max() / b.detach().abs().max().clamp_min(1e-30))
