"""gMLP and aMLP for images: counts, costs, options, and what copies of it got wrong."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mixwise import UsageError, create_model
from mixwise.layers import DropPath
from mixwise.mixers.spatial_gate import SpatialGate
from mixwise.model import build
from mixwise.models import list_models, model_config
from testing_weights import lively

SMALL = {"image": (24, 40), "patch": 8, "dim": 12, "depth": 2, "classes": 5}
TOKENS = 15


def small(name="gmlp_s16_224", **changes):
    torch.manual_seed(0)
    return create_model(name, **(SMALL | changes)).eval()


def images(channels=3):
    return torch.randn(2, channels, 24, 40, generator=torch.Generator().manual_seed(1))


def gates(model):
    return [m for m in model.modules() if isinstance(m, SpatialGate)]


@pytest.mark.parametrize(
    ("name", "parameters", "gmacs"),
    [
        ("gmlp_ti16_224", 5_867_328, 1.329),
        ("gmlp_s16_224", 19_422_656, 4.392),
        ("gmlp_b16_224", 73_075_392, 15.720),
        ("gmlp_ti16_224_paper", 5_895_788, 1.338),
        ("gmlp_s16_224_paper", 19_500_524, 4.419),
        ("gmlp_b16_224_paper", 73_350_380, 15.810),
        ("amlp_ti16_224", 7_353_408, 1.766),
        ("amlp_s16_224", 22_394_816, 5.118),
        ("amlp_b16_224", 79_019_712, 17.024),
    ],
)
def test_parameters_and_macs(name, parameters, gmacs):
    with torch.device("meta"):
        model = build(model_config(name)).eval()
        assert sum(p.numel() for p in model.parameters()) == parameters
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(torch.empty(1, 3, 224, 224))
    paper, a = name.endswith("paper"), 64 if name.startswith("amlp") else 0
    d = model.config.stages[0].dim
    n, f = 197 if paper else 196, 6 * d
    block = n * (d * f + f // 2 * d) + n * n * f // 2 + n * (3 * d * a + a * f // 2) + 2 * n * n * a
    macs = 196 * 768 * d + 30 * block + 1000 * d + (d * d if paper else 0)
    assert counter.get_total_flops() == 2 * macs
    assert macs / 1e9 == pytest.approx(gmacs, abs=5e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {"ratio": 4.0},
        {"tiny_attention": 6},
        {"read_out": "token"},
        {"read_out": "hidden"},
        {"toeplitz": True},
        {"causal": True},
        {"gelu": "tanh"},
        {"gate_act": "tanh"},
        {"gate_eps": 1e-2},
        {"norm_eps": 1e-2},
        {"dim": 16},
        {"depth": 3},
        {"patch": 4},
        {"channels": 1},
    ],
    ids=str,
)
def test_options_change_the_model(changes):
    plain, other = lively(small()), lively(small(**changes))
    shapes = [{k: v.shape for k, v in model.state_dict().items()} for model in (plain, other)]
    with torch.no_grad():
        y = other(images(changes.get("channels", 3)))
        assert y.shape == (2, 5)
        assert shapes[0] != shapes[1] or not torch.allclose(y, plain(images()), atol=1e-5)


def test_start_of_the_gate_by_name():
    """Each gate starts as u: W near zero, b one, whatever other layers start with."""
    for init, limit in (("normal", 6e-6), ("uniform", 1e-3 / TOKENS), ("zeros", 0.0)):
        for gate in gates(small(gate_init=init)):
            assert gate.weight.abs().max() <= limit
            assert init == "zeros" or gate.weight.std() > limit / 10
            assert torch.equal(gate.bias, torch.ones(TOKENS))
            kept = torch.randn(2, TOKENS, 36)
            moved = gate.spatial_weight() @ gate.norm(kept) + gate.bias[:, None]
            assert (kept * moved - kept).abs().max() < 5e-3
            with torch.no_grad():  # an MLP of the first half, with no token mixing yet
                x = torch.randn(2, TOKENS, 12)
                u = torch.nn.functional.gelu(gate.fc1(x)).chunk(2, dim=2)[0]
                assert torch.allclose(gate(x, (3, 5)), gate.fc2(u), atol=1e-3)


def test_the_first_half_passes_and_the_second_gates():
    gate = gates(lively(small()))[0]
    x = torch.randn(2, TOKENS, 12)
    with torch.no_grad():
        gate.fc1.weight[36:] = 0
        gate.fc1.bias[36:] = 0
        u = torch.nn.functional.gelu(gate.fc1(x)).chunk(2, dim=2)[0]
        constant = gate.spatial_weight() @ gate.norm(torch.zeros(TOKENS, 36)) + gate.bias[:, None]
        assert torch.allclose(gate(x, (3, 5)), gate.fc2(u * constant), atol=1e-5)


def test_the_shortcut_carries_the_raw_input():
    block = lively(small()).stages[0].blocks[0]
    with torch.no_grad():
        block[0].mixer.fc2.weight.zero_()
        block[0].mixer.fc2.bias.zero_()
        x = 3 + torch.randn(2, TOKENS, 12)
        assert torch.equal(block(x, (3, 5)), x)


def test_the_attention_reads_the_normalised_input_and_is_added_before_the_product():
    block = lively(small("amlp_s16_224")).stages[0].blocks[0][0]
    seen = []
    block.mixer.tiny.register_forward_hook(lambda module, inputs, result: seen.append((inputs[0], result)))
    x = torch.randn(2, TOKENS, 12)
    with torch.no_grad():
        y = block(x, (3, 5))
        normed, attended = block.norm(x), seen[0][1]
        assert torch.equal(seen[0][0], normed)
        u, v = torch.nn.functional.gelu(block.mixer.fc1(normed)).chunk(2, dim=2)
        gate = block.mixer.weight @ block.mixer.norm(v) + block.mixer.bias[:, None] + attended
        assert torch.allclose(y, x + block.mixer.fc2(u * gate), atol=1e-5)


def test_toeplitz_looks_both_ways():
    weight = gates(lively(small(toeplitz=True)))[0].spatial_weight()
    assert weight.shape == (TOKENS, TOKENS)
    assert weight.triu(1).abs().max() > 0
    assert weight.tril(-1).abs().max() > 0
    assert all(len(weight.diagonal(k).unique()) == 1 for k in range(1 - TOKENS, TOKENS))
    assert len(weight.unique()) == 2 * TOKENS - 1


def test_only_the_size_it_was_built_for_runs():
    for read_out in ("mean", "hidden"):
        with pytest.raises(UsageError, match=r"24×40 pixels and was given 32×40; .*create the model with image="):
            small(read_out=read_out)(torch.randn(1, 3, 32, 40))
    with pytest.raises(UsageError, match="did you mean 'token'"):
        small(read_out="tokens")


def test_the_class_token_is_one_of_the_tokens():
    model = small("gmlp_s16_224_paper")
    assert gates(model)[0].weight.shape == (TOKENS + 1, TOKENS + 1)
    assert model.position is None
    assert small().config.prefix == 0


def test_drop_path_of_the_paper_constant_per_sample():
    for size, rate in (("ti", 0.0), ("s", 0.05), ("b", 0.2)):
        for name in (f"gmlp_{size}16_224", f"gmlp_{size}16_224_paper"):
            config = model_config(name)
            assert (config.drop_path, config.drop_path_schedule) == (rate, "constant")
    model = small(drop_path=0.3, drop_path_batch=True, drop_path_rescale=False)
    layers = [m for m in model.modules() if isinstance(m, DropPath)]
    assert [(m.rate, m.batch, m.rescale) for m in layers] == [(0.3, True, False)] * 2
    rising = small(drop_path=0.3, drop_path_schedule="linear")
    assert [m.rate for m in rising.modules() if isinstance(m, DropPath)] == [0, 0.3]


def test_every_preset_takes_other_widths_and_trains():
    for name in [n for n in list_models("[ag]mlp*") if "text" not in n]:
        model = small(name).train()
        model(images()).square().mean().backward()
        assert [n for n, p in model.named_parameters() if p.grad is None] == []
