"""Checkpoints of gMLP: timm's, and those of lucidrains for images and text."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from timm.models.mlp_mixer import GatedMlp, MlpMixer, SpatialGatingBlock
from torch import nn

from mixwise import MixwiseError, UsageError
from mixwise.model import build
from mixwise.models import model_config
from mixwise.weights import FORMATS, convert, convert_back, info
from mixwise.weights.mapping import to_foreign, to_native
from testing_weights import lively


def never(name):
    return False


def written(tmp_path, form, name, **changes):
    """(model, path): a foreign file of a lively model; what it holds beside goes by the name of the preset."""
    torch.manual_seed(0)
    model = lively(build(model_config(name, **changes))).eval()
    path = tmp_path / "foreign.safetensors"
    save_file(to_foreign(FORMATS[form].entries(model.config), model.state_dict()), path)
    return model, path


def changed(path, change):
    state = load_file(path)
    change(state)
    save_file(state, path)


VISION = {"image": (24, 24), "patch": 8, "dim": 12, "depth": 2, "classes": 5, "norm_eps": 1e-5}
TEXT = {"vocabulary": 23, "length": 11, "dim": 12, "depth": 2}


def test_lucidrains_to_timm():
    """With equal eps the three give equal logits."""
    config = model_config("gmlp", **(VISION | {"image": (24, 40)}))
    ours = lively(build(config)).eval()
    state = to_foreign(FORMATS["lucidrains_gmlp"].entries(config), ours.state_dict())
    assert state["layers.1.fn.fn.sgu.weight"].shape == (1, 15, 15)
    assert state["layers.1.fn.fn.sgu.bias"].shape == (1, 15)
    assert state["to_patch_embed.1.weight"].shape == (12, 3 * 8 * 8)
    again = to_native(FORMATS["lucidrains_gmlp"].entries(config), state, ours.state_dict(), never)
    assert all(torch.equal(again[name], tensor) for name, tensor in ours.state_dict().items())
    theirs = MlpMixer(
        num_classes=5,
        img_size=(24, 40),
        patch_size=8,
        num_blocks=2,
        embed_dim=12,
        mlp_ratio=6,
        block_layer=SpatialGatingBlock,
        mlp_layer=GatedMlp,
    ).eval()
    for module in theirs.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-5
    theirs.load_state_dict(to_foreign(FORMATS["timm_gmlp"].entries(config), again))
    images = torch.randn(3, 3, 24, 40)
    with torch.no_grad():
        assert (ours(images) - theirs(images)).abs().max() < 1e-6


def test_timm_has_another_eps_in_the_gate():
    import timm

    theirs = timm.create_model("gmlp_ti16_224")
    config = model_config("gmlp_ti16_224")
    assert theirs.blocks[0].norm.eps == theirs.norm.eps == config.norm_eps == 1e-6
    assert theirs.blocks[0].mlp_channels.gate.norm.eps == config.stages[0].branches[0].options["norm_eps"] == 1e-5


@pytest.mark.parametrize("changes", [{}, {"ratio": 4.0, "tiny_attention": 5}, {"channels": 1}], ids=str)
def test_a_vision_file_of_any_size(changes, tmp_path):
    model, path = written(tmp_path, "lucidrains_gmlp", "gmlp", **(VISION | changes))
    out = tmp_path / "ours.safetensors"
    made = convert(path, out)
    assert made.format == "lucidrains_gmlp"
    assert "preprocessing" in made.notes[0]
    assert made.model.config.model_copy(update={"drop_path": 0.0}) == model.config
    images = torch.randn(2, changes.get("channels", 3), 24, 24)
    with torch.no_grad():
        assert torch.equal(made.model(images), model(images))
    convert_back(out, tmp_path / "back.safetensors", to="lucidrains")
    back, wanted = load_file(tmp_path / "back.safetensors"), load_file(path)
    assert back.keys() == wanted.keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in wanted.items())


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("gmlp_ti16_224", {}),
        ("gmlp_ti16_224", {"ratio": 4.0}),
        ("amlp_ti16_224", {}),
        ("amlp_ti16_224", {"tiny_attention": 128}),
    ],
    ids=str,
)
def test_a_vision_file_of_a_known_size(name, changes, tmp_path):
    model, path = written(tmp_path, "lucidrains_gmlp", name, norm_eps=1e-5, classes=7, **changes)
    assert convert(path).model.config == model.config


def test_other_images_are_named(tmp_path):
    model, path = written(tmp_path, "lucidrains_gmlp", "gmlp", **(VISION | {"image": (24, 40)}))
    with pytest.raises(MixwiseError, match=r"sgu.weight is \(1, 15, 15\)"):
        convert(path)
    assert convert(path, image=(24, 40)).model.config == model.config


def test_gates_without_an_equal_are_refused(tmp_path):
    _, path = written(tmp_path, "lucidrains_gmlp", "gmlp", **VISION)
    name = "layers.0.fn.fn.sgu.weight"
    changed(path, lambda state: state.update({name: state[name].expand(3, -1, -1).contiguous()}))
    with pytest.raises(MixwiseError, match=r"\(3, 9, 9\), expected \(1, tokens, tokens\): a gate with several heads"):
        convert(path)
    _, path = written(tmp_path, "lucidrains_gmlp_text", "gmlp_text", **TEXT)
    name = "layers.0.fn.fn.fn.sgu"
    changed(path, lambda s: s.update({f"{name}.weight": torch.ones(1, 11), f"{name}.circulant_pos_x": torch.ones(1)}))
    with pytest.raises(MixwiseError, match=r"circulant_matrix=True.* lower triangular"):
        convert(path)


@pytest.mark.parametrize(
    ("form", "preset", "sizes", "lost"),
    [
        ("lucidrains_gmlp", "gmlp", VISION, "layers.0.fn.fn.proj_in.0.weight"),
        ("lucidrains_gmlp", "gmlp", VISION, "layers.1.fn.norm.bias"),
        ("lucidrains_gmlp_text", "gmlp_text", TEXT, "layers.1.fn.fn.fn.sgu.bias"),
        ("lucidrains_gmlp_text", "gmlp_text", TEXT, "to_logits.1.weight"),
    ],
)
def test_missing_and_surplus_keys(form, preset, sizes, lost, tmp_path):
    _, path = written(tmp_path, form, preset, **sizes)
    changed(path, lambda state: state.pop(lost))
    with pytest.raises(MixwiseError, match=f"{lost} is missing"):
        convert(path, tmp_path / "ours.safetensors")
    changed(path, lambda state: state.update({lost: torch.zeros(3), "surprise": torch.zeros(1)}))
    with pytest.raises(MixwiseError, match=r"surprise is not expected|expected a matrix"):
        convert(path, tmp_path / "ours.safetensors")
    assert not (tmp_path / "ours.safetensors").exists()


@pytest.mark.parametrize("name", ["gmlp_text", "gmlp_text_causal"])
@pytest.mark.parametrize("changes", [{}, {"ratio": 6.0, "tiny_attention": 5}], ids=str)
def test_a_text_file_of_any_size(name, changes, tmp_path):
    model, path = written(tmp_path, "lucidrains_gmlp_text", name, **TEXT, **changes)
    out = tmp_path / "ours.safetensors"
    made = convert(path, out, model=None if name == "gmlp_text" else name)
    assert made.model.config == model.config
    assert "does not say whether the model is causal" in made.notes[0]
    header = info(out)
    assert (header.task, header.classes, header.preprocess) == ("text", (), None)
    ids = torch.randint(23, (2, 11))
    with torch.no_grad():
        assert torch.equal(made.model(ids), model(ids))
    made = convert_back(out, tmp_path / "back.safetensors", to="lucidrains")
    assert set(made.tensors) == set(load_file(path))


def test_what_belongs_to_images_is_refused_for_text(tmp_path):
    _, path = written(tmp_path, "lucidrains_gmlp_text", "gmlp_text", **TEXT)
    with pytest.raises(UsageError, match="image size is for models of images"):
        convert(path, image=32)
    with pytest.raises(UsageError, match="class names are for image classifiers"):
        convert(path, classes=("a", "b"))
    with pytest.raises(UsageError, match="new_head is for image classifiers"):
        convert(path, new_head=3)
    convert(path, tmp_path / "ours.safetensors")
    with pytest.raises(MixwiseError, match="cannot be written as timm"):
        convert_back(tmp_path / "ours.safetensors", tmp_path / "timm.safetensors", to="timm")


def test_damaged_text_weights_are_noticed(tmp_path):
    _, path = written(tmp_path, "lucidrains_gmlp_text", "gmlp_text", **TEXT)
    changed(path, lambda state: state["to_logits.1.bias"].fill_(float("nan")))
    with pytest.raises(MixwiseError, match="infinite or undefined"):
        convert(path)
