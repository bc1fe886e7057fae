"""ViT and DeiT: counts and MACs of the sheet, options, where paper, code and timm part, and checkpoints."""

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from mixwise import MixwiseError, UsageError, create_model
from mixwise.layers import ChannelMLP
from mixwise.mixers import MIXERS
from mixwise.model import build
from mixwise.models import model_config
from mixwise.models.vit import VARIANTS
from mixwise.weights import convert
from mixwise.weights.google_vit import google_vit, released_names
from mixwise.weights.mapping import to_foreign
from testing_weights import lively

SHEET = {
    "vit_tiny_patch16_224": (5_717_416, 1.254),
    "vit_small_patch16_224": (22_050_664, 4.599),
    "vit_small_patch32_224": (22_878_952, 1.143),
    "vit_base_patch16_224": (86_567_656, 17.564),
    "vit_base_patch16_384": (86_859_496, 55.484),
    "vit_base_patch32_224": (88_224_232, 4.409),
    "vit_base_patch8_224": (86_576_872, 78.148),
    "vit_large_patch16_224": (304_326_632, 61.555),
    "vit_large_patch32_224": (306_535_400, 15.38),
    "vit_huge_patch14_224": (632_045_800, 167.29),
    "deit_tiny_patch16_224": (5_717_416, 1.254),
    "deit_small_patch16_224": (22_050_664, 4.599),
    "deit_base_patch16_224": (86_567_656, 17.564),
    "deit_base_patch16_384": (86_859_496, 55.484),
    "deit_tiny_distilled_patch16_224": (5_910_800, 1.261),
    "deit_small_distilled_patch16_224": (22_436_432, 4.624),
    "deit_base_distilled_patch16_224": (87_338_192, 17.657),
    "deit_base_distilled_patch16_384": (87_630_032, 55.591),
}
SMALL = {"image": (16, 24), "patch": 8, "dim": 24, "depth": 2, "heads": 3, "classes": 5}


def small(name: str = "vit_tiny_patch16_224", **changes) -> nn.Module:
    return create_model(name, **(SMALL | changes))


def output(model: nn.Module) -> torch.Tensor:
    x = torch.randn(2, *(model.config.channels, *model.config.image), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return lively(model).eval()(x)


@pytest.mark.parametrize("name", sorted(SHEET))
def test_parameters_and_macs(name):
    config = model_config(name)
    with torch.device("meta"):
        model, images = build(config).eval(), torch.empty(1, 3, *config.image)
    assert sum(p.numel() for p in model.parameters()) == SHEET[name][0]
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(images)
    grid = config.image[0] // config.patch[0] * config.image[1] // config.patch[1]
    n, dim, depth = grid + config.prefix, config.stages[0].dim, config.stages[0].depth
    heads = 2 if config.distill_token else 1
    attention = 4 * n * dim**2 + 2 * n**2 * dim  # with its two products of tokens and tokens
    macs = grid * 3 * config.patch[0] ** 2 * dim + depth * (attention + 8 * n * dim**2) + heads * dim * 1000
    assert counter.get_total_flops() == 2 * macs
    assert macs / 1e9 == pytest.approx(SHEET[name][1], abs=6e-3 if SHEET[name][1] > 100 else 3e-3)


def test_every_preset_has_the_heads_and_the_start_of_its_name():
    for name, values in VARIANTS.items():
        config = model_config(name)
        assert config.stages[0].branches[0].options["heads"] == {1280: 16}.get(values["dim"], values["dim"] // 64)
        assert config.class_token_std == (0.0 if name.startswith("vit") else 0.02)


@pytest.mark.parametrize(
    "changes",
    [
        {"gelu": "tanh"},
        {"pool": "mean"},
        {"pool": "mean", "pool_first": False},
        {"pool": "mean", "class_token": False},
        {"class_position": False},
        {"pre_logits": 7},
        {"layer_scale": 0.5},
        {"distilled": True},
        {"qkv_bias": False},
        {"heads": 2},
        {"ratio": 2.0},
    ],
    ids=str,
)
def test_options_change_the_output(changes):
    assert not torch.equal(output(small()), output(small(**changes)))


def test_norm_before_and_after_the_mean_differ():
    behind, front = (output(small(pool="mean", pool_first=first)) for first in (True, False))
    assert not torch.allclose(behind, front)
    assert torch.equal(behind, output(small(pool="mean")))


@pytest.mark.parametrize("option", ["dropout", "attention_dropout", "drop_path"])
def test_dropout_works_in_training_alone(option):
    model = lively(small(**{option: 0.5}))
    x = torch.randn(8, 3, 16, 24)
    assert not torch.equal(model.train()(x), model(x))
    assert torch.equal(model.eval()(x), lively(small()).eval()(x))


def test_stochastic_depth_is_linear_or_uniform():
    for schedule, wanted in (("linear", [0, 0.1, 0.2]), ("constant", [0.2] * 3)):
        model = small(depth=3, drop_path=0.2, drop_path_schedule=schedule)
        assert [block[0].drop_path.rate for block in model.stages[0].blocks] == pytest.approx(wanted)
    assert model_config("deit3_small_patch16_224").drop_path_schedule == "constant"


def test_contradictions_are_refused():
    with pytest.raises(UsageError, match="the order changes nothing"):
        small(pool_first=True)
    with pytest.raises(UsageError, match="two linear heads"):
        small(distilled=True, pre_logits=8)
    with pytest.raises(UsageError, match="pool='token' reads the class token"):
        small(class_token=False)
    with pytest.raises(UsageError, match="heads must divide the width 24"):
        small(heads=5)
    with pytest.raises(UsageError, match="unknown GELU form"):
        small(gelu="exact")
    with pytest.raises(UsageError, match="did you mean 'deit'"):
        small(init="deit2")
    with pytest.raises(UsageError, match="has weights for 16×24 pixels"):
        small()(torch.randn(1, 3, 24, 24))


def test_eps():
    assert {m.eps for m in small().modules() if isinstance(m, nn.LayerNorm)} == {1e-6}


@pytest.mark.parametrize(
    ("init", "matrix", "class_token", "head"),
    [
        ("jax", "xavier", 0.0, 0.0),
        ("timm", 0.02, 1e-6, 0.02),
        ("deit", 0.02, 0.02, 0.02),
        ("moco", "xavier", 1e-6, None),
    ],
)
def test_start(init, matrix, class_token, head):
    """Query, key and value are drawn one by one: as one matrix they would come out √2 smaller than in Flax."""
    torch.manual_seed(0)
    dim = 96
    model = small(init=init, dim=dim, classes=96)
    attention, mlp = model.stages[0].blocks[0][0].mixer, model.stages[0].blocks[0][1].mixer
    wanted = (2 / (dim + dim)) ** 0.5 if matrix == "xavier" else matrix
    for part in attention.qkv.weight.detach().chunk(3):
        assert float(part.std()) == pytest.approx(wanted, rel=0.05)
    assert float(mlp.fc1.weight.detach().std()) == pytest.approx(
        (2 / 480) ** 0.5 if matrix == "xavier" else 0.02, rel=0.05
    )
    assert float(mlp.fc1.bias.detach().std()) == pytest.approx(1e-6 if init == "jax" else 0.0, rel=0.3)
    assert not attention.qkv.bias.any()
    assert float(model.prefix_tokens.detach().std()) == pytest.approx(class_token, rel=0.3)
    assert float(model.position.weight.detach().std()) == pytest.approx(0.02, rel=0.2)
    assert float(model.head.weight.detach().std()) == pytest.approx(wanted if head is None else head, rel=0.05)
    assert bool(model.stem.proj.bias.any()) == (init != "jax")


def test_distilled_gives_the_mean_of_two_logits():
    model = lively(small("deit_tiny_distilled_patch16_224")).eval()
    x = torch.randn(2, 3, 16, 24)
    pooled = model.pool(model.features(x))
    label, teacher = model.head.both(pooled)
    assert pooled.shape == (2, 2, 24)
    assert not torch.allclose(label, teacher)
    assert torch.equal(model(x), (label + teacher) / 2)
    assert model.position.weight.shape == (1, 2 + 6, 24)


def test_the_bias_of_the_keys_has_no_effect():
    model = lively(small()).double().eval()
    x = torch.randn(2, 3, 16, 24, dtype=torch.float64)
    before = model(x)
    with torch.no_grad():
        model.stages[0].blocks[0][0].mixer.qkv.bias[24:48] += 1
    assert torch.allclose(model(x), before, atol=1e-10)


# --- checkpoints ------------------------------------------------------------------------------------------------------


def images(side: int = 32) -> torch.Tensor:
    return torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(3))


def equal(ours: nn.Module, theirs: nn.Module, x: torch.Tensor) -> bool:
    with torch.no_grad():
        return float((ours.eval()(x) - theirs.eval()(x)).abs().max()) < 1e-5


@pytest.fixture(scope="module")
def flax(tmp_path_factory):
    """ViT-Ti with random weights in every spelling of Google's files, and what it should give."""
    folder = tmp_path_factory.mktemp("flax")
    files = {}
    for position in (True, False):
        config = model_config("vit_tiny_patch16_224", image=32, gelu="tanh", class_position=position, classes=7)
        model = lively(build(config))
        state = {k: v.detach().numpy() for k, v in to_foreign(google_vit(config), model.state_dict()).items()}
        back = {"LayerNorm_2": "LayerNorm_1", "MlpBlock_3": "MlpBlock_0"} | {
            "MultiHeadDotProductAttention_1": "MultiHeadDotProductAttention_0"
        }
        renumbered = {"/".join(back.get(p, p) for p in name.split("/")): v for name, v in state.items()}
        stack = {n: v for n, v in renumbered.items() if "encoderblock_" not in n}
        for rest in {n.partition("encoderblock_0/")[2] for n in renumbered if "encoderblock_0/" in n}:
            layers = [renumbered[f"Transformer/encoderblock_{i}/{rest}"] for i in range(12)]
            stack[f"Transformer/encoderblock/{rest}"] = np.stack(layers)
        stack["pos_embedding"] = stack.pop("Transformer/posembed_input/pos_embedding")
        for kind, arrays in (("released", state), ("renumbered", renumbered), ("stacked", stack)):
            files[kind, position] = folder / f"{kind}-{position}.npz"
            np.savez(files[kind, position], **arrays)
        files["model", position] = model
    return files


@pytest.mark.parametrize("position", [True, False])
@pytest.mark.parametrize("kind", ["released", "renumbered", "stacked"])
def test_google_files_in_every_spelling(flax, kind, position):
    done = convert(flax[kind, position], model="vit_tiny_patch16_224", image=32)
    assert done.format == "google_vit"
    assert done.header.config.prefix_positions is position
    assert done.header.preprocess.mean == (0.5, 0.5, 0.5)
    assert done.header.preprocess.fit == "squash"
    assert equal(done.model, flax["model", position], images())


@pytest.mark.parametrize(("kind", "position"), [("released", True), ("stacked", False)])
def test_google_files_as_timm_reads_them(flax, kind, position):
    """An independent reading of the head axes; timm takes its positions from where big_vision has them."""
    theirs = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, num_classes=7, act_layer="gelu_tanh", no_embed_class=not position
    )
    theirs.load_pretrained(str(flax[kind, position]))
    assert equal(convert(flax[kind, position], model="vit_tiny_patch16_224", image=32).model, theirs, images())


def test_names_that_are_released_stay():
    config = model_config("vit_tiny_patch16_224", image=32, depth=2)
    with torch.device("meta"):
        state = to_foreign(google_vit(config), build(config).state_dict())
    assert list(released_names(state)) == list(state)


def test_google_models_without_class_token_or_with_pre_logits(tmp_path):
    for changes in ({"class_token": False, "pool": "mean", "pool_first": False}, {"pre_logits": 20}):
        config = model_config("vit_tiny_patch16_224", image=32, gelu="tanh", **changes)
        model = lively(build(config))
        state = to_foreign(google_vit(config), model.state_dict())
        np.savez(tmp_path / "vit.npz", **{k: v.detach().numpy() for k, v in state.items()})
        assert equal(convert(tmp_path / "vit.npz", model="vit_tiny_patch16_224", image=32).model, model, images())


@pytest.fixture(scope="module")
def deit_file(tmp_path_factory):
    """A file as facebookresearch/deit has them, whose keys are timm's."""
    theirs = lively(timm.create_model("deit_tiny_patch16_224"))
    path = tmp_path_factory.mktemp("deit") / "deit_tiny_patch16_224-a1311bcf.pth"
    torch.save({"model": theirs.state_dict()}, path)
    return path, theirs


def test_mean_and_deviation_follow_the_weights(deit_file, tmp_path):
    path, theirs = deit_file
    done = convert(path)
    assert (done.format, done.header.config.name) == ("timm_vit", "deit_tiny_patch16_224")
    assert done.header.preprocess.mean == (0.485, 0.456, 0.406)
    assert done.header.preprocess.crop_pct == 0.9
    assert equal(done.model, theirs, images(224))
    unnamed = tmp_path / "model.safetensors"
    save_file(theirs.state_dict(), unnamed)
    guessed = convert(unnamed)
    assert guessed.header.config.name == "vit_tiny_patch16_224"
    assert guessed.header.preprocess.mean == (0.5, 0.5, 0.5)
    assert any("name the model" in note for note in guessed.notes)
    assert not any("name the model" in note for note in convert(unnamed, model="deit_tiny_patch16_224").notes)


def test_deit3_of_its_authors(tmp_path):
    theirs = lively(timm.create_model("deit3_small_patch16_224", img_size=32, num_classes=6))
    renamed = {
        k.replace("ls1.gamma", "gamma_1").replace("ls2.gamma", "gamma_2"): v for k, v in theirs.state_dict().items()
    }
    torch.save({"model": renamed}, tmp_path / "deit_3_small_224_1k.pth")
    done = convert(tmp_path / "deit_3_small_224_1k.pth", model="deit3_small_patch16_224", image=32)
    assert done.format == "deit3"
    assert done.header.preprocess.mean == (0.485, 0.456, 0.406)
    assert equal(done.model, theirs, images())


@pytest.mark.parametrize("changes", [{"global_pool": "avg"}, {"global_pool": "avg", "class_token": False}])
def test_timm_models_that_pool(changes, tmp_path):
    theirs = lively(timm.create_model("vit_tiny_patch16_224", img_size=32, **changes))
    save_file(theirs.state_dict(), tmp_path / "pooled.safetensors")
    done = convert(tmp_path / "pooled.safetensors", model="vit_tiny_patch16_224", image=32)
    assert equal(done.model, theirs, images())


def test_headless_weights_stay_headless(tmp_path):
    """As timm's vit_large_patch32_224 and vit_huge_patch14_224, which have no classes by default."""
    theirs = lively(timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=0))
    save_file(theirs.state_dict(), tmp_path / "headless.safetensors")
    done = convert(tmp_path / "headless.safetensors", model="vit_tiny_patch16_224", image=32)
    assert done.header.config.classes == 0
    assert equal(done.model, theirs, images())


def test_positions_of_another_grid_are_refused(tmp_path):
    theirs = timm.create_model("deit_tiny_distilled_patch16_224", img_size=48)
    save_file(theirs.state_dict(), tmp_path / "deit.safetensors")
    with pytest.raises(MixwiseError, match=r"pos_embed is \(1, 11, 192\), not \(1, 6, 192\)"):
        convert(tmp_path / "deit.safetensors", model="deit_tiny_distilled_patch16_224", image=32)


def test_branches():
    attention, mlp = small().stages[0].blocks[0]
    assert isinstance(attention.mixer, MIXERS["attention"])
    assert isinstance(mlp.mixer, ChannelMLP)
