"""EAMLP, T2T-ViT with external attention, T2T-ViT: counts, operations, the stem, checkpoints and their traps."""

import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mixwise.errors import MixwiseError, UsageError
from mixwise.mixers import mixer_class
from mixwise.model import build
from mixwise.models import create_model, model_config
from mixwise.t2t import AttentionRead, PerformerRead, TokensToToken
from mixwise.weights import FORMATS, convert, convert_back
from mixwise.weights.foreign import read_checkpoint
from mixwise.weights.mapping import foreign_shapes, to_foreign, to_native
from testing_weights import lively

WITH_TABLE = {
    "eamlp_7_224": 6_146_638,
    "eamlp_10_224": 8_540_110,
    "eamlp_12_224": 10_135_758,
    "eamlp_14_224": 29_877_070,
    "eamlp_19_224": 54_559_054,
    "eamlp_24_224": 89_456_590,
    "t2t_ea_7_224": 4_246_222,
    "t2t_ea_14_224": 21_481_550,
    "t2t_ea_19_224": 39_113_422,
}
"""Parameters of the authors' code, which stores the position table."""
GMACS = {
    "eamlp_7_224": (1.47, 4.29),
    "eamlp_10_224": (2.01, 5.88),
    "eamlp_12_224": (2.37, 6.94),
    "eamlp_14_224": (6.45, 18.89),
    "eamlp_19_224": (11.60, 33.97),
    "eamlp_24_224": (18.82, 55.13),
    "t2t_ea_7_224": (1.06, None),
    "t2t_ea_14_224": (4.70, None),
    "t2t_ea_19_224": (8.40, None),
    "t2t_vit_7_224": (1.15, None),
    "t2t_vit_14_224": (4.78, None),
    "t2t_vit_19_224": (8.48, None),
}
TINY = {"image": 64, "classes": 7, "depth": 2, "dim": 36, "heads": 3}


def meta(name, **changes):
    with torch.device("meta"):
        return build(model_config(name, **changes)).eval()


def macs(module, *inputs) -> int:
    """Multiply–accumulates of one call, counted at the operators on the meta device."""
    with torch.device("meta"), FlopCounterMode(display=False) as counter, torch.no_grad():
        module.to("meta").eval()(*inputs)
    return counter.get_total_flops() // 2


def image(config):
    return torch.empty(1, config.channels, *config.image, device="meta")


def tiny(name, **changes):
    torch.manual_seed(0)
    return lively(create_model(name, **{**TINY, **changes})).double().eval()


def picture(*size, seed=1):
    return torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- counts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WITH_TABLE)
def test_parameters(name):
    model = meta(name)
    table = 197 * model.config.stages[0].dim
    assert sum(p.numel() for p in model.parameters()) + table == WITH_TABLE[name]
    form = FORMATS["eamlp"]
    shapes = foreign_shapes(form.entries(model.config), model.state_dict())
    assert sum(math.prod(shape) for shape in shapes.values()) == WITH_TABLE[name]


def test_parameters_of_eamlp_7_without_the_table():
    assert sum(p.numel() for p in meta("eamlp_7_224").parameters()) == 6_096_206


@pytest.mark.parametrize(
    ("name", "trained", "stored"),
    [
        ("t2t_vit_7_224", 4_255_694, 4_310_222),
        ("t2t_vit_14_224", 21_465_806, 21_545_550),
        ("t2t_vit_19_224", 39_085_070, 39_177_422),
        ("t2t_vit_t_14_224", 21_465_422, 21_541_070),
    ],
)
def test_parameters_of_the_control(name, trained, stored):
    """4.31, 21.55 and 39.18 million with the table and the random features, as in the authors' table."""
    model = meta(name)
    assert sum(p.numel() for p in model.parameters()) == trained
    shapes = foreign_shapes(FORMATS["t2t_vit"].entries(model.config), model.state_dict())
    assert sum(math.prod(shape) for shape in shapes.values()) == stored


@pytest.mark.parametrize("name", GMACS)
def test_macs(name):
    for size, wanted in zip((224, 384), GMACS[name], strict=True):
        if wanted is not None:
            model = meta(name, image=size)
            assert macs(model, image(model.config)) / 1e9 == pytest.approx(wanted, abs=0.0052), size


@pytest.mark.parametrize(("name", "c", "depth", "ratio"), [("eamlp_7_224", 256, 7, 2), ("eamlp_14_224", 384, 14, 3)])
def test_macs_in_closed_form(name, c, depth, ratio):
    model, n = meta(name), 197
    first, second = 3136 * (147 * 64 + 2 * 64 * 128 + 3 * 64**2), 784 * (576 * 64 + 2 * 64 * 128 + 3 * 64**2)
    assert round((first + second) / 1e6, 1) == 170.8
    block = 8 * n * c**2 + 512 * n * c + 2 * ratio * n * c**2
    assert macs(model, image(model.config)) == first + second + 196 * 576 * c + depth * block + 1000 * c


def test_multihead_external_attention_costs_more_than_attention_below_2_c_plus_256_tokens():
    c = 64
    external = mixer_class("multihead_external_attention")(c, heads=1)
    attention = mixer_class("attention")(c, heads=1)

    def cost(mixer, n):
        return macs(mixer, torch.empty(1, n, c, device="meta"), (n,))

    equal = 2 * c + 256
    assert cost(external, equal) == cost(attention, equal)
    assert cost(external, equal - 1) > cost(attention, equal - 1)
    assert cost(external, equal + 1) < cost(attention, equal + 1)


def test_one_multihead_module():
    external = mixer_class("multihead_external_attention")(384, heads=6, bias=True)
    assert sum(p.numel() for p in external.parameters()) == 1_189_888
    assert macs(external, torch.empty(1, 197, 384, device="meta"), (197,)) / 1e6 == pytest.approx(271.1, abs=0.05)


def test_external_attention_is_n_over_s_cheaper_than_the_core_of_attention():
    d, s = 32, 8
    external = mixer_class("external_attention")(d, memory=s, query=False)
    for n in (1024, 65536):
        assert macs(external, torch.empty(1, n, d, device="meta"), (n,)) * n == 2 * n * n * d * s


# --- the stem ---------------------------------------------------------------------------------------------------------


def stem_output(**options):
    torch.manual_seed(0)
    stem = lively(TokensToToken(3, 20, (16, 16), norm_name="layer", **options)).double().eval()
    return stem(picture(48, 80))


@pytest.mark.parametrize(
    "options",
    [
        {"mixer": "performer"},
        {"mixer": "attention"},
        {"width": 32},
        {"norm_eps": 0.1},
        {"options": {"memory": 16}},
        {"options": {"eps": 0.1}},
    ],
)
def test_options_change_the_stem(options):
    assert not torch.allclose(stem_output(), stem_output(**options))


def test_number_of_random_features_changes_the_stem():
    assert not torch.allclose(stem_output(mixer="performer"), stem_output(mixer="performer", options={"features": 5}))


@pytest.mark.parametrize("mixer", ["external_attention", "performer", "attention"])
@pytest.mark.parametrize("dropout", ["dropout", "mlp_dropout"])
def test_dropout_of_the_stem_works_in_training_alone(mixer, dropout):
    torch.manual_seed(0)
    stem = TokensToToken(3, 20, (16, 16), norm_name="layer", mixer=mixer, **{dropout: 0.5}).double()
    x = picture(32, 32)
    assert not torch.allclose(stem(x), stem(x))
    assert torch.equal(stem.eval()(x), stem(x))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"patch": (8, 8)}, "total stride of 16×16, got patch 8×8"),
        ({"mixer": "perfomer"}, "did you mean 'performer'"),
        ({"options": {"features": 3}}, "unknown option 'features' in mixer 'external_attention'"),
        ({"mixer": "attention", "options": {"memory": 3}}, "unknown option 'memory'"),
        ({"width": 0}, "width must be positive"),
        ({"options": {"memory": 0}}, "memory must be positive"),
        ({"options": {"eps": -1.0}}, "eps must be positive"),
        ({"mixer": "performer", "options": {"features": 0}}, "features must be positive"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\)"),
        ({"mlp_dropout": -0.1}, r"mlp_dropout must be in \[0, 1\)"),
    ],
)
def test_wrong_options_of_the_stem_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        TokensToToken(3, 8, options.pop("patch", (16, 16)), norm_name="layer", **options)


@pytest.mark.parametrize("size", [(48, 80), (33, 17), (3, 50), (224, 224)])
def test_any_size(size):
    stem = TokensToToken(3, 8, (16, 16), norm_name="layer", width=4)
    assert stem(torch.randn(1, 3, *size)).shape[2:] == stem.grid(size)
    assert create_model("eamlp_7_224", image=size, dim=64, depth=1, classes=3)(torch.randn(1, 3, *size)).shape == (1, 3)


def test_images_that_are_too_small_are_refused():
    with pytest.raises(UsageError, match="at least 3×3"):
        create_model("eamlp_7_224", image=(2, 9), dim=64)


def test_one_model_takes_every_size():
    model = tiny("eamlp_7_224")
    assert not model.fixed_size
    assert model(picture(48, 112)).shape == (2, 7)


def test_performer_of_the_stem_is_its_formula():
    torch.manual_seed(0)
    read = lively(PerformerRead(10, 6, 0.0, features=4)).double().eval()
    read.w.normal_(generator=torch.Generator().manual_seed(0))
    x = torch.randn(1, 5, 10, dtype=torch.float64)
    k, q, v = (x[0] @ read.kqv.weight.T + read.kqv.bias).split(6, dim=1)

    def features(z):
        return torch.stack([torch.exp(w @ z - z @ z / 2) for w in read.w]) / 2  # sqrt(4)

    for i in range(5):
        kernel = torch.stack([features(q[i]) @ features(k[j]) for j in range(5)])
        y = (kernel[:, None] * v).sum(0) / (kernel.sum() + 1e-8)
        wanted = v[i] + read.out.weight @ y + read.out.bias
        torch.testing.assert_close(read(x)[0, i], wanted, atol=1e-12, rtol=1e-12)


def test_random_features_are_orthogonal_and_as_long_as_their_number_says():
    w = PerformerRead(10, 64, 0.0).w
    torch.testing.assert_close(w @ w.T, 32 * torch.eye(32), atol=1e-4, rtol=0)


def test_attention_of_the_stem_is_scaled_by_the_width_of_its_input():
    read = lively(AttentionRead(10, 6, 0.0)).double().eval()
    x = torch.randn(1, 5, 10, dtype=torch.float64)
    q, k, v = (x[0] @ read.qkv.weight.T).split(6, dim=1)
    y = (q @ k.T / 10**0.5).softmax(1) @ v
    wanted = v + y @ read.out.weight.T + read.out.bias
    torch.testing.assert_close(read(x)[0], wanted, atol=1e-12, rtol=1e-12)


def test_performer_survives_half_precision():
    read = PerformerRead(16, 64, 0.0).bfloat16().eval()
    assert read(torch.randn(2, 9, 16).bfloat16() * 20).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_performer_stays_in_float32_under_autocast(dtype):
    torch.manual_seed(0)
    read = PerformerRead(16, 64, 0.0).eval()
    torch.nn.init.normal_(read.kqv.weight, std=0.25)
    torch.nn.init.eye_(read.out.weight)
    x = (2 * torch.randn(2, 9, 16)).to(dtype).float()
    read.kqv.weight.data = read.kqv.weight.to(dtype).float()
    with torch.autocast("cpu", dtype=dtype):
        found = read(x).float()
    assert found.isfinite().all()
    torch.testing.assert_close(found, read(x), atol=0.05 * float(read(x).detach().abs().max()), rtol=0)


# --- the models -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["eamlp_7_224", "t2t_ea_7_224", "t2t_vit_7_224"])
@pytest.mark.parametrize(
    "change", [{"dim": 48}, {"depth": 1}, {"heads": 2}, {"ratio": 1.5}, {"token_width": 8}, {"norm": "batch"}], ids=str
)
def test_options_change_every_model(name, change):
    x = picture(64, 64)
    assert not torch.allclose(tiny(name)(x), tiny(name, **change)(x))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("eamlp_7_224", {"coef": 2}),
        ("eamlp_7_224", {"memory": 16}),
        ("eamlp_7_224", {"token_memory": 16}),
        ("eamlp_7_224", {"eps": 0.1}),
        ("t2t_ea_7_224", {"token_memory": 16}),
        ("t2t_ea_7_224", {"eps": 0.1}),
        ("t2t_vit_7_224", {"token_mixer": "attention"}),
    ],
    ids=str,
)
def test_options_change_the_model(name, change):
    x = picture(64, 64)
    assert not torch.allclose(tiny(name)(x), tiny(name, **change)(x))


@pytest.mark.parametrize(("name", "changes"), [("t2t_vit_7_224", {"eps": 1.0}), ("t2t_ea_7_224", {"coef": 2})])
def test_what_a_model_has_not_is_refused(name, changes):
    with pytest.raises(UsageError, match="unknown change"):
        create_model(name, **changes)


@pytest.mark.parametrize("name", ["eamlp_7_224", "t2t_ea_7_224", "t2t_vit_7_224"])
def test_the_start_is_that_of_the_code(name):
    """Matrices from a truncated normal of 0.02, biases zero; Mv of the stem from Mk."""
    torch.manual_seed(0)
    for key, tensor in create_model(name, image=32, dim=64, depth=2).named_parameters():
        if tensor.dim() > 1 and tensor.numel() > 500:
            assert float(tensor.detach().std()) == pytest.approx(0.02, rel=0.15), key
        elif key.endswith("bias"):
            assert not tensor.any(), key


def test_biases_in_front_of_the_slots_are_dead_and_the_others_are_not():
    model, x = tiny("eamlp_7_224", eps=None), picture(64, 64)
    before, mixer = model(x), model.stages[0].blocks[0][0].mixer
    with torch.no_grad():
        mixer.key.bias += 1
        mixer.expand.bias += 1
        model.stages[0].blocks[0][0].norm.bias += 1
        torch.testing.assert_close(model(x), before, atol=1e-10, rtol=1e-10)
        mixer.value.bias += 1
        assert not torch.allclose(model(x), before)


@pytest.mark.parametrize("name", ["eamlp_7_224", "t2t_ea_7_224"])
def test_memories_have_storages_of_their_own(name):
    state = create_model(name, **TINY).state_dict()
    places = [tensor.untyped_storage().data_ptr() for tensor in state.values()]
    assert len(places) == len(set(places))
    torch.testing.assert_close(state["stem.module1.read.value.weight"], state["stem.module1.read.key.weight"].T)


@pytest.mark.parametrize("name", ["eamlp_7_224", "t2t_ea_7_224", "t2t_vit_7_224", "t2t_vit_t_14_224"])
@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_reparameterized_is_equal_and_its_norms_have_no_weights(name, norm):
    model, x = tiny(name, norm=norm), picture(48, 80)
    folded = model.reparameterize()
    torch.testing.assert_close(folded(x), model(x), atol=1e-12, rtol=1e-10)
    assert not [key for key in folded.state_dict() if "norm" in key]
    fresh = build(folded.config).double().eval()
    fresh.load_state_dict(folded.state_dict())
    assert torch.equal(fresh(x), folded(x))


# --- checkpoints ------------------------------------------------------------------------------------------------------


def test_keys_of_the_authors():
    model = meta("eamlp_7_224", image=384)
    shapes = foreign_shapes(FORMATS["eamlp"].entries(model.config), model.state_dict())
    t, b = "tokens_to_token.attention1", "blocks.6"
    wanted = {
        "cls_token": (1, 1, 256),
        "pos_embed": (1, 577, 256),
        f"{t}.norm1.weight": (147,),
        f"{t}.attn.q_linear.weight": (64, 147),
        f"{t}.attn.linear_0.weight": (128, 64),
        f"{t}.attn.linear_1.weight": (64, 128),
        f"{t}.attn.linear_1.bias": (64,),
        f"{t}.mlp.fc1.weight": (64, 64),
        "tokens_to_token.attention2.attn.q_linear.weight": (64, 576),
        "tokens_to_token.project.weight": (256, 576),
        f"{b}.attn.trans_dims.weight": (1024, 256),
        f"{b}.attn.linear_0.bias": (64,),
        f"{b}.attn.proj.weight": (256, 1024),
        f"{b}.mlp.fc1.weight": (512, 256),
        "head.weight": (1000, 256),
    }
    assert {key: shapes.get(key) for key in wanted} == wanted
    assert f"{t}.attn.linear_0.bias" not in shapes


def test_in_the_t_models_linear_1_is_the_key():
    model = tiny("eamlp_7_224")
    state = to_foreign(FORMATS["eamlp_t"].entries(model.config), model.state_dict())
    read = model.stem.module1.read
    assert torch.equal(state["tokens_to_token.attention1.attn.linear_1.weight"], read.key.weight)
    assert torch.equal(state["tokens_to_token.attention1.attn.linear_2.weight"], read.value.weight)


@pytest.mark.parametrize(
    ("form", "name"),
    [
        ("eamlp", "eamlp_7_224"),
        ("eamlp_t", "eamlp_7_224"),
        ("eamlp", "t2t_ea_7_224"),
        ("t2t_vit", "t2t_vit_7_224"),
        ("t2t_vit", "t2t_vit_t_14_224"),
    ],
)
def test_both_ways(form, name):
    model = tiny(name)
    entries, state = FORMATS[form].entries(model.config), model.state_dict()
    foreign = to_foreign(entries, state)
    assert [f.name for f in FORMATS.values() if f.matches({k: tuple(v.shape) for k, v in foreign.items()})] == [form]
    back = to_native(entries, foreign, state, lambda key: False)
    assert all(torch.equal(back[key], tensor) for key, tensor in state.items())


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """A file as the authors' training writes it: raw and averaged, `module.` in front, memories on one storage."""
    path = tmp_path_factory.mktemp("files") / "model_best.pth.tar"
    config, states = model_config("eamlp_7_224", image=64, classes=5), {}
    for name, seed in (("state_dict", 1), ("state_dict_ema", 2)):
        state = to_foreign(FORMATS["eamlp"].entries(config), lively(build(config), seed=seed).state_dict())
        for i in (1, 2):
            key = f"tokens_to_token.attention{i}.attn.linear_"
            state[f"{key}1.weight"] = state[f"{key}0.weight"].t()
        states[name] = {f"module.{key}": tensor for key, tensor in state.items()}
    torch.save({"epoch": 309, "arch": "T2t_vit_7", **states}, path)
    return path, states


def test_convert_takes_the_averaged_weights_and_the_size_of_the_file(released, tmp_path):
    path, states = released
    out = tmp_path / "eamlp.safetensors"
    made = convert(path, out)
    assert (made.format, made.header.config.name, made.header.weights) == ("eamlp", "eamlp_7_224", "ema")
    assert (made.header.config.image, made.header.config.classes) == ((64, 64), 5)
    assert (made.header.preprocess.image, made.header.preprocess.crop_pct) == ((64, 64), 0.9)
    averaged = {key.removeprefix("module."): tensor for key, tensor in states["state_dict_ema"].items()}
    key = averaged["tokens_to_token.attention1.attn.linear_0.weight"]
    assert torch.equal(made.model.stem.module1.read.key.weight, key)
    assert torch.equal(made.model.stem.module1.read.value.weight, key.t())
    back = tmp_path / "back.safetensors"
    convert_back(out, back, to="eamlp")
    written = read_checkpoint(back).raw
    assert written.keys() == averaged.keys()
    assert all(torch.equal(written[name], tensor) for name, tensor in averaged.items())
    raw = convert(path, weights="raw").model.stem.module1.read.key.weight
    assert torch.equal(raw, states["state_dict"]["module.tokens_to_token.attention1.attn.linear_0.weight"])


def test_a_trained_position_table_is_refused(released, tmp_path):
    state = dict(released[1]["state_dict"])
    state["module.pos_embed"] = state["module.pos_embed"] + 0.1
    other = tmp_path / "other.pth"
    torch.save(state, other)
    with pytest.raises(MixwiseError, match="not the fixed table of sinusoids for 4×4 tokens"):
        convert(other)


def test_the_files_of_the_t_models_have_no_dropout():
    config = model_config("eamlp_14_224")
    changed = FORMATS["eamlp_t"].adapt(config, {"pos_embed": (1, 197, 384)})
    assert (config.stem_options["dropout"], changed.stem_options["dropout"]) == (0.1, 0.0)
    assert changed.image == (224, 224)
