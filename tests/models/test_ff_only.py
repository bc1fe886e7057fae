"""The feed-forward-only model and its attention-only control: the sheet's numbers, its traps, the release's files."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from mixwise import MixwiseError, UsageError, create_model
from mixwise.config import Optimizer
from mixwise.layers import ChannelMLP
from mixwise.mixers import MIXERS
from mixwise.model import build
from mixwise.models import model_config
from mixwise.norms import NoNorm
from mixwise.training.optim import adamw
from mixwise.weights import FORMATS, convert
from mixwise.weights.mapping import to_foreign, to_native
from testing_weights import lively

SMALL = {"image": (32, 48), "patch": 16, "dim": 12, "depth": 2, "classes": 5}
TOKENS = 1 + 2 * 3


def small(name: str = "ff_tiny_16_224", **changes) -> nn.Module:
    return create_model(name, **(SMALL | changes))


def output(model: nn.Module) -> torch.Tensor:
    x = torch.randn(2, 3, *model.config.image, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return lively(model).eval()(x)


def size_and_macs(name: str, **changes) -> tuple[int, float]:
    config = model_config(name, **changes)
    with torch.device("meta"):
        model, images = build(config).eval(), torch.empty(1, 3, *config.image)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(images)
    return sum(p.numel() for p in model.parameters()), counter.get_total_flops() / 2


@pytest.mark.parametrize(
    ("name", "parameters", "gmacs", "n", "dim", "depth"),
    [
        ("ff_tiny_16_224", 7_676_332, 1.442, 197, 192, 12),
        ("ff_base_16_224", 61_943_020, 14.132, 197, 768, 12),
        ("ff_large_32_224", 206_363_576, 10.713, 50, 1024, 24),
    ],
)
def test_parameters_and_macs(name, parameters, gmacs, n, dim, depth):
    """n counts the class token, in the MLP's hidden width too: 4 · 197 = 788."""
    found, macs = size_and_macs(name)
    patch = model_config(name).patch[0]
    assert found == parameters
    assert macs == (n - 1) * 3 * patch**2 * dim + depth * (8 * n * dim**2 + 8 * n**2 * dim) + dim * 1000
    assert macs / 1e9 == pytest.approx(gmacs, abs=1e-3)


def test_parameters_and_macs_of_the_control():
    n, dim = 197, 192
    found, macs = size_and_macs("attention_only_tiny_16_224")
    assert found == 4_039_360
    assert size_and_macs("attention_only_tiny_16_224", qkv_bias=False)[0] == 4_025_356
    between_tokens, between_channels = 4 * n * dim**2 + 2 * n**2 * dim, 4 * n**2 * dim + 2 * n * dim**2
    assert macs == (n - 1) * 768 * dim + 12 * (between_tokens + between_channels) + dim * 1000


def test_channels_come_first_and_the_token_norm_has_a_scale_per_token():
    channels, tokens = small().stages[0].blocks[0]
    assert isinstance(channels.mixer, ChannelMLP)
    assert channels.norm.weight.shape == (12,)
    assert isinstance(tokens.mixer, MIXERS["feed_forward"])
    assert isinstance(tokens.norm, NoNorm)
    assert tokens.mixer.norm.weight.shape == tokens.mixer.norm.bias.shape == (TOKENS,)
    assert tokens.mixer.w1.shape == (4 * TOKENS, TOKENS)
    assert {m.eps for m in small().modules() if isinstance(m, nn.LayerNorm)} == {1e-6}
    assert tokens.mixer.norm.eps == 1e-6
    first, second = small("attention_only_tiny_16_224").stages[0].blocks[0]
    assert isinstance(first.mixer, MIXERS["attention"])
    assert isinstance(second.mixer, MIXERS["feature_attention"])


@pytest.mark.parametrize("changes", [{"ratio": 2.0}, {"token_ratio": 2.0}, {"position_grid": (4, 4)}], ids=str)
def test_options_change_the_output(changes):
    assert not torch.equal(output(small()), output(small(**changes)))


@pytest.mark.parametrize("changes", [{"heads": 2}, {"qkv_bias": False}, {"tokens_first": False}], ids=str)
def test_options_of_the_control_change_the_output(changes):
    name = "attention_only_tiny_16_224"
    assert not torch.equal(output(small(name)), output(small(name, **changes)))


@pytest.mark.parametrize("option", ["num_heads", "qkv_bias", "attn_drop_rate", "hybrid_backbone"])
def test_what_the_code_accepts_and_ignores_is_refused(option):
    with pytest.raises(UsageError, match=f"unknown change '{option}'"):
        create_model("ff_tiny_16_224", **{option: 1})


def test_dropout_and_drop_path_in_training():
    for option in ("dropout", "drop_path"):
        model = small(**{option: 0.5})
        x = torch.randn(8, 3, 32, 48)
        assert not torch.equal(lively(model).train()(x), model(x))
        assert torch.equal(model.eval()(x), lively(small()).eval()(x))
    mixers = [branch.mixer for branch in small(dropout=0.1).stages[0].blocks[0]]
    assert [mixer.dropout for mixer in mixers] == [0.1, 0.1]
    assert small(dropout=0.1).config.position_dropout == 0.1


def test_start():
    """Linear layers, head, class token and positions: 0.02; the stem as torch has it, or like the rest."""
    torch.manual_seed(0)
    model = small(dim=96, classes=50)
    channels, tokens = model.stages[0].blocks[0]
    weights = [channels.mixer.fc1.weight, tokens.mixer.w1, tokens.mixer.w2, model.head.weight, model.prefix_tokens]
    for weight in [*weights, model.position.weight]:
        assert float(weight.detach().std()) == pytest.approx(0.02, rel=0.2)
    assert not any(
        b.any() for b in (channels.mixer.fc1.bias, channels.mixer.fc2.bias, tokens.mixer.b1, model.head.bias)
    )
    assert model.stem.proj.bias.any()
    assert float(model.stem.proj.weight.detach().std()) == pytest.approx((3 * 768) ** -0.5, rel=0.05)
    stem = small(stem_init="normal").stem.proj
    assert not stem.bias.any()
    assert float(stem.weight.detach().std()) == pytest.approx(0.02, rel=0.05)


def test_another_image_size_is_refused():
    with pytest.raises(UsageError, match="has weights for 32×48 pixels and was given 32×32"):
        small()(torch.randn(1, 3, 32, 32))


def test_large_halves_its_positions_unless_told_otherwise():
    with torch.device("meta"):
        as_released = build(model_config("ff_large_32_224")).position.weight
        native = build(model_config("ff_large_32_224", position_grid=None)).position.weight
    assert as_released.shape == (1, 1 + 14 * 14, 1024)
    assert native.shape == (1, 1 + 7 * 7, 1024)
    model = lively(small(position_grid=(4, 6)))
    x = torch.zeros(1, TOKENS, 12)
    table = model.position.weight[:, 1:].unflatten(1, (4, 6)).permute(0, 3, 1, 2)
    halved = nn.functional.avg_pool2d(table, 2)  # bilinear, corners not aligned, by exactly one half
    assert torch.allclose(model.position(x, (2, 3))[:, 1:], halved.flatten(2).transpose(1, 2), atol=1e-6)


def test_the_last_token_bias_has_no_effect():
    model, x = lively(small()).double().eval(), torch.randn(2, 3, 32, 48, dtype=torch.float64)
    before = model(x)
    with torch.no_grad():
        model.stages[0].blocks[-1][1].mixer.b2 += torch.arange(TOKENS)
    assert torch.allclose(model(x), before, atol=1e-10)
    with torch.no_grad():
        model.stages[0].blocks[0][1].mixer.b2 += torch.arange(TOKENS)
    assert not torch.allclose(model(x), before, atol=1e-3)


def test_positions_decay_as_in_the_code_or_are_spared_as_in_deit():
    model = small()
    for decays in (False, True):
        groups = adamw(model, Optimizer(decay_positions=decays), batch=64, fused=False).param_groups
        decayed = {id(p) for g in groups if g["weight_decay"] > 0 for p in g["params"]}
        assert (id(model.position.weight) in decayed) == decays
        assert id(model.prefix_tokens) not in decayed
        assert id(model.head.weight) in decayed


# --- checkpoints ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """A file as DeiT's trainer writes it, and the raw and the averaged model in it."""
    config = model_config("ff_tiny_16_224")
    raw, ema = lively(build(config)), lively(build(config), seed=7)
    form = FORMATS["ff_only"]
    states = [to_foreign(form.entries(config), model.state_dict()) for model in (raw, ema)]
    path = tmp_path_factory.mktemp("ff") / "linear-tiny-checkpoint.pth"
    torch.save({"model": states[0], "model_ema": states[1], "optimizer": {"state": {}}, "epoch": 299}, path)
    return path, raw, ema, states[0]


def test_release_files(release):
    path, raw, ema, state = release
    assert len(state) == 153
    assert state["pos_encoding.pos_embed"].shape == (1, 192, 14, 14)
    assert state["blocks.0.norm2.weight"].shape == (197,)
    x = torch.randn(1, 3, 224, 224)
    done = convert(path)
    assert (done.format, done.header.config.name, done.header.weights) == ("ff_only", "ff_tiny_16_224", "raw")
    assert done.header.config.position_grid is None
    assert done.header.preprocess.mean == (0.485, 0.456, 0.406)
    averaged = convert(path, model="ff_tiny_16_224", weights="ema")
    with torch.no_grad():
        assert torch.equal(done.model(x), raw.eval()(x))
        assert torch.equal(averaged.model(x), ema.eval()(x))


def test_positions_of_another_grid_are_stretched(tmp_path):
    """As the large model's: 14 × 14 stored, 7 × 7 used."""
    config = model_config("ff_tiny_16_224", image=112, position_grid=(14, 14))
    model = lively(build(config))
    torch.save({"model": to_foreign(FORMATS["ff_only"].entries(config), model.state_dict())}, tmp_path / "ff.pth")
    done = convert(tmp_path / "ff.pth", model="ff_tiny_16_224", image=112)
    x = torch.randn(1, 3, 112, 112)
    assert done.header.config.position_grid == (14, 14)
    with torch.no_grad():
        assert torch.equal(done.model(x), model.eval()(x))


def test_a_mixer_does_not_take_these_weights(release):
    """Its norms run along the channels; the token norm's 197 numbers have no place in it."""
    mixer = create_model("mixer_s16_224", dim=192, depth=12, tokens_hidden=788)
    names = {"mlp2": "mlp_tokens", "mlp1": "mlp_channels", "norm2": "norm1", "norm1": "norm2", "patch_embed": "stem"}
    tokens_alone = {k: v for k, v in release[3].items() if not k.startswith(("cls_token", "pos_encoding"))}
    halves_swapped = {".".join(names.get(part, part) for part in k.split(".")): v for k, v in tokens_alone.items()}
    entries = FORMATS["timm_mixer"].entries(mixer.config)
    for state, problem in (
        (release[3], "blocks.0.mlp_tokens.fc1.weight is missing"),
        (halves_swapped, r"blocks.0.norm1.weight gives \(197,\), expected \(192,\)"),
    ):
        with pytest.raises(MixwiseError, match=problem):
            to_native(entries, state, mixer.state_dict(), lambda name: False)
