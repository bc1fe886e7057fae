"""Checkpoints of RepMLPNet and RepMLP-ResNet: both forms, mmpretrain's names, and what does not fit."""

import copy

import pytest
import torch

from mixwise import MixwiseError, UsageError
from mixwise.model import build
from mixwise.models import model_config, register_preset
from mixwise.models.registry import PRESETS
from mixwise.models.repmlp_resnet import repmlp_resnet
from mixwise.models.repmlpnet import repmlpnet
from mixwise.weights import FORMATS, convert, convert_back, convert_state, load_file
from mixwise.weights.mapping import foreign_shapes, to_foreign
from mixwise.weights.repmlp import inject, injected
from testing_weights import lively

NET = {"image": 32, "depths": (1, 2, 2, 1), "dims": (8, 12, 16, 24), "sharesets": (2, 3, 4, 6)}
RESNET = {"image": 64, "window": 2, "depths": (1, 2, 2, 1), "dims": (16, 32, 64, 32), "light": True}
SMALL = {"repmlpnet": "repmlpnet_small", "mmpretrain_repmlpnet": "repmlpnet_small", "repmlp_v1": "repmlp_res50_small"}


@pytest.fixture(autouse=True)
def small_presets(monkeypatch):
    """Presets small enough to write files of, as other code would register its own."""
    monkeypatch.setattr("mixwise.models.registry.PRESETS", dict(PRESETS))
    register_preset("repmlpnet_small", lambda *, classes=10: repmlpnet(name="repmlpnet_small", classes=classes, **NET))
    register_preset(
        "repmlp_res50_small",
        lambda *, groups=4, classes=10: repmlp_resnet(
            name="repmlp_res50_small", groups=groups, classes=classes, **RESNET
        ),
    )


def model_of(form, **changes):
    return lively(build(model_config(SMALL[form], classes=5, **changes))).eval()


def file_state(model, form, *, deploy=False):
    """What the authors' file of a model has, in the training form or as their conversion writes it."""
    if not deploy:
        return to_foreign(FORMATS[form].entries(model.config), model.state_dict())
    config = model.config.model_copy(update={"form": "reparameterized"})
    half = model.reparameterize() if form == "repmlp_v1" else inject(copy.deepcopy(model))
    return to_foreign(FORMATS[form].entries(config), half.state_dict())


def images(model):
    return torch.randn(2, 3, *model.config.image, generator=torch.Generator().manual_seed(1))


def written(path, state, wrap=None):
    torch.save({wrap: state, "epoch": 3} if wrap else state, path)
    return path


@pytest.mark.parametrize(("form", "wrap"), [("repmlpnet", "model"), ("mmpretrain_repmlpnet", "state_dict")])
def test_keys_are_the_authors(form, wrap):
    with torch.device("meta"):
        config = model_config("repmlpnet_t224")
        shapes = foreign_shapes(FORMATS[form].entries(config), build(config).state_dict())
        fused = config.model_copy(update={"form": "reparameterized"})
        converted = foreign_shapes(FORMATS[form].entries(fused), injected(fused).state_dict())
    assert (len(shapes), len(converted)) == (559, 367)
    body, norm = ("", "prebn1") if form == "repmlpnet" else ("backbone.", "norm1")
    block = f"{body}stages.3.1.repmlp_block"
    assert shapes[f"{block}.fc3.weight"] == (6272, 49, 1, 1) == converted[f"{block}.fc3.weight"]
    assert shapes[f"{block}.repconv3.conv.weight"] == (128, 1, 3, 3)
    assert converted[f"{block}.fc3.bias"] == (6272,)
    assert f"{body}stages.0.1.{norm}.running_var" in shapes.keys() & converted.keys()
    assert shapes[f"{body}stages.0.0.ffn_block.ffn_fc1.conv.weight"] == (256, 64, 1, 1)
    stem = "conv_embedding.conv" if form == "repmlpnet" else "backbone.patch_embed.projection"
    assert shapes[f"{stem}.weight"] == (64, 3, 4, 4)
    gate = "gp.fc2" if form == "repmlpnet" else "gp.conv2.conv"
    assert shapes[f"{body}stages.0.0.repmlp_block.{gate}.weight"] == (64, 16, 1, 1)


@pytest.mark.parametrize("form", SMALL)
@pytest.mark.parametrize("deploy", [False, True], ids=["trained", "converted"])
def test_files_of_both_forms_become_models_of_their_form(form, deploy, tmp_path):
    model = model_of(form)
    path = written(tmp_path / "x.pth", file_state(model, form, deploy=deploy), None if deploy else "model")
    found = convert(path, tmp_path / "x.safetensors")
    assert found.format == form
    assert found.model.config.form == ("reparameterized" if deploy else "trainable")
    assert found.model.config.name == SMALL[form]
    assert found.model.config.classes == 5
    assert any("not meant to be trained" in note for note in found.notes) == deploy
    loaded, header = load_file(tmp_path / "x.safetensors")
    assert header.config == found.model.config
    x = images(model)
    with torch.no_grad():
        wanted = model(x)
        assert (found.model(x) - wanted).abs().max() <= 2e-5 * max(1.0, float(wanted.abs().max()))
        assert torch.equal(loaded(x), found.model(x))


@pytest.mark.parametrize("form", SMALL)
def test_a_converted_file_is_folded_as_far_as_algebra_allows(form, tmp_path):
    model = model_of(form)
    found = convert(written(tmp_path / "x.pth", file_state(model, form, deploy=True))).model
    assert found.state_dict().keys() == model.reparameterize().state_dict().keys()


@pytest.mark.parametrize("form", SMALL)
def test_the_wrong_form_is_named(form):
    model, table = model_of(form), FORMATS[form]
    fused = model.config.model_copy(update={"form": "reparameterized"})
    with pytest.raises(
        MixwiseError, match=r"these are re-parameterised \(deploy\) weights, and the config .* trainable"
    ):
        convert_state(table, file_state(model, form, deploy=True), model.config)
    with pytest.raises(MixwiseError, match=r"these are trainable weights, and the config of .*deploy"):
        convert_state(table, file_state(model, form), fused)


@pytest.mark.parametrize("form", SMALL)
@pytest.mark.parametrize("lost", ["repmlp.fc3.bias", "repmlp_block.fc3.bias"])
def test_a_converted_file_without_a_bias_is_refused(form, lost, tmp_path):
    state = file_state(model_of(form), form, deploy=True)
    names = [name for name in state if name.endswith(lost)][-1:]
    for name in names:
        del state[name]
        with pytest.raises(MixwiseError, match=rf"{name.replace('.', '[.]')} is missing"):
            convert(written(tmp_path / "x.pth", state))


@pytest.mark.parametrize("form", ["repmlpnet", "repmlp_v1"])
def test_a_new_head_needs_the_training_form(form, tmp_path):
    model = model_of(form)
    path = written(tmp_path / "x.pth", file_state(model, form, deploy=True))
    with pytest.raises(UsageError, match="take the trainable file"):
        convert(path, new_head=3)
    path = written(tmp_path / "x.pth", file_state(model, form))
    made = convert(path, new_head=3).model
    assert made(images(model)).shape == (2, 3)


@pytest.mark.parametrize("form", ["repmlpnet", "repmlp_v1"])
def test_back_to_the_authors_keys(form, tmp_path):
    model = model_of(form)
    state = file_state(model, form)
    convert(written(tmp_path / "x.pth", state), tmp_path / "x.safetensors")
    convert_back(tmp_path / "x.safetensors", tmp_path / "back.safetensors", to=form)
    found = convert(tmp_path / "back.safetensors").model
    assert all(torch.equal(t, found.state_dict()[k]) for k, t in model.state_dict().items())


def test_groups_are_read_from_the_file(tmp_path):
    model = model_of("repmlp_v1", groups=2)
    found = convert(written(tmp_path / "x.pth", file_state(model, "repmlp_v1"))).model
    assert [s.block and s.block.groups for s in found.config.stages] == [None, 2, 2, None]
    assert torch.allclose(found(images(model)), model(images(model)), atol=1e-6)


def test_released_light_weights_fit_their_preset():
    with torch.device("meta"):
        config = model_config("repmlp_res50_light_224")
        shapes = foreign_shapes(FORMATS["repmlp_v1"].entries(config), build(config).state_dict())
    assert shapes["stage2.1.light_repmlp.fc3.weight"] == (3136, 784, 1, 1)
    assert shapes["stage3.5.light_repmlp.fc1_fc2.fc1.weight"] == (512, 512)
    assert shapes["stage0.0.conv.weight"] == (64, 3, 7, 7)
    assert {"stage2.0.conv2.bn.weight", "stage1.0.shortcut.conv.weight", "linear.bias"} <= shapes.keys()
    assert FORMATS["repmlp_v1"].matches(shapes)


@pytest.mark.parametrize("changes", [{"image": (100, 52), "window": (13, 7)}, {"image": (64, 128), "window": (4, 8)}])
def test_the_table_covers_models_with_one_window_and_odd_sizes(changes):
    config = repmlp_resnet(**{**RESNET, "groups": 2, "where": (2,), **changes})
    for one in (config, config.model_copy(update={"form": "reparameterized"})):
        with torch.device("meta"):
            assert set(build(one).state_dict()) == {e.native for e in FORMATS["repmlp_v1"].entries(one)}
