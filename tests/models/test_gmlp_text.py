"""gMLP and aMLP for text: counts, costs, masked and causal, shorter texts, files."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mixwise import UsageError, create_model
from mixwise.config import GMLPTextConfig
from mixwise.layers import DropPath
from mixwise.model import build
from mixwise.models import model_config
from mixwise.weights import Header, load_file, save
from testing_weights import lively

SMALL = {"vocabulary": 23, "length": 11, "dim": 12, "depth": 2}


def small(name="gmlp_text_base", **changes):
    torch.manual_seed(0)
    return create_model(name, **(SMALL | changes)).eval()


def ids(tokens=11, batch=2):
    return torch.randint(23, (batch, tokens), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("name", "parameters", "gmacs", "published"),
    [
        ("gmlp_text_base", 130_369_232, 85.832, 130),
        ("gmlp_text_large", 365_898_656, 225.486, 365),
        ("gmlp_text_xlarge", 941_666_416, 558.480, 941),
        ("amlp_text_base", 109_080_284, 71.337, 109),
        ("amlp_text_large", 316_224_440, 195.287, 316),
        ("gmlp_text_18", 59_293_166, 8.020, 59),
        ("gmlp_text_36", 101_905_628, 13.908, 102),
        ("gmlp_text_72", 187_130_552, 25.686, 187),
        ("gmlp_text_144", 357_580_400, 49.241, 357),
        ("gmlp_text", 30_366_752, 5.440, None),
        ("gmlp_text_causal", 30_366_752, 5.440, None),
    ],
)
def test_parameters_and_macs(name, parameters, gmacs, published):
    config = model_config(name)
    with torch.device("meta"):
        model = build(config).eval()
        assert sum(p.numel() for p in model.parameters()) == parameters
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(torch.zeros(1, config.length, dtype=torch.long))
    assert published is None or abs(parameters / 1e6 - published) < 1
    d, n, a = config.dim, config.length, config.gate["tiny_attention"]
    f = round(d * config.gate["ratio"])
    block = n * (d * f + f // 2 * d) + n * n * f // 2 + n * (3 * d * a + a * f // 2) + 2 * n * n * a
    macs = config.depth * block + n * d * (config.vocabulary + (d if config.head == "hidden" else 0))
    assert counter.get_total_flops() == 2 * macs
    assert macs / 1e9 == pytest.approx(gmacs, abs=5e-4)


def test_counts_of_the_other_forms():
    """The full W of the base model, and the unsplit gates of the paper's table 3 (92 million each)."""

    def count(name, **changes):
        with torch.device("meta"):
            return sum(p.numel() for p in build(model_config(name, **changes)).parameters())

    assert count("gmlp_text_base", toeplitz=False) == 142_903_040
    for gate in ("linear", "add", "multiply"):
        assert count("gmlp_text_36", split=False, gate=gate, ratio=4.0) == 92_468_444


@pytest.mark.parametrize(
    "changes",
    [
        {"vocabulary": 24},
        {"dim": 16},
        {"depth": 3},
        {"ratio": 4.0},
        {"tiny_attention": 5},
        {"toeplitz": False},
        {"causal": True},
        {"split": False},
        {"gate": "add"},
        {"gelu": "tanh"},
        {"gate_act": "tanh"},
        {"gate_eps": 1e-2},
        {"norm_eps": 1e-2},
        {"head": "linear"},
        {"tied": False},
    ],
    ids=str,
)
def test_options_change_the_model(changes):
    plain, other = lively(small()), lively(small(**changes))
    shapes = [{k: v.shape for k, v in model.state_dict().items()} for model in (plain, other)]
    assert shapes[0] != shapes[1] or not torch.allclose(other(ids()), plain(ids()), atol=1e-5)


def test_gelu_form_reaches_the_hidden_layer():
    plain, other = lively(small()), lively(small(gelu="tanh"))
    x = torch.randn(2, 11, 12) - 1
    assert not torch.equal(plain.hidden(x), other.hidden(x))


def reads(model, place):
    """The places of the output that change with the token at a place of the input."""
    x = ids(batch=1)
    other = x.clone()
    other[0, place] = (x[0, place] + 1) % 23
    with torch.no_grad():
        return (model(x) - model(other)).abs().amax(2)[0] > 1e-9


@pytest.mark.parametrize("toeplitz", [False, True])
@pytest.mark.parametrize("tiny_attention", [0, 5])
def test_causal_reads_backwards_and_masked_both_ways(toeplitz, tiny_attention):
    options = {"toeplitz": toeplitz, "tiny_attention": tiny_attention, "depth": 1}
    masked = lively(small(**options)).double()
    assert reads(masked, 5).all()
    causal = lively(small(**options, causal=True)).double()
    assert reads(causal, 5).tolist() == [False] * 5 + [True] * 6


@pytest.mark.parametrize("tiny_attention", [0, 5])
def test_a_causal_model_answers_a_short_text_as_the_start_of_a_long_one(tiny_attention):
    for toeplitz in (False, True):
        model = lively(small(causal=True, toeplitz=toeplitz, tiny_attention=tiny_attention)).double()
        with torch.no_grad():
            assert torch.allclose(model(ids()[:, :7]), model(ids())[:, :7], atol=1e-12)


def test_a_toeplitz_model_takes_the_first_part_of_w():
    """As a model that was built for the shorter text with the same weights for the same distances."""
    model, short = lively(small()), small(length=7)
    state = model.state_dict()
    for name, tensor in state.items():
        if name.endswith("mixer.weight"):
            state[name] = tensor[4:17]
        elif name.endswith("mixer.bias"):
            state[name] = tensor[:7]
    short.load_state_dict(state)
    with torch.no_grad():
        assert torch.allclose(model(ids(7)), short(ids(7)), atol=1e-6)


def test_lengths_that_do_not_fit_are_refused():
    with pytest.raises(UsageError, match=r"up to 11 tokens and the model was given 12: cut them"):
        small()(ids(12))
    with pytest.raises(UsageError, match=r"up to 11 tokens"):
        small(toeplitz=False, causal=True)(ids(12))
    for tokens, advice in ((7, "pad"), (12, "cut")):
        with pytest.raises(UsageError, match=rf"texts of 11 tokens and the model was given {tokens}: {advice}"):
            small(toeplitz=False)(ids(tokens))
    with pytest.raises(UsageError, match="integer ids"):
        small()(torch.randn(2, 11))
    with pytest.raises(UsageError, match="integer ids"):
        small()(ids()[0])


def test_wrong_options_are_refused():
    with pytest.raises(UsageError, match="did you mean 'causal'"):
        build(GMLPTextConfig(**SMALL, gate={"casual": True}))
    with pytest.raises(UsageError, match="did you mean 'vocabulary'"):
        small(vocabulry=3)
    with pytest.raises(UsageError, match=r"depth.*greater than 0"):
        small(depth=0)
    with pytest.raises(UsageError, match="head"):
        small(head="mlp")


def test_tied_logits_follow_the_embedding():
    tied, untied = small(), small(tied=False)
    assert "out.weight" not in tied.state_dict()
    assert untied.out.weight.shape == (23, 12)
    with torch.no_grad():
        hidden = tied.hidden(tied.features(ids()))
        assert torch.allclose(tied(ids()), hidden @ tied.embed.weight.T + tied.out.bias, atol=1e-6)


def test_drop_path_is_the_same_for_every_block():
    model = small(drop_path=0.3, depth=3)
    assert [m.rate for m in model.modules() if isinstance(m, DropPath)] == [0.3] * 3


@pytest.mark.parametrize("name", ["gmlp_text", "gmlp_text_causal", "gmlp_text_base", "amlp_text_base"])
def test_trains_saves_and_reparameterizes(name, tmp_path):
    model = lively(small(name)).train()
    model(ids()).square().mean().backward()
    assert [n for n, p in model.named_parameters() if p.grad is None or not p.grad.abs().max() > 0] == []
    path = tmp_path / "text.safetensors"
    save(path, model.state_dict(), Header(task=model.config.task, config=model.config))
    loaded, header = load_file(path)
    assert (header.task, header.config) == ("text", model.config)
    assert type(header.config) is GMLPTextConfig
    with torch.no_grad():
        assert torch.equal(loaded(ids()), model.eval()(ids()))
        fused = model.reparameterize()
        assert torch.equal(fused(ids()), model(ids()))
        assert fused.config.form == "reparameterized"
        assert torch.equal(build(fused.config).eval()(ids()).isfinite(), torch.ones(2, 11, 23, dtype=torch.bool))
    assert model.config.input == "11 token ids below 23"
    assert GMLPTextConfig.from_toml(model.config.to_toml()) == model.config


def test_export_with_a_dynamic_batch():
    model = lively(small(causal=True))
    batch = torch.export.Dim("batch")
    program = torch.export.export(model, (ids(),), dynamic_shapes=({0: batch},)).module()
    with torch.no_grad():
        for n in (1, 3):
            assert torch.allclose(program(ids(batch=n)), model(ids(batch=n)), atol=1e-5)
