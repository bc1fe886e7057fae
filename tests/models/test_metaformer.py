"""The MetaFormer baselines: counts, costs, options, traps, files."""

import pytest
import timm
import torch
from torch.utils.flop_counter import FlopCounterMode

from mixwise import models
from mixwise.errors import MixwiseError, UsageError
from mixwise.model import build
from mixwise.models import create_model, model_config
from mixwise.models.metaformer import BASIC, BASIC_SIZES, VARIANTS
from mixwise.weights.convert import convert
from mixwise.weights.mapping import FORMATS, to_foreign
from testing_weights import lively

BASIC_PARAMETERS = (11_891_712, 21_341_464, 30_791_216, 56_077_168, 73_346_056)
PARAMETERS = {
    f"{kind}_{size}": count for kind in BASIC for size, count in zip(BASIC_SIZES, BASIC_PARAMETERS, strict=True)
} | {
    "convformer_s18": 26_774_448,
    "convformer_s36": 40_012_152,
    "convformer_m36": 57_051_640,
    "convformer_b36": 99_882_616,
    "caformer_s18": 26_341_656,
    "caformer_s36": 39_297_102,
    "caformer_m36": 56_204_878,
    "caformer_b36": 98_753_614,
}
FROZEN = dict(zip(BASIC_SIZES, (235_298, 470_596, 705_894, 705_894, 941_192), strict=True))
PUBLISHED = {
    "identityformer": (1.8, 3.4, 5.0, 8.8, 11.5),
    "randformer": (1.9, 3.5, 5.2, 9.0, 11.9),
    "poolformerv2": (1.8, 3.4, 5.0, 8.8, 11.5),
    "convformer": ((3.9, 11.6), (7.6, 22.4), (12.8, 37.7), (22.6, 66.5)),
    "caformer": ((4.1, 13.4), (8.0, 26.0), (13.2, 42.0), (23.2, 72.2)),
}
"""GMACs of the authors' README, at 224 pixels and for ConvFormer and CAFormer at 384."""
SMALL = {"image": (45, 61), "classes": 5, "depths": (1, 2, 1, 1), "dims": (8, 12, 40, 64)}
SMALLEST = ("identityformer_s12", "randformer_s12", "poolformerv2_s12", "convformer_s18", "caformer_s18")


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
            "identity": 0,
            "pool": 0,
            "random": n * n * d,
            "separable_conv": 4 * n * d * d + 49 * n * 2 * d,
        }[stage.branches[0].mixer]
        total += stage.depth * (mixer + 8 * n * d * d)
        before = d
    return total + (before * config.classes if config.head == "linear" else 4 * before * (before + config.classes))


def measured(config) -> FlopCounterMode:
    with torch.device("meta"):
        model = build(config).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.empty(1, config.channels, *config.image, device="meta"))
    return counter


@pytest.mark.parametrize("name", VARIANTS)
def test_parameters_and_costs(name):
    kind, size = name.split("_")
    config = model_config(name)
    with torch.device("meta"):
        model = build(config)
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[name]
    assert sum(b.numel() for b in model.buffers()) == (FROZEN[size] if kind == "randformer" else 0)
    order = [n for n in VARIANTS if n.startswith(kind)].index(name)
    published = PUBLISHED[kind][order]
    sizes = ((224, published),) if kind in BASIC else tuple(zip((224, 384), published, strict=True))
    for image, wanted in sizes:
        sized = model_config(name, image=image)
        macs = measured(sized).get_total_flops() // 2
        assert macs == closed_form(sized)
        assert round(macs / 1e9, 1) == wanted


def test_convolutions_and_linear_layers_of_caformer_alone():
    counts = measured(model_config("caformer_s18")).get_flop_counts()["Global"]
    products = sum(count for op, count in counts.items() if "bmm" in str(op))
    assert round((sum(counts.values()) - products) / 2e9, 2) == 3.88


def test_in21k_heads_have_21841_classes():
    with torch.device("meta"):
        head = build(model_config("caformer_s18", classes=21841)).head
    assert (head.fc1.out_features, head.fc2.out_features) == (2048, 21841)


def test_parameters_of_the_docstring():
    """The table's digits are the measured ones."""
    rows = [line.strip("| ").split("|") for line in models.metaformer.__doc__.splitlines() if line.startswith("| ")]
    table = {row[0].strip(): (row[3].strip(), row[4].strip()) for row in rows[1:]}
    assert {name: count for name, (count, _) in table.items()} == {n: f"{c:,}" for n, c in PARAMETERS.items()}
    for name in (*SMALLEST, "randformer_m48", "caformer_b36"):
        assert f"{measured(model_config(name)).get_total_flops() / 2e9:.3f}" == table[name][1], name


def answer(name, **changes) -> torch.Tensor:
    model = lively(create_model(name, **(SMALL | changes))).eval()
    with torch.no_grad():
        return model(torch.randn(2, 3, *model.config.image, generator=torch.Generator().manual_seed(1)))


@pytest.mark.parametrize(
    "changes",
    [
        {"act": "relu"},
        {"act": "gelu"},
        {"ratio": 2.0},
        {"norm": "group1"},
        {"norm": "batch"},
        {"norm": "none"},
        {"norm_eps": 0.1},
        {"layer_scale": 0.1},
        {"res_scale": None},
        {"res_scale": 1.0},
        {"head": "linear"},
        {"head_options": {"eps": 0.1}},
        {"head_options": {"ratio": 2.0}},
        {"mixers": "attention"},
        {"patch": 2},
        {"depths": (1, 1, 1, 1)},
        {"dims": (8, 12, 40, 32)},
    ],
    ids=str,
)
def test_options_change_the_output(changes):
    assert not torch.allclose(answer("caformer_s18"), answer("caformer_s18", **changes))


def test_options_change_the_start():
    scalars = [
        (float(act.scale.detach()), float(act.shift.detach()))
        for name in ("star_relu", "star_relu_normal")
        for act in [create_model("convformer_s18", act=name, **SMALL).stages[0].blocks[0][1].mixer.act]
    ]
    assert scalars == [(1.0, 0.0), (pytest.approx(0.8944), pytest.approx(-0.4472))]
    x = torch.randn(100_000)
    star = 0.8944 * torch.relu(x).square() - 0.4472
    assert float(star.mean()) == pytest.approx(0, abs=0.02)
    assert float(star.std()) == pytest.approx(1, abs=0.03)
    model = create_model("caformer_s18", **SMALL)
    for layer in (model.stem.proj, model.stages[2].blocks[0][0].mixer.qkv, model.stages[3].blocks[0][1].mixer.fc2):
        assert float(layer.weight.detach().std()) == pytest.approx(0.02, rel=0.15)
    assert float(model.stem.proj.bias.detach().abs().max()) == 0


def test_refused_options_say_why():
    with pytest.raises(UsageError, match="head 'linear'"):
        create_model("identityformer_s12", head_options={"dropout": 0.1}, **SMALL)
    with pytest.raises(UsageError, match="mixers needs one entry for each of the 4 stages"):
        model_config("caformer_s18", mixers=("pool", "attention"))


def test_factors_on_the_shortcut_in_the_last_two_stages_only():
    for name in SMALLEST:
        model = create_model(name, **SMALL)
        found = [any("res_scale" in key for key, _ in stage.named_parameters()) for stage in model.stages]
        assert found == [False, False, True, True]
    branch = model.stages[2].blocks[0][1]
    torch.nn.init.zeros_(branch.res_scale)
    x = torch.randn(1, 6, 40)
    torch.testing.assert_close(branch(x, (2, 3)), branch.mixer(branch.norm(x), (2, 3)))


def test_no_bias_in_blocks():
    for name in SMALLEST:
        keys = [key for stage in create_model(name, **SMALL).stages for key in stage.blocks.state_dict()]
        assert not [key for key in keys if key.endswith("bias")]


def test_heads_are_32_wide_whatever_the_width():
    mixer = create_model("caformer_s18", **SMALL).stages[2].blocks[0][0].mixer
    assert (mixer.heads, mixer.qkv.weight.shape, mixer.out.weight.shape) == (1, (96, 40), (40, 32))
    wide = create_model("caformer_s18", **(SMALL | {"dims": (8, 12, 16, 80)}))
    assert wide.stages[2].blocks[0][0].mixer.qkv.weight.shape == (96, 16)
    assert wide.stages[3].blocks[0][0].mixer.out.weight.shape == (80, 64)
    assert wide(torch.randn(1, 3, 45, 61)).shape == (1, 5)


def test_dims_of_m36_end_at_576():
    assert [stage.dim for stage in model_config("convformer_m36").stages] == [96, 192, 384, 576]


def test_the_random_matrix_is_saved_frozen_and_fixes_the_size():
    model = create_model("randformer_s12", **SMALL)
    state, names = model.state_dict(), dict(model.named_parameters())
    matrices = [key for key in state if key.endswith("0.mixer.weight")]
    assert matrices == ["stages.2.blocks.0.0.mixer.weight", "stages.3.blocks.0.0.mixer.weight"]
    assert not set(matrices) & set(names)
    torch.testing.assert_close(state[matrices[0]].sum(dim=1), torch.ones(len(state[matrices[0]])))
    with pytest.raises(UsageError, match="weights for 45×61 pixels and was given 45×93"):
        model(torch.randn(1, 3, 45, 93))
    two = create_model("randformer_s12", **(SMALL | {"depths": (1, 1, 2, 1)})).stages[2].blocks
    assert not torch.equal(two[0][0].mixer.weight, two[1][0].mixer.weight)


@pytest.mark.parametrize("name", SMALLEST)
def test_no_parameter_is_dead(name):
    model = lively(create_model(name, **SMALL)).double().eval()
    x = torch.randn(2, 3, *SMALL["image"], dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    answers = model(x)
    (answers * torch.randn(answers.shape, generator=torch.Generator().manual_seed(2))).sum().backward()
    largest = max(float(p.grad.abs().max()) for p in model.parameters())
    assert not [key for key, p in model.named_parameters() if float(p.grad.abs().max()) <= 1e-12 * largest]


@pytest.mark.parametrize("size", [(97, 133), (64, 96), (33, 250), (3, 3)], ids=str)
@pytest.mark.parametrize("name", [n for n in SMALLEST if n != "randformer_s12"])
def test_any_size_and_its_pyramid(name, size):
    model = create_model(name, **(SMALL | {"image": 224})).eval()
    sides, grids = size, []
    for kernel, stride, pad in ((7, 4, 2), (3, 2, 1), (3, 2, 1), (3, 2, 1)):
        sides = tuple((s + 2 * pad - kernel) // stride + 1 for s in sides)
        grids.append(sides)
    with torch.no_grad():
        maps = model.pyramid(torch.randn(2, 3, *size))
        assert [m.shape for m in maps] == [(2, d, *g) for d, g in zip(SMALL["dims"], grids, strict=True)]
        assert model(torch.randn(2, 3, *size)).shape == (2, 5)


def test_a_random_former_of_an_odd_size_has_a_pyramid():
    model = create_model("randformer_s12", **(SMALL | {"image": (97, 133)}))
    assert [m.shape[2:] for m in model.pyramid(torch.randn(1, 3, 97, 133))] == [(24, 33), (12, 17), (6, 9), (3, 5)]


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "form", "classes"),
    [
        ("randformer_s12", "metaformer", 7),
        ("identityformer_s12", "metaformer", 7),
        ("caformer_s18", "metaformer", 7),
        ("poolformerv2_s12", "timm_metaformer", 7),
        ("convformer_s18", "timm_metaformer", 7),
    ],
)
def test_files_come_back(tmp_path, name, form, classes):
    config = model_config(name, classes=classes)
    config = FORMATS[form].adapt(config, {})
    model = lively(build(config)).eval()
    path = tmp_path / "weights.pth"
    torch.save(to_foreign(FORMATS[form].entries(config), model.state_dict()), path)
    made = convert(path, model=name)
    assert (made.format, made.model.config.classes) == (form, classes)
    assert made.header.preprocess.crop_pct == 1.0
    x = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        assert torch.equal(made.model(x), model(x))


def test_the_norm_of_the_mlp_head_has_the_eps_of_the_files_code():
    config = model_config("caformer_s18")
    with torch.device("meta"):
        assert build(config).head.norm.eps == 1e-5
        assert build(FORMATS["metaformer"].adapt(config, {})).head.norm.eps == 1e-5
        timms = FORMATS["timm_metaformer"].adapt(config, {})
        assert build(timms).head.norm.eps == 1e-6
    assert FORMATS["timm_metaformer"].adapt(timms, {}) == timms
    assert type(timms).from_json(timms.to_json()) == timms


def test_a_file_without_its_random_matrix_is_refused(tmp_path):
    config = model_config("randformer_s12")
    state = to_foreign(FORMATS["metaformer"].entries(config), build(config).state_dict())
    del state["stages.2.3.token_mixer.random_matrix"]
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(MixwiseError, match=r"stages.2.3.token_mixer.random_matrix is missing"):
        convert(tmp_path / "w.pth", model="randformer_s12")


@pytest.mark.parametrize(
    "name", ["poolformer_s12", "poolformer_m36", "poolformerv2_s24", "convformer_b36", "caformer_m36"]
)
def test_preprocessing_is_that_of_timm(name):
    ours, theirs = FORMATS["timm_metaformer"].preprocess(model_config(name)), timm.get_pretrained_cfg(name)
    assert (ours["mean"], ours["std"], ours["crop_pct"], ours["filter"]) == (
        theirs.mean,
        theirs.std,
        theirs.crop_pct,
        theirs.interpolation,
    )
