"""Every registered token mixer keeps every promise, with its defaults and in the forms that papers use."""

import pytest
import torch

from mixwise.errors import UsageError
from mixwise.mixers import MIXERS, mixer_class
from mixwise.testing import check_mixer

PAPER_FORMS = [
    ("attention", {"heads": 3}),
    ("external_attention", {"eps": 1e-9, "out": True}),
    ("external_attention", {"norm": "softmax"}),
    ("external_attention", {"query": False, "memory": 5}),
    ("multihead_external_attention", {"heads": 3, "eps": 1e-9}),
    ("repmlp", {"partition": (3, 1), "sharesets": 3, "kernels": (1, 3, 5)}),
    ("repmlp", {"partition": (3, 1), "sharesets": 3, "order": "official"}),
    ("repmlp", {"sharesets": 12, "kernels": ()}),
    ("simple_attention", {"scale": True}),
    ("spatial_gate", {"ratio": 6.0, "toeplitz": True, "tiny_attention": 5}),
    ("spatial_gate", {"split": False, "gate": "add"}),
    ("spatial_gate", {"split": False, "gate": "linear"}),
    ("spatial_gate", {"gate_act": "tanh", "init": "zeros"}),
    ("spatial_gate", {"gate": "add", "causal": True, "tiny_attention": 5}),
]


@pytest.mark.parametrize("name", sorted(MIXERS))
def test_default_form_keeps_the_contract(name):
    check_mixer(name)


@pytest.mark.parametrize(("name", "options"), PAPER_FORMS, ids=str)
def test_paper_form_keeps_the_contract(name, options):
    check_mixer(name, options)


@pytest.mark.parametrize("name", sorted(MIXERS))
def test_odd_width_and_single_row(name):
    mixer = mixer_class(name)(7, 5, (1, 5))
    assert mixer(torch.randn(2, 5, 7), (1, 5)).shape == (2, 5, 7)


def test_weights_for_another_number_of_tokens_are_refused_in_a_sentence():
    with pytest.raises(UsageError, match="for 12 tokens and it was given 15"):
        mixer_class("token_mlp")(8, 12)(torch.randn(2, 15, 8), (3, 5))


def test_windows_that_do_not_tile_the_grid_are_refused_in_a_sentence():
    mixer = mixer_class("repmlp")(8, 24, (4, 6), partition=(2, 3))
    assert mixer(torch.randn(2, 48, 8), (8, 6)).shape == (2, 48, 8)
    with pytest.raises(UsageError, match=r"2×3 tokens do not tile the grid \(5, 6\)"):
        mixer(torch.randn(2, 30, 8), (5, 6))


def test_repmlp_fused_in_half_precision_and_with_new_statistics():
    mixer = mixer_class("repmlp")(8, 24, (4, 6), partition=(2, 3)).bfloat16()
    mixer(torch.randn(4, 24, 8).bfloat16() + 1, (4, 6))
    fused = mixer.reparameterize()
    assert fused.weight.dtype == torch.bfloat16
    x = torch.randn(2, 24, 8).bfloat16()
    torch.testing.assert_close(fused(x, (4, 6)), mixer.eval()(x, (4, 6)), atol=0.05, rtol=0.05)


def test_repmlp_windows_return_to_where_they_came_from_unless_the_official_order_is_asked_for():
    x = torch.randn(2, 24, 8, dtype=torch.float64)

    def identity(**options):
        mixer = mixer_class("repmlp")(8, 24, (4, 6), partition=(2, 3), sharesets=4, kernels=(), **options)
        mixer = mixer.double().eval()
        with torch.no_grad():
            mixer.weight.copy_(torch.eye(6).expand(4, 6, 6))
            for parameter in mixer.gate.parameters():
                parameter.zero_()
            mixer.gate.fc2.bias.fill_(50.0)
            mixer.norm.weight.fill_((1 + mixer.norm.eps) ** 0.5)
        return mixer

    for mixer in (identity(), identity().reparameterize()):
        torch.testing.assert_close(mixer(x, (4, 6)), x)
    for mixer in (identity(order="official"), identity(order="official").reparameterize()):
        assert not torch.allclose(mixer(x, (4, 6)), x)
    for options in ({"partition": None}, {"sharesets": 8}):
        with pytest.raises(UsageError, match="needs a partition, and sharesets below the width"):
            mixer_class("repmlp")(8, 24, (4, 6), **{"partition": (2, 3), "order": "official", **options})
    with pytest.raises(UsageError, match="did you mean 'official'"):
        mixer_class("repmlp")(8, 24, (4, 6), partition=(2, 3), order="offical")
