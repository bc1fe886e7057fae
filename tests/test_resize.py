"""A model at another image size: each family's rule, on every mixer and every family of presets."""

import copy
import json
import math
from collections import defaultdict

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from typer.testing import CliRunner

import mixwise
from mixwise import MixwiseError, UsageError, create_model, resize
from mixwise.cli import app, main
from mixwise.config import BackboneConfig, BranchConfig, ModelConfig, StageConfig, VisionConfig
from mixwise.mixers import MIXERS, Mixer, mixer_class
from mixwise.model import ARCHITECTURES, Model, build
from mixwise.models.registry import PRESETS, model_config
from mixwise.positions import LearnedPositions, SinCosPositions, SinusoidPositions
from mixwise.regrid import _cubic, distribute, embed, interpolate, recentre, sub_images
from mixwise.resizing import parse_size, resize_file
from mixwise.weights import Header, load_file, read_header, save, weights_hash
from testing_weights import lively

OLD, NEW = (4, 6), (6, 9)
"""Grids of the tests of single mixers; the new one is no multiple of the old one."""
FIXED = sorted(name for name, cls in MIXERS.items() if cls.fixed_grid)
CASES = [(mixer, layout) for mixer in sorted(MIXERS) for layout in ("pyramid", "isotropic")]


def house(mixer: str, layout: str, image=(32, 32), patch=(4, 4), **changes):
    return create_model(f"{mixer}_nano", image=image, patch=patch, layout=layout, **({"classes": 3} | changes))


def smooth_images(size, count=24, channels=3):
    """The same smooth pictures drawn at any size."""
    coarse = torch.randn(count, channels, 5, 5, generator=torch.Generator().manual_seed(0))
    return F.interpolate(coarse, size=size, mode="bicubic", antialias=True)


def correlation(a, b):
    """Of what distinguishes the pictures."""
    a, b = a - a.mean(0), b - b.mean(0)
    return float((a * b).sum() / (a.norm() * b.norm()))


def made(mixer: str, grid=OLD, dim=8, prefix=0, **options) -> Mixer:
    torch.manual_seed(0)
    mixer_ = mixer_class(mixer)(dim, math.prod(grid) + prefix, grid, **options)
    return lively(mixer_).double().eval() if mixer != "random" else mixer_.double()


def up(x, old=OLD, new=NEW, prefix=0):
    return interpolate(x, 1, old, new, prefix=prefix)


def tokens(grid=OLD, prefix=0, dim=8, batch=2, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, prefix + math.prod(grid), dim, dtype=torch.float64, generator=generator)


def resized(mixer: Mixer, old=OLD, new=NEW, **how) -> Mixer:
    other = copy.deepcopy(mixer)
    other.resize(old, new, **how)
    return other


# --- models -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mixer", "layout"), CASES)
def test_every_house_model_resizes_to_any_size(mixer, layout, tmp_path):
    torch.manual_seed(0)
    model = lively(house(mixer, layout)).eval()
    before, state = weights_hash(model.state_dict()), torch.random.get_rng_state()
    other = resize(model, (48, 64))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert weights_hash(model.state_dict()) == before
    assert model.config.image == (32, 32)
    assert other.config.image == (48, 64)
    assert other.config == BackboneConfig.from_json(other.config.to_json())
    y = other(torch.randn(2, 3, 48, 64))
    assert y.shape == (2, 3)
    assert y.isfinite().all()
    assert set(other.state_dict()) == set(model.state_dict())
    places = {t.untyped_storage().data_ptr() for t in model.state_dict().values()}
    assert not places & {t.untyped_storage().data_ptr() for t in other.state_dict().values()}
    smaller = resize(model, (20, 24))
    assert smaller(torch.randn(2, 3, 20, 24)).isfinite().all()
    path = tmp_path / "model.safetensors"
    save(path, other.state_dict(), Header(config=other.config))
    assert torch.equal(load_file(path)[0](torch.ones(1, 3, 48, 64)), other(torch.ones(1, 3, 48, 64)))


@pytest.mark.parametrize(("mixer", "layout"), CASES)
def test_to_the_same_size_nothing_changes(mixer, layout):
    model = lively(house(mixer, layout))
    same = resize(model, 32)
    assert same is not model
    assert same.config == model.config
    assert same.training
    assert weights_hash(same.state_dict()) == weights_hash(model.state_dict())


@pytest.mark.parametrize("mixer", sorted(MIXERS))
@pytest.mark.parametrize("layout", ["isotropic", "pyramid"])
def test_features_of_smooth_pictures_stay_recognisable(mixer, layout):
    """House models as they are initialised: resized ones give features like those they gave, fresh ones do not.

    Correlations measured over two seeds, lowest resized and highest fresh: isotropic 0.91 and 0.22, pyramid 0.21
    (random matrices on three grids; 0.85 for identity, whose convolutions see finer pictures too) and 0.14.
    """
    torch.manual_seed(0)
    model = house(mixer, layout, classes=0, patch=(2, 2)).eval()
    other = resize(model, (48, 64))
    fresh = build(other.config).eval()
    with torch.no_grad():
        features = model(smooth_images((32, 32)))
        kept, lost = (correlation(features, m(smooth_images((48, 64)))) for m in (other, fresh))
    assert kept > {"isotropic": 0.88, "pyramid": 0.18}[layout]
    assert kept > lost + {"isotropic": 0.5, "pyramid": 0.1}[layout]


def families():
    """One preset of each paper's function and set of mixers: the one with the fewest tokens and channels."""
    found = defaultdict(list)
    for name, preset in PRESETS.items():
        config = model_config(name)
        if isinstance(config, BackboneConfig):
            kind = tuple(sorted({b.mixer for s in config.stages for b in s.branches}))
            size = sum(s.dim for s in config.stages)
            found[getattr(preset, "func", preset), kind, config.prefix, config.positions].append((size, name))
        else:
            found[type(config),].append((0, name))
    return sorted(min(names)[1] for names in found.values())


def refused(model, size):
    """Whether another size is refused in a sentence."""
    try:
        resize(model, size)
    except MixwiseError:
        return True
    return False


@pytest.mark.parametrize("name", families())
def test_every_family_of_presets_resizes(name):
    """One block a stage, 4 × 2 tokens in the last: to a multiple and to none. Other architectures: or refused."""
    config = model_config(name)
    if not isinstance(config, BackboneConfig):
        with torch.device("meta"):
            size = (2 * config.image[0], 3 * config.image[1]) if isinstance(config, VisionConfig) else (64, 64)
            model = build(config)
            assert refused(model, size) or resize(model, size).config.image == size
        return
    stride = [p * math.prod(s.stride[i] for s in config.stages[1:]) for i, p in enumerate(config.patch)]
    small = model_config(name, image=(4 * stride[0], 2 * stride[1]))
    stages = tuple(s.model_copy(update={"depth": 1}) for s in small.stages)
    model = lively(build(small.model_copy(update={"stages": stages}))).eval()
    for size in [(8 * stride[0], 4 * stride[1]), (6 * stride[0], 3 * stride[1])]:
        with torch.no_grad():
            assert resize(model, size)(torch.randn(1, config.channels, *size)).isfinite().all()


def test_other_architectures_resize_where_no_weight_depends_on_the_size(monkeypatch):
    class Plain(VisionConfig):
        kind: str = "plain"
        tied: bool = False

    class Network(Model):
        def __init__(self, config):
            super().__init__()
            self.config = config
            self.layer = nn.Linear(config.image[0] if config.tied else 3, 2)

    monkeypatch.setitem(ARCHITECTURES, "plain", (Plain, Network))
    assert resize(Network(Plain(image=8)), (9, 7)).config.image == (9, 7)
    with pytest.raises(MixwiseError, match=r"no rule for 9×7: layer\.weight does not fit"):
        resize(Network(Plain(image=8, tied=True)), (9, 7))
    text = Network(Plain())
    text.config = ModelConfig(kind="text", name="reader")
    with pytest.raises(UsageError, match="reader is no model of images"):
        resize(text, 64)


def smooth_weights(value, grid):
    """The same tensor without what a grid of 3 × 3 could not hold, along every axis that counts the tokens."""
    size = math.prod(grid)
    for axis in [i for i, s in enumerate(value.shape) if s and s % size == 0]:
        parts = value.movedim(axis, 0).unflatten(0, (-1, size))
        parts = interpolate(interpolate(parts, 1, grid, (3, 3)), 1, (3, 3), grid)
        value = parts.flatten(0, 1).movedim(0, axis)
    return value.contiguous()


@pytest.mark.parametrize("mixer", FIXED)
def test_there_and_back(mixer):
    """Through a finer grid and back smooth weights are nearly what they were."""
    grid, fine = (8, 10), (16, 15)
    small = made(mixer, grid)
    for tensor in small.state_dict().values():
        if tensor.dim():
            tensor.copy_(smooth_weights(tensor, grid))
    back = resized(resized(small, grid, fine, method="smooth"), fine, grid, method="smooth")
    for (name, a), b in zip(small.state_dict().items(), back.state_dict().values(), strict=True):
        assert (a - b).double().norm() <= 0.1 * a.double().norm(), name


def test_dtype_frozen_parameters_and_mode_are_kept():
    model = house("token_mlp", "isotropic").bfloat16().train()
    model.stem.requires_grad_(False)
    other = resize(model, 48)
    assert {t.dtype for t in other.state_dict().values() if t.is_floating_point()} == {torch.bfloat16}
    assert other.training
    assert {n for n, p in other.named_parameters() if not p.requires_grad} == {
        n for n, p in model.named_parameters() if not p.requires_grad
    }


def test_class_token_models_resize():
    for mixer in sorted(MIXERS):
        if MIXERS[mixer].spatial:
            continue
        config = BackboneConfig(
            image=(16, 24), patch=(4, 4), classes=3, class_token=True, pool="token", positions="learned",
            stages=(StageConfig(depth=1, dim=8, branches=(BranchConfig(mixer=mixer),)),),
        )  # fmt: skip
        model = lively(build(config)).eval()
        other = resize(model, (24, 36))
        assert other(torch.randn(2, 3, 24, 36)).isfinite().all()
        assert torch.equal(other.position.weight[:, 0], model.position.weight[:, 0])


@pytest.mark.parametrize("layout", ["pyramid", "isotropic"])
@pytest.mark.parametrize("mixer", ["repmlp", "linear"])
def test_a_reparameterized_model_resizes(mixer, layout):
    """First folded or first resized: the same, where weights and folded summands follow one rule."""
    torch.manual_seed(0)
    model = lively(house(mixer, layout, norm="affine" if mixer == "linear" else "batch")).eval()
    for size in [(64, 64)] if mixer == "repmlp" else [(64, 64), (48, 56), (24, 20)]:
        x = torch.randn(2, 3, *size)
        fused_then, then_fused = resize(model.reparameterize(), size), resize(model, size).reparameterize()
        assert torch.allclose(fused_then(x), then_fused(x), atol=1e-4)
    other = resize(model.reparameterize(), (48, 64))
    assert other.config.form == "reparameterized"
    assert other(torch.randn(2, 3, 48, 64)).isfinite().all()
    with pytest.raises(UsageError, match="re-parameterised"):
        other.train()
    if mixer == "linear":
        x, (fused, expanded) = torch.randn(2, 3, 64, 64), (model.reparameterize(), resize(model, 64, method="expand"))
        assert torch.allclose(resize(fused, 64, method="expand")(x), expanded.eval()(x), atol=1e-4)


# --- rules ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mixer", FIXED)
@pytest.mark.parametrize("prefix", [0, 2])
def test_a_resized_mixer_is_what_its_options_build(mixer, prefix):
    if MIXERS[mixer].spatial and prefix:
        pytest.skip("no class tokens")
    small = made(mixer, prefix=prefix)
    for new in (NEW, (8, 12), (2, 5)):
        other = copy.deepcopy(small)
        changes = other.resize(OLD, new, prefix=prefix)
        fresh = mixer_class(mixer)(8, math.prod(new) + prefix, new, **changes).double()
        fresh.load_state_dict(other.state_dict())
        y = other(tokens(new, prefix), new)
        assert y.shape == tokens(new, prefix).shape
        assert torch.equal(fresh.eval()(tokens(new, prefix), new), y)


def test_positions_are_antialiased_bicubic_and_prefix_tokens_keep_theirs():
    for new in (NEW, (3, 4)):
        layer = LearnedPositions(8, OLD, prefix=2)
        table = layer.weight[:, 2:].unflatten(1, OLD).permute(0, 3, 1, 2)
        wanted = F.interpolate(table, size=new, mode="bicubic", antialias=True).flatten(2).transpose(1, 2)
        before = layer.weight[:, :2].clone()
        layer.resize(new)
        assert torch.allclose(layer.weight[:, 2:], wanted, atol=1e-6)
        assert torch.equal(layer.weight[:, :2], before)
        assert layer(torch.zeros(1, 2 + math.prod(new), 8), new).shape == (1, 2 + math.prod(new), 8)


def test_fixed_positions_are_measured_on_the_grid_they_had():
    """A new token between two old ones has a position between theirs; a refit to the old size is forgotten."""
    layer = SinCosPositions(8, grid=(4, 4))
    own = SinCosPositions(8).table((4, 4))
    assert torch.equal(layer.table((4, 4)), own)
    fine = layer.table((12, 12)).view(12, 12, 8)
    assert torch.allclose(fine[1::3, 1::3].reshape(16, 8), own, atol=1e-6)
    line = SinusoidPositions(8, prefix=1, grid=(2, 3))
    zero = torch.zeros(1, 7, 8)
    assert torch.equal(line(zero, (2, 3)), SinusoidPositions(8)(zero, (2, 3)))
    assert torch.equal(line(torch.zeros(1, 25, 8), (4, 6))[:, 0], line(zero, (2, 3))[:, 0])
    model = house("pool", "isotropic")
    bigger = resize(model, 48)
    assert bigger.config.position_grid == (8, 8)
    assert resize(bigger, (64, 40)).config.position_grid == (8, 8)
    assert resize(bigger, 32).config == model.config


@pytest.mark.parametrize("prefix", [0, 2])
@pytest.mark.parametrize("gated", [False, True])
def test_token_mlp_smooth_answers_as_before_on_interpolated_tokens(prefix, gated):
    """The resized MLP of interpolated tokens is the interpolated answer of the MLP, exactly."""
    small = made("token_mlp", prefix=prefix, hidden=6, gated=gated)
    big = resized(small, prefix=prefix)
    x = tokens(prefix=prefix)
    assert torch.allclose(big(up(x, prefix=prefix), NEW), up(small(x, OLD), prefix=prefix), atol=1e-9)


def test_token_mlp_smooth_keeps_the_response_to_constants_in_every_direction():
    small = made("token_mlp", hidden=6)
    for new in (NEW, (2, 3), (3, 9)):
        big = resized(small, new=new)
        assert torch.allclose(big.w1.sum(1), small.w1.sum(1))
        assert big.w1.shape[0] == 6


@pytest.mark.parametrize("options", [{"hidden": 6}, {"hidden": 6, "gated": True, "act": "silu"}])
def test_token_mlp_expand_is_the_old_mlp_on_each_sub_image(options):
    """Row-major places: every rectangle of the whole grid, not every run of tokens, has its own copy."""
    small = made("token_mlp", **options)
    new = (8, 18)
    big = copy.deepcopy(small)
    assert big.resize(OLD, new, method="expand") == {"hidden": 6 * 6}
    x = tokens(new)
    image, wanted = x.unflatten(1, new), torch.empty(2, *new, 8, dtype=torch.float64)
    for r in range(0, 8, 4):
        for c in range(0, 18, 6):
            part = image[:, r : r + 4, c : c + 6].flatten(1, 2)
            wanted[:, r : r + 4, c : c + 6] = small(part, OLD).unflatten(1, OLD)
    assert torch.allclose(big(x, new), wanted.flatten(1, 2), atol=1e-10)
    strips = torch.block_diag(*[small.w1] * 6)
    assert strips.shape == big.w1.shape
    assert not torch.allclose(strips, big.w1)


@pytest.mark.parametrize("mixer", ["linear", "spatial_gate"])
def test_matrices_expand_to_sub_images_too(mixer):
    small = made(mixer)
    big = resized(small, new=(8, 12), method="expand")
    index = sub_images(OLD, (8, 12))
    x = tokens((8, 12))
    y = big(x, (8, 12))
    for part in index:
        assert torch.allclose(y[:, part], small(x[:, part], OLD), atol=1e-10)


def test_model_expand_changes_the_hidden_width_of_each_stage():
    model = house("token_mlp", "pyramid").eval()
    bigger = resize(model, (64, 96), method="expand")
    assert [s.branches[0].options["hidden"] for s in bigger.config.stages] == [
        6 * s.dim // 2 for s in model.config.stages
    ]
    assert bigger(torch.randn(1, 3, 64, 96)).shape == (1, 3)


@pytest.mark.parametrize(
    ("name", "millions"), [("mixer_b16_224", 86.2), ("mixer_l16_224", 279.5), ("mixer_h14_224", 588.4)]
)
def test_the_papers_models_at_448_have_the_papers_size(name, millions):
    """K = 2: four times the hidden width; parameters without head."""
    small = build(model_config(name, depth=1, dim=8, tokens_hidden=6, image=(56, 56) if "h14" in name else (64, 64)))
    bigger = resize(small, (112, 112) if "h14" in name else (128, 128), method="expand")
    assert bigger.config.stages[0].branches[0].options["hidden"] == 24
    hidden = model_config(name).stages[0].branches[0].options["hidden"]
    with torch.device("meta"):
        model = build(model_config(name, image=448, tokens_hidden=4 * hidden, classes=0))
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.05)


def filters(grid, height, width, taps):
    """The matrix of a convolution: rows (height, width) of taps {(dy, dx): weight} with zero padding."""
    weight = torch.zeros(math.prod(grid), math.prod(grid), dtype=torch.float64)
    for y in range(height):
        for x in range(width):
            for (dy, dx), value in taps.items():
                if 0 <= y + dy < height and 0 <= x + dx < width:
                    weight[y * width + x, (y + dy) * width + x + dx] = value
    return weight


@pytest.mark.parametrize("new", [(18, 22), (27, 33), (13, 14)])
def test_rows_stay_filters_around_their_own_token(new):
    """A convolution stays one: away from the border all rows are nearly one filter, stretched, around their token."""
    old = (9, 11)
    taps = {(0, 0): 2.0, (0, 1): 1.0, (-1, 0): 0.5}
    weight = recentre(filters(old, *old, taps), old, new).view(*new, *new)
    scale = [b / a for a, b in zip(old, new, strict=True)]
    middle = weight[new[0] // 2, new[1] // 2]
    edge = [math.ceil(3 * s) for s in scale]
    for r in range(edge[0], new[0] - edge[0]):
        for c in range(edge[1], new[1] - edge[1]):
            row = weight[r, c]
            shifted = torch.roll(row, (new[0] // 2 - r, new[1] // 2 - c), (0, 1))
            assert F.cosine_similarity(shifted.flatten(), middle.flatten(), dim=0) > 0.85
            assert row.sum() == pytest.approx(3.5, abs=1e-6)
            centre = ((row.sum(1) @ torch.arange(new[0]).double()), (row.sum(0) @ torch.arange(new[1]).double()))
            assert centre[0] / 3.5 - r == pytest.approx(-0.5 / 3.5 * scale[0], abs=0.15)
            assert centre[1] / 3.5 - c == pytest.approx(1 / 3.5 * scale[1], abs=0.15)


@pytest.mark.parametrize("mixer", ["linear", "spatial_gate"])
def test_matrices_answer_as_before_on_interpolated_tokens(mixer):
    small = made(mixer).weight.detach()
    x = tokens()[0]
    big = recentre(small, OLD, NEW)
    assert torch.allclose(big @ up(x[None])[0], up((small @ x)[None])[0], atol=1e-9)
    for new in (NEW, (3, 4)):
        sums = interpolate(small.sum(1), 0, OLD, new)
        assert torch.allclose(recentre(small, OLD, new).sum(1), sums)
    eye = recentre(torch.eye(24), OLD, NEW)
    assert torch.equal(eye.argmax(1), torch.arange(54))


def test_class_token_rows_and_columns_stay_apart():
    weight = made("linear", prefix=2).weight.detach()
    big = recentre(weight, OLD, NEW, prefix=2)
    assert torch.equal(big[:2, :2], weight[:2, :2])
    assert torch.allclose(big[:2, 2:].sum(1), weight[:2, 2:].sum(1))
    assert torch.allclose(big[2:, :2], interpolate(weight[2:, :2], 0, OLD, NEW))
    assert torch.equal(big[2:, 2:], recentre(weight[2:, 2:], OLD, NEW))


def test_feed_forward_keeps_hidden_and_interpolates_its_norm():
    small = made("feed_forward", prefix=1)
    other = copy.deepcopy(small)
    assert other.resize(OLD, NEW, prefix=1) == {"ratio": 100 / 55}
    assert other.w1.shape == (100, 55)
    assert torch.equal(other.norm.weight[:1], small.norm.weight[:1])
    assert torch.allclose(other.norm.bias[1:], interpolate(small.norm.bias[1:], 0, OLD, NEW))
    assert torch.equal(other.w1[:, 0], small.w1[:, 0])


def test_feature_attention_keeps_its_attention():
    """Dot products of queries and keys of interpolated tokens are those from before; so are the answers."""
    x = tokens()
    q, k = x[0], x[1]
    assert torch.allclose(embed(q, 0, OLD, NEW).t() @ embed(k, 0, OLD, NEW), q.t() @ k)
    small = made("feature_attention", qkv_bias=True)
    with torch.no_grad():
        small.norm.weight.fill_(1)
        small.norm.bias.zero_()
    big = resized(small)
    z, fine = small.norm(x), up(small.norm(x))
    for module in (small, big):
        module.norm = nn.Identity()
    assert torch.allclose(big(fine, NEW), up(small(z, OLD)), atol=1e-9)


def test_random_rows_stay_means():
    small = made("random", prefix=1)
    for new in (NEW, (2, 3)):
        weight = resized(small, new=new, prefix=1).weight
        assert torch.allclose(weight.sum(1), torch.ones(len(weight), dtype=torch.float64))
        assert weight.min() > 0


@pytest.mark.parametrize("fused", [False, True])
def test_repmlp_keeps_its_windows_where_they_tile(fused):
    """Each window gets the answer that it would get alone, in its own place, with fewer share-sets than channels."""
    small = made("repmlp", sharesets=2)
    module = small.reparameterize() if fused else small
    big = copy.deepcopy(module)
    new = (8, 12)
    assert big.resize(OLD, new) == {"partition": OLD}
    x = tokens(new)
    parts = [x[:, index] for index in sub_images(OLD, new)]
    parts = [p - p.mean(dim=1, keepdim=True) for p in parts]  # the gate reads the mean of the whole image
    for index, part in zip(sub_images(OLD, new), parts, strict=True):
        x[:, index] = part
    y = big(x, new)
    for index, part in zip(sub_images(OLD, new), parts, strict=True):
        assert torch.allclose(y[:, index], module(part, OLD), atol=1e-9)


def test_repmlp_stretches_its_windows_otherwise():
    small = made("repmlp", sharesets=2)
    big = copy.deepcopy(small)
    assert big.resize(OLD, NEW) == {}
    assert torch.allclose(big.weight, recentre(small.weight, OLD, NEW))
    parted = made("repmlp", partition=(2, 3))
    assert parted.resize(OLD, (6, 8)) == {"partition": (3, 4)}
    assert parted(tokens((6, 8)), (6, 8)).isfinite().all()
    with pytest.raises(UsageError, match="cannot be cut into 2×2 windows"):
        made("repmlp", partition=(2, 3)).resize(OLD, (5, 7))
    with pytest.raises(UsageError, match="do not tile"):
        made("repmlp").resize(OLD, NEW, method="expand")
    forced = copy.deepcopy(small)
    assert forced.resize(OLD, (8, 12), method="smooth") == {}
    assert forced.weight.shape == (2, 96, 96)


def test_reading_and_writing_fit_together():
    """What is distributed answers as before for interpolated tokens; pseudo-inverse of the same interpolation."""
    w, x = tokens(seed=2)[..., 0], tokens()
    assert torch.allclose(distribute(w, 1, OLD, NEW) @ up(x)[0], w @ x[0])
    assert torch.allclose(torch.linalg.pinv(_cubic(4, 7)) @ _cubic(4, 7), torch.eye(4, dtype=torch.float64))


# --- refusals and files -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mixer", "options", "size", "method", "message"),
    [
        ("token_mlp", {}, (48, 64), "expand", "multiple of 8×8 tokens, got 12×16"),
        ("feed_forward", {}, (64, 64), "expand", "cannot be expanded"),
        ("feature_attention", {}, (64, 64), "expand", "cannot be expanded"),
        ("random", {}, (64, 64), "expand", "cannot be expanded"),
        ("spatial_gate", {"toeplitz": True}, (64, 64), "auto", "belong to sequences"),
        ("spatial_gate", {"causal": True}, (64, 64), "auto", "belong to sequences"),
        ("token_mlp", {}, (64, 64), "smoth", "did you mean 'smooth'"),
        ("pool", {}, (0, 64), "auto", "at least one pixel"),
    ],
)
def test_refusals_say_why(mixer, options, size, method, message):
    with pytest.raises(UsageError, match=message):
        resize(house(mixer, "isotropic", options=options), size, method=method)


def test_sizes_that_the_patches_do_not_divide_are_refused():
    with pytest.raises(UsageError, match="30×32 pixels; heights must be multiples of 16"):
        resize(create_model("mixer_s16_224", image=32, depth=1, dim=8), (30, 32))


def test_a_mixer_without_a_rule_is_refused():
    class Fixed(Mixer):
        """Has weights for its tokens and says nothing of others."""

        fixed_grid = True

    with pytest.raises(UsageError, match="no rule"):
        Fixed(8, 24, OLD).resize(OLD, NEW)


@pytest.fixture
def file(tmp_path):
    torch.manual_seed(0)
    path = tmp_path / "model.safetensors"
    model = create_model("token_mlp_nano", image=(8, 8), channels=1, classes=10)
    pre = {"image": (8, 8), "channels": 1, "mean": (0.3,), "std": (0.3,)}
    header = {"config": model.config.model_dump(), "classes": tuple("0123456789"), "preprocess": pre, "epoch": 3}
    save(path, model.state_dict(), Header.parse(header | {"metrics": {"val_accuracy": 0.5}}))
    return path


def test_a_file_is_resized_and_measured(file, tmp_path):
    out = tmp_path / "new.safetensors"
    result = resize_file(file, out, (12, 16), pictures=40)
    header = read_header(out)
    assert header.config.image == header.preprocess.image == (12, 16)
    assert (header.classes, header.epoch, header.metrics) == (tuple("0123456789"), 3, {})
    assert result.pictures == 40
    assert result.change > 0
    assert result.parameters[0] < result.parameters[1]
    assert mixwise.Predictor(out)(torch.zeros(1, 8, 8))[0].label in "0123456789"
    assert torch.equal(resize(file, (12, 16))(torch.ones(1, 1, 12, 16)), load_file(out)[0](torch.ones(1, 1, 12, 16)))
    same = resize_file(file, out, 8, overwrite=True)
    assert (same.same, same.change) == (1.0, 0.0)
    assert weights_hash(load_file(out)[0].state_dict()) == weights_hash(load_file(file)[0].state_dict())


@pytest.mark.parametrize("name", ["model.safetensors", "", "new.txt"])
def test_the_file_that_is_read_is_never_overwritten(file, tmp_path, name):
    before = file.read_bytes()
    with pytest.raises(UsageError, match=r"the file that is read|is a folder|must end in \.safetensors"):
        resize_file(file, tmp_path / name, 12, pictures=2)
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_a_file_that_carries_damaged_weights_writes_nothing(file, tmp_path):
    model, header = load_file(file)
    with torch.no_grad():
        model.stages[0].blocks[0][0].mixer.w1[0, 0] = float("nan")
    save(file, model.state_dict(), header)
    with pytest.raises(MixwiseError, match="nothing was written"):
        resize_file(file, tmp_path / "new.safetensors", 12)
    assert not (tmp_path / "new.safetensors").exists()


def test_command_line(file, tmp_path, capsys, monkeypatch):
    out = tmp_path / "new.safetensors"
    result = CliRunner().invoke(app, ["resize", str(file), "--image-size", "12x16", "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert "8×8 → 12×16 pixels" in result.stdout
    assert "same top-1" in result.stdout
    assert "|Δ logit|" in result.stdout
    pictures = tmp_path / "pictures"
    mixwise.data.export_builtin("digits", pictures, count=7)
    again = CliRunner().invoke(
        app, ["resize", str(file), "--image-size", "16", "-o", str(out), "--force", "--images", str(pictures)]
    )
    assert "7 pictures" in again.stdout
    assert json.loads(read_header(out).to_json())["config"]["image"] == [16, 16]
    for text, size in (("8x8x8", "8x8x8"), ("0", "0"), ("axb", "axb")):
        monkeypatch.setattr("sys.argv", ["mixwise", "resize", str(file), "--image-size", size, "-o", str(out)])
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code == 2
        assert text in capsys.readouterr().err
    assert parse_size("48×64") == (48, 64)
