"""Every token mixer against its NumPy oracle, output and gradients, in float64, with all axes of different sizes."""

import numpy as np
import oracles
import pytest
import torch

from mixwise.mixers import MIXERS, mixer_class
from mixwise.mixers.external_attention import double_normalize
from mixwise.testing import randomize

BATCH, GRID, DIM = 2, (3, 5), 8
TOKENS = GRID[0] * GRID[1]

FORMS = [
    ("attention", {}),
    ("attention", {"heads": 2}),
    ("attention", {"heads": 4, "qkv_bias": True, "out_bias": True}),
    ("attention", {"heads": 2, "head_dim": 3, "qkv_bias": True}),
    ("attention", {"heads": None, "head_dim": 11}),
    ("external_attention", {}),
    ("external_attention", {"memory": 6, "eps": 0.05}),
    ("external_attention", {"memory": 6, "eps": 1e-9, "query": False}),
    ("external_attention", {"memory": 6, "norm": "softmax", "out": True}),
    ("feature_attention", {}),
    ("feature_attention", {"qkv_bias": True}),
    ("feed_forward", {}),
    ("feed_forward", {"ratio": 0.6, "act": "gelu_tanh"}),
    ("identity", {}),
    ("linear", {}),
    ("linear", {"bias": False}),
    ("multihead_external_attention", {}),
    ("multihead_external_attention", {"heads": 2, "coef": 3, "memory": 6, "eps": 0.05, "bias": True}),
    ("multihead_external_attention", {"heads": 4, "coef": 1, "memory": 6, "norm": "softmax"}),
    ("pool", {}),
    ("pool", {"size": 5}),
    ("random", {}),
    ("repmlp", {}),
    ("repmlp", {"sharesets": 4, "kernels": (3, 5), "reduce": 2}),
    ("repmlp", {"partition": (3, 1), "sharesets": 2}),
    ("repmlp", {"partition": (1, 5), "sharesets": 8, "kernels": ()}),
    ("repmlp", {"partition": (1, 5), "sharesets": 2, "order": "official"}),
    ("separable_conv", {}),
    *(
        ("separable_conv", {"kernel": 3, "ratio": 1.5, "act": a})
        for a in ("gelu", "gelu_tanh", "relu", "silu", "identity", "star_relu_normal")
    ),
    ("simple_attention", {}),
    ("simple_attention", {"scale": True}),
    ("spatial_gate", {}),
    ("spatial_gate", {"ratio": 1.5, "toeplitz": True, "gelu": "tanh", "norm_eps": 0.1, "out_bias": True}),
    ("spatial_gate", {"gate": "add", "causal": True, "tiny_attention": 3}),
    ("spatial_gate", {"tiny_attention": 3}),
    ("spatial_gate", {"gate_act": "tanh", "init": "uniform", "tiny_attention": 3}),
    ("spatial_gate", {"split": False, "toeplitz": True, "causal": True}),
    ("spatial_gate", {"split": False, "gate": "add"}),
    ("spatial_gate", {"split": False, "gate": "linear", "tiny_attention": 3}),
    ("token_mlp", {}),
    ("token_mlp", {"hidden": 7, "act": "gelu_tanh"}),
    ("token_mlp", {"hidden": 6, "act": "silu", "gated": True}),
]


def build(name, options):
    torch.manual_seed(0)
    return randomize(mixer_class(name)(DIM, TOKENS, GRID, **options)).double().eval()


def tensors(module):
    return {key: tensor.detach().numpy().copy() for key, tensor in module.state_dict().items()}


def oracle(name, options, x, state):
    return getattr(oracles, name)(x, state, GRID, **options)


def draw(seed):
    return torch.randn(BATCH, TOKENS, DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_every_mixer_has_an_oracle():
    assert {name for name, _ in FORMS} >= set(MIXERS)


@pytest.mark.parametrize(("name", "options"), FORMS, ids=str)
def test_output_is_the_equation(name, options):
    module, x = build(name, options), draw(1)
    expected = oracle(name, options, x.numpy(), tensors(module))
    np.testing.assert_allclose(module(x, GRID).detach().numpy(), expected, rtol=0, atol=1e-10)
    np.testing.assert_allclose(module.reparameterize()(x, GRID).detach().numpy(), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("name", "options"), FORMS, ids=str)
def test_gradients_are_those_of_the_equation(name, options):
    """Central differences of the oracle at two entries of the input and of every parameter."""
    module, x, weights = build(name, options), draw(1).requires_grad_(), draw(2)
    (module(x, GRID) * weights).sum().backward()
    state, choose, step = tensors(module), np.random.default_rng(0), 1e-5
    leaves = {"x": (x.detach().numpy().copy(), x.grad)}
    leaves |= {key: (state[key], parameter.grad) for key, parameter in module.named_parameters()}
    image = leaves["x"][0]
    for key, (array, grad) in leaves.items():
        flat = array.reshape(-1)
        for place in choose.integers(flat.size, size=2):
            value, sums = flat[place], []
            for moved in (value + step, value - step):
                flat[place] = moved
                sums.append((oracle(name, options, image, state) * weights.numpy()).sum())
            flat[place] = value
            slope = (sums[0] - sums[1]) / (2 * step)
            assert grad.reshape(-1)[place] == pytest.approx(slope, rel=1e-5, abs=1e-6), f"{key}, entry {place}"


# --- External Attention ----------------------------------------------------------------------------------------------

F = torch.tensor([[[1.0, 0], [0, 1], [1, 1]]], dtype=torch.float64)
MK = torch.tensor([[1.0, 2], [-1, 0.5]], dtype=torch.float64)
MV = torch.tensor([[1.0, 0], [0, 2]], dtype=torch.float64)


def test_worked_example_of_external_attention():
    attention = double_normalize(F @ MK.T, tokens=1, slots=2, eps=1e-9)
    a = torch.tensor([[0.390970, 0.609030], [0.280247, 0.719753], [0.742071, 0.257929]], dtype=torch.float64)
    out = torch.tensor([[0.390970, 1.218060], [0.280247, 1.439506], [0.742071, 0.515857]], dtype=torch.float64)
    torch.testing.assert_close(attention[0], a, atol=1e-6, rtol=0)
    torch.testing.assert_close((attention @ MV)[0], out, atol=1e-6, rtol=0)


def test_double_normalisation_survives_where_a_division_would_be_zero_by_zero():
    logits = torch.zeros(1, 64, 5, dtype=torch.float16)
    logits[:, 0] = -60
    attention = double_normalize(logits, tokens=1, slots=2)
    torch.testing.assert_close(attention.sum(2), torch.ones(1, 64, dtype=torch.float16), atol=2e-3, rtol=0)
    small = double_normalize(logits, tokens=1, slots=2, eps=1e-9)
    assert small.isfinite().all()
    assert small[0, 0].sum() < 1e-3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_double_normalisation_is_only_rounded_at_the_end(dtype):
    """Logarithms rounded to bfloat16 would be 0.06 apart at -20, and the weights wrong by as much."""
    logits = (30 * torch.randn(1, 2000, 16, generator=torch.Generator().manual_seed(0))).to(dtype)
    attention = double_normalize(logits, tokens=1, slots=2)
    assert attention.dtype == dtype
    wanted = double_normalize(logits.double(), tokens=1, slots=2)
    torch.testing.assert_close(attention.double(), wanted, atol=1e-4, rtol=torch.finfo(dtype).eps)


def test_one_token_reads_all_slots_alike():
    attention = double_normalize(torch.randn(2, 1, 4), tokens=1, slots=2)
    torch.testing.assert_close(attention, torch.full((2, 1, 4), 0.25))
