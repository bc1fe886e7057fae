"""check_mixer catches what it promises to catch: one broken mixer for each promise, and nothing from a sound one."""

from typing import Literal

import pytest
import torch
from torch import nn

from mixwise.errors import UsageError
from mixwise.layers import token_linear
from mixwise.mixers import Mixer
from mixwise.testing import check_mixer


class Sound(Mixer):
    """A scaled token mean, plus the token: y = x + strength · w ⊙ mean(x).

    Args:
        strength: factor of the mean.
        kind: "mean" or "max".

    >>> Sound(4)(torch.ones(2, 3, 4), (3,)).shape
    torch.Size([2, 3, 4])
    """

    equivariant = True

    def __init__(self, dim, tokens=None, grid=None, *, strength: float = 1.0, kind: Literal["mean", "max"] = "mean"):
        super().__init__(dim, tokens, grid)
        if kind not in ("mean", "max"):
            raise UsageError(f"kind must be mean or max, got {kind}")
        self.strength, self.kind = strength, kind
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x, grid):
        pooled = x.mean(1, keepdim=True) if self.kind == "mean" else x.amax(1, keepdim=True)
        return x * (1 + 0.1 * (self.strength * self.weight * pooled))


def broken(**changes):
    """Sound with some attributes replaced."""
    return type("Broken", (Sound,), {"__doc__": Sound.__doc__, **changes})


class LinearTokens(Mixer):
    """A matrix over tokens.

    >>> LinearTokens(4, 3)(torch.ones(2, 3, 4), (3,)).shape
    torch.Size([2, 3, 4])
    """

    fixed_grid = True

    def __init__(self, dim, tokens=None, grid=None):
        super().__init__(dim, tokens, grid)
        self.weight = nn.Parameter(torch.randn(tokens, tokens))

    def forward(self, x, grid):
        return token_linear(x, self.weight)


def forward(function):
    def call(self, x, grid):
        return function(self, Sound.forward(self, x, grid), x)

    return call


def with_parameter(use, shape=(12,)):
    """Sound with one more parameter, used as `use(y, parameter)`."""

    class Broken(Sound):
        __doc__ = Sound.__doc__

        def __init__(
            self, dim, tokens=None, grid=None, *, strength: float = 1.0, kind: Literal["mean", "max"] = "mean"
        ):
            super().__init__(dim, tokens, grid, strength=strength, kind=kind)
            self.extra = nn.Parameter(torch.ones(shape))

        def forward(self, x, grid):
            return use(super().forward(x, grid), self.extra)

    return Broken


class Swallows(Sound):
    """strength, kind.

    >>> 1
    1
    """

    def __init__(self, dim, tokens=None, grid=None, *, strength: float = 1.0, **options):
        super().__init__(dim, tokens, grid, strength=strength)


class IgnoresKind(Sound):
    """strength, kind.

    >>> 1
    1
    """

    def __init__(self, dim, tokens=None, grid=None, *, strength: float = 1.0, kind: Literal["mean", "max"] = "mean"):
        super().__init__(dim, tokens, grid, strength=strength)


class CrashesOnZero(Sound):
    """strength.

    >>> 1
    1
    """

    def __init__(self, dim, tokens=None, grid=None, *, strength: float = 1.0):
        super().__init__(dim, tokens, grid, strength=1 / strength)


class SharedMemory(LinearTokens):
    """A matrix and its transpose.

    >>> 1
    1
    """

    def __init__(self, dim, tokens=None, grid=None):
        super().__init__(dim, tokens, grid)
        self.back = nn.Parameter(self.weight.data.t())

    def forward(self, x, grid):
        return token_linear(token_linear(x, self.weight), self.back)


class ForgetsState(LinearTokens):
    """A matrix that is not in the state dict.

    >>> 1
    1
    """

    def __init__(self, dim, tokens=None, grid=None):
        super().__init__(dim, tokens, grid)
        self.register_buffer("other", torch.rand(tokens, tokens), persistent=False)

    def forward(self, x, grid):
        return token_linear(token_linear(x, self.weight), self.other)


class FoldsWrongly(LinearTokens):
    """A matrix that doubles.

    >>> 1
    1
    """

    def reparameterize(self):
        other = LinearTokens(self.dim, self.weight.shape[0]).to(self.weight.dtype)
        with torch.no_grad():
            other.weight.copy_(2 * self.weight)
        return other


class ResizesWrongly(LinearTokens):
    """A matrix that takes another grid for its own.

    >>> 1
    1
    """

    def resize(self, old, new, *, prefix=0, method="auto"):
        return {}


class LeaksPadding(Sound):
    """A mask that is taken and not looked at: strength, kind.

    >>> 1
    1
    """

    def forward(self, x, grid, mask=None):
        return super().forward(x, grid)


def freezes_batch(self, y, x):
    return y.reshape(len(y), y.shape[1], -1) if int(x.shape[0]) < 4 else y


BROKEN = {
    "takes \\*args or \\*\\*kwargs": Swallows,
    "option 'kind' has no effect": IgnoresKind,
    "strength=0.0 raises no UsageError": CrashesOnZero,
    "docstring does not explain option 'strength'": broken(__doc__="kind\n\n>>> 1\n1\n"),
    "docstring has no example": broken(__doc__="strength, kind"),
    "example in the docstring fails": broken(__doc__="strength, kind\n\n>>> 1\n2\n"),
    "claims equivariant but": broken(forward=forward(lambda self, y, x: y.cumsum(1))),
    "does not claim equivariant": broken(equivariant=False),
    "claims shift_blind but": broken(shift_blind=True),
    "does not claim shift_blind": broken(forward=lambda self, x, grid: x - self.weight * x.mean(1, keepdim=True)),
    "claims scale_blind but": broken(scale_blind=True),
    "does not claim scale_blind": broken(
        shift_blind=True,
        forward=lambda self, x, grid: self.weight * (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True),
    ),
    "claims fixed_grid but": type("Broken", (Sound,), {"__doc__": Sound.__doc__, "fixed_grid": True}),
    "does not refuse a 1-D grid": broken(spatial=True),
    "depends on the grid": broken(forward=lambda self, x, grid: Sound.forward(self, x, grid) * grid[0]),
    "influence each other": broken(forward=forward(lambda self, y, x: y + x.mean((0, 1)))),
    "two answers": broken(forward=forward(lambda self, y, x: y + torch.rand(()))),
    "changes its input": broken(forward=forward(lambda self, y, x: y + x.add_(1))),
    "turns \\(2, 15, 12\\) into": broken(forward=forward(lambda self, y, x: y[:, :3])),
    "not finite": broken(forward=forward(lambda self, y, x: y / 0)),
    "parameter 'extra' gets no gradient": with_parameter(lambda y, p: y),
    "parameter 'extra' .* one constant per channel": with_parameter(lambda y, p: y + p),
    "no gradient through to some tokens": broken(
        forward=lambda self, x, grid: self.weight * x.detach() * x.amax(1, keepdim=True)
    ),
    "share memory": SharedMemory,
    "not restored by its state dict": ForgetsState,
    "another function after reparameterize": FoldsWrongly,
    "does not have the weights that its options have": ResizesWrongly,
    "masked tokens influence": LeaksPadding,
    "bf16": broken(forward=forward(lambda self, y, x: ((y + 1e4) - 1e4) * (1 + self.weight))),
    "torch.compile fails": broken(forward=forward(lambda self, y, x: y if y.sum().item() < 1e9 else x)),
    "torch.export with a dynamic batch": broken(forward=forward(freezes_batch)),
}


@pytest.mark.parametrize("sentence", BROKEN)
def test_broken_promise_is_named(sentence):
    with pytest.raises(AssertionError, match=f"(?s)mixer '.*{sentence}"):
        check_mixer(BROKEN[sentence])


@pytest.mark.parametrize("mixer", [Sound, LinearTokens])
def test_sound_mixer_passes(mixer):
    state = torch.get_rng_state()
    check_mixer(mixer)
    assert torch.equal(torch.get_rng_state(), state)


def test_option_that_cannot_be_guessed_needs_alternatives():
    class Named(Sound):
        """strength, kind, name.

        >>> 1
        1
        """

        def __init__(self, dim, tokens=None, grid=None, *, name: str = "a"):
            super().__init__(dim, tokens, grid, strength=float(len(name)))

    with pytest.raises(AssertionError, match="pass alternatives="):
        check_mixer(Named)
    check_mixer(Named, alternatives={"name": ["bb"]})
    with pytest.raises(AssertionError, match="option 'name' has no effect"):
        check_mixer(Named, alternatives={"name": ["b"]})


def test_unknown_name_is_a_usage_error():
    with pytest.raises(UsageError, match="did you mean 'pool'"):
        check_mixer("pol")
