"""PoolFormer and the hybrids: counts, costs, options, and what the authors' code and timm do differently."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mixwise.errors import UsageError
from mixwise.model import build
from mixwise.models import create_model, model_config
from mixwise.models.poolformer import VARIANTS
from mixwise.norms import GroupNorm1
from mixwise.weights.convert import convert
from mixwise.weights.mapping import FORMATS, to_foreign
from testing_weights import lively

PARAMETERS = {
    "poolformer_s12": 11_915_176,
    "poolformer_s24": 21_388_968,
    "poolformer_s36": 30_862_760,
    "poolformer_m36": 56_172_520,
    "poolformer_m48": 73_473_448,
    "metaformer_id_s12": 11_915_176,
    "metaformer_pppa_s12": 14_038_440,
    "metaformer_ppaa_s12": 16_535_592,
    "metaformer_pppf_s12": 11_919_978,
    "metaformer_ppff_s12": 12_150_474,
}
GMACS = {
    "poolformer_s12": 1.812,
    "poolformer_s24": 3.392,
    "poolformer_s36": 4.972,
    "poolformer_m36": 8.759,
    "poolformer_m48": 11.533,
    "metaformer_id_s12": 1.812,
    "metaformer_pppa_s12": 1.920,
    "metaformer_ppaa_s12": 2.549,
    "metaformer_pppf_s12": 1.815,
    "metaformer_ppff_s12": 1.888,
}
SMALL = {"image": (45, 61), "classes": 5, "depths": (1, 2, 1, 1), "dims": (8, 12, 32, 64)}


def closed_form(config) -> int:
    """Multiply-accumulates: convolutions and matrix products from the sizes alone."""
    sides, total, before = list(config.image), 0, config.channels
    for i, stage in enumerate(config.stages):
        kernel, stride, pad = (7, 4, 2) if i == 0 else (3, 2, 1)
        sides = [(s + 2 * pad - kernel) // stride + 1 for s in sides]
        n, d = sides[0] * sides[1], stage.dim
        total += n * kernel**2 * before * d
        mixer = {
            "attention": 4 * n * d * d + 2 * n * n * d,
            "linear": n * n * d,
            "pool": 0,
            "identity": 0,
        }[stage.branches[0].mixer]
        total += stage.depth * (mixer + 2 * n * d * round(d * stage.branches[1].options["ratio"]))
        before = d
    return total + before * config.classes


def measured(config) -> int:
    with torch.device("meta"):
        model = build(config).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.empty(1, config.channels, *config.image, device="meta"))
    return counter.get_total_flops() // 2


@pytest.mark.parametrize("name", VARIANTS)
def test_parameters_and_costs(name):
    config = model_config(name)
    with torch.device("meta"):
        assert sum(p.numel() for p in build(config).parameters()) == PARAMETERS[name]
    assert measured(config) == closed_form(config)
    assert round(measured(config) / 1e9, 3) == GMACS[name]


def answer(**changes) -> torch.Tensor:
    model = lively(create_model("poolformer_s12", **(SMALL | changes))).eval()
    with torch.no_grad():
        return model(torch.randn(2, 3, *model.config.image, generator=torch.Generator().manual_seed(1)))


@pytest.mark.parametrize(
    "changes",
    [
        {"pool_size": 5},
        {"norm": "layer"},
        {"norm": "batch"},
        {"norm": "none"},
        {"norm_eps": 0.1},
        {"layer_scale": None},
        {"readout": "timm"},
        {"ratio": 2.0},
        {"ratio": (4, 4, 4, 3)},
        {"patch": 2},
        {"mixers": "identity"},
        {"mixers": ("pool", "pool", "pool", "attention")},
        {"mixers": ("pool", "pool", "pool", "linear")},
        {"positions": (False, True, False, False)},
        {"downsample": (True, True, True, False), "dims": (8, 12, 64, 64)},
        {"dims": (8, 12, 32, 40)},
        {"depths": (1, 1, 1, 1)},
    ],
    ids=str,
)
def test_options_change_the_output(changes):
    assert not torch.allclose(answer(), answer(**changes))


def test_options_change_the_start_or_training():
    convolution = create_model("poolformer_s12", **SMALL).stem.proj.weight.detach().std()
    assert float(convolution) > 1.5 * 0.02, "the authors leave the stem at torch's start"
    truncated = create_model("poolformer_s12", **SMALL, stem_init="normal").stem.proj.weight.detach().std()
    assert float(truncated) == pytest.approx(0.02, rel=0.1)
    assert create_model("poolformer_s36", **SMALL).stages[0].blocks[0][0].scale.detach()[0] == pytest.approx(1e-6)
    rates = [
        b[1].drop_path.rate for s in create_model("poolformer_s12", drop_path=0.4, **SMALL).stages for b in s.blocks
    ]
    assert rates == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])


def test_refused_options_say_why():
    with pytest.raises(UsageError, match="dims needs one entry for each of the 4 stages"):
        model_config("poolformer_s12", dims=(8, 16))
    with pytest.raises(UsageError, match="pool_size=5 belongs to the mixer 'pool'"):
        model_config("metaformer_id_s12", pool_size=5)
    with pytest.raises(UsageError, match="readout"):
        model_config("poolformer_s12", readout="tim")
    with pytest.raises(UsageError, match="norm"):
        create_model("poolformer_s12", norm="instance")


def test_the_norm_is_group_norm_with_one_group_and_not_layer_norm():
    x = torch.randn(2, 15, 8) * torch.rand(2, 15, 1)
    weight, bias = torch.rand(8), torch.randn(8)
    ours = GroupNorm1(8)
    ours.load_state_dict({"weight": weight, "bias": bias})
    theirs = torch.nn.functional.group_norm(x.transpose(1, 2).unflatten(2, (3, 5)), 1, weight, bias)
    torch.testing.assert_close(ours(x), theirs.flatten(2).transpose(1, 2))
    assert not torch.allclose(ours(x), torch.nn.functional.layer_norm(x, (8,), weight, bias), atol=0.1)


def test_padding_is_not_counted_at_borders():
    mixer = create_model("poolformer_s12", **SMALL).stages[0].blocks[0][0].mixer
    x = torch.randn(1, 30, 8)
    image = x.transpose(1, 2).unflatten(2, (5, 6))
    ones = torch.ones(8, 1, 3, 3)
    sums = torch.nn.functional.conv2d(image, ones, padding=1, groups=8)
    counts = torch.nn.functional.conv2d(torch.ones_like(image), ones, padding=1, groups=8)
    right = (sums / counts - image).flatten(2).transpose(1, 2)
    torch.testing.assert_close(mixer(x, (5, 6)), right)
    plain = (sums / 9 - image).flatten(2).transpose(1, 2)
    assert (mixer(x, (5, 6)) - plain).abs().max() > 0.1
    assert mixer(torch.ones(1, 30, 8), (5, 6)).abs().max() == 0


def dead(model) -> set[str]:
    """Parameters whose gradient is zero up to rounding."""
    model = lively(model).double().eval()
    x = torch.randn(2, 3, *model.config.image, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    answers = model(x)
    (answers * torch.randn(answers.shape, generator=torch.Generator().manual_seed(2))).sum().backward()
    largest = max(float(p.grad.abs().max()) for p in model.parameters())
    return {name for name, p in model.named_parameters() if float(p.grad.abs().max()) <= 1e-12 * largest}


@pytest.mark.parametrize("name", [n for n in VARIANTS if n.endswith("s12")])
def test_dead_parameters_are_the_shifts_in_front_of_a_pooling(name):
    """They are kept: 3,328 numbers in S12."""
    model = create_model(name, **SMALL)
    pooled = [i for i, stage in enumerate(model.config.stages) if stage.branches[0].mixer == "pool"]
    wanted = {f"stages.{i}.blocks.{j}.0.norm.bias" for i in pooled for j in range(SMALL["depths"][i])}
    assert dead(model) == wanted
    whole = model_config("poolformer_s12")
    assert sum(stage.depth * stage.dim for stage in whole.stages) == 3328


def test_timm_reads_out_in_another_order():
    ours, theirs = (lively(create_model("poolformer_s12", readout=r, **SMALL)).eval() for r in ("official", "timm"))
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    x = torch.randn(2, 3, *SMALL["image"])
    with torch.no_grad():
        mine, other = ours.features(x).tokens, theirs.features(x).tokens
        normalised = ours.norm(other)
        torch.testing.assert_close(mine, normalised)  # features alike up to the head
        torch.testing.assert_close(ours(x), ours.head(mine.mean(dim=1)))
        by_hand = torch.nn.functional.layer_norm(other.mean(dim=1), (64,), theirs.norm.weight, theirs.norm.bias, 1e-6)
        torch.testing.assert_close(theirs(x), theirs.head(by_hand))
        assert (ours(x) - theirs(x)).abs().max() > 0.01


@pytest.mark.parametrize("size", [(97, 133), (64, 96), (224, 224), (33, 250), (3, 3)], ids=str)
def test_any_size_and_its_pyramid(size):
    model = create_model("poolformer_s12", depths=(1, 1, 1, 1), dims=(8, 12, 20, 28), classes=5).eval()
    sides, grids = size, []
    for kernel, stride, pad in ((7, 4, 2), (3, 2, 1), (3, 2, 1), (3, 2, 1)):
        sides = tuple((s + 2 * pad - kernel) // stride + 1 for s in sides)
        grids.append(sides)
    with torch.no_grad():
        maps = model.pyramid(torch.randn(2, 3, *size))
        assert [m.shape for m in maps] == [(2, d, *g) for d, g in zip((8, 12, 20, 28), grids, strict=True)]
        assert model(torch.randn(2, 3, *size)).shape == (2, 5)


def test_attention_and_linear_hybrids_belong_to_one_size():
    assert not create_model("metaformer_id_s12", **SMALL).fixed_size
    for name in ("metaformer_pppa_s12", "metaformer_pppf_s12"):
        model = create_model(name, **SMALL)
        with pytest.raises(UsageError, match="weights for 45×61 pixels and was given 64×64"):
            model(torch.randn(1, 3, 64, 64))


def test_positions_stand_in_front_of_the_first_attention():
    def places(name):
        return [stage.position is not None for stage in create_model(name, **SMALL).stages]

    assert places("metaformer_ppaa_s12") == [False, False, True, False]
    assert places("metaformer_pppa_s12") == [False, False, False, True]
    assert not any(places("metaformer_ppff_s12") + places("poolformer_s12"))


# --- files ------------------------------------------------------------------------------------------------------------


def written(tmp_path, config, form, *, drop=(), more=()):
    """A file of a format with random weights, and the model that they are of."""
    model = lively(build(config)).eval()
    state = to_foreign(FORMATS[form].entries(config), model.state_dict())
    state = {name: tensor for name, tensor in state.items() if name not in drop} | dict(more)
    torch.save(state, tmp_path / f"{config.name}.pth.tar")
    return tmp_path / f"{config.name}.pth.tar", model


def test_a_file_of_the_authors_has_their_readout_and_one_of_timm_timms(tmp_path):
    for form, readout in (("poolformer", "official"), ("timm_metaformer", "timm")):
        config = model_config("poolformer_s12", readout=readout, classes=7)
        path, model = written(tmp_path, config, form)
        made = convert(path, model="poolformer_s12")
        assert made.format == form
        assert (made.model.config.pool_first, made.model.config.final_norm) == (
            (True, "layer") if readout == "timm" else (False, None)
        )
        x = torch.randn(1, 3, 224, 224)
        with torch.no_grad():
            assert torch.equal(made.model(x), model(x))


def test_a_backbone_for_dense_tasks_brings_its_norms(tmp_path):
    """fork_feat: a norm per stage, no head; FORK_LAST3 leaves out the first."""
    config = model_config("poolformer_s12", classes=0)
    norms = {}
    for index, stage in zip((0, 2, 4, 6), config.stages, strict=True):
        norms |= {f"norm{index}.weight": torch.rand(stage.dim), f"norm{index}.bias": torch.rand(stage.dim)}
    for left_out in ((), ("norm0.weight", "norm0.bias")):
        kept = {name: tensor for name, tensor in norms.items() if name not in left_out}
        path, model = written(tmp_path, config, "poolformer", drop=("norm.weight", "norm.bias"), more=kept.items())
        made = convert(path, model="poolformer_s12").model
        assert [stage.pyramid_norm is not None for stage in made.stages] == [not left_out, True, True, True]
        x = torch.randn(1, 3, 97, 133)
        with torch.no_grad():
            for index, ours, plain in zip((0, 2, 4, 6), made.pyramid(x), model.pyramid(x), strict=True):
                if f"norm{index}.weight" in kept:
                    weight, bias = kept[f"norm{index}.weight"], kept[f"norm{index}.bias"]
                    plain = torch.nn.functional.group_norm(plain, 1, weight, bias)
                torch.testing.assert_close(ours, plain)


def test_a_file_with_batch_norms_is_seen_as_such(tmp_path):
    path, model = written(tmp_path, model_config("poolformer_s12", norm="batch"), "poolformer")
    made = convert(path, model="poolformer_s12").model
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(made(x), model(x))


def test_preprocessing_is_the_published_one(tmp_path):
    crops = {name: FORMATS["poolformer"].preprocess(model_config(name))["crop_pct"] for name in VARIANTS}
    low = {"poolformer_s12", "poolformer_s24", "poolformer_s36", "metaformer_id_s12", "metaformer_pppf_s12"}
    assert crops == {name: 0.9 if name in low else 0.95 for name in VARIANTS}
