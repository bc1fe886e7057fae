"""EANet: counts, operations, dilations, re-parameterisation, checkpoints, and what is refused."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import mixwise
from mixwise.errors import UsageError
from mixwise.model import build
from mixwise.models import create_model, model_config
from mixwise.models.eanet import ExternalAttentionBlock
from mixwise.weights import FORMATS, Header, convert, convert_back, save
from mixwise.weights.foreign import read_checkpoint
from mixwise.weights.mapping import foreign_shapes, to_foreign, to_native
from testing_weights import lively

COUNTS = {"r50": 34_846_933, "r101": 53_839_061, "r152": 69_482_709}
SMALL = {"blocks": (1, 2, 2, 3), "width": 4, "dim": 24, "hidden": 10, "classes": 5, "memory": 7}


def meta(name, **changes):
    with torch.device("meta"):
        return build(model_config(name, **changes)).eval()


def macs(module, *shape) -> int:
    """Multiply–accumulates of one call, counted at the operators on the meta device."""
    with torch.device("meta"), FlopCounterMode(display=False) as counter, torch.no_grad():
        module.to("meta").eval()(torch.empty(shape))
    return counter.get_total_flops() // 2


def small(name="eanet_r50_os8", **changes):
    torch.manual_seed(0)
    return lively(create_model(name, **{**SMALL, **changes})).double().eval()


def picture(*size):
    return torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


# --- counts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("net", COUNTS)
@pytest.mark.parametrize("stride", [8, 16])
def test_parameters(net, stride):
    assert sum(p.numel() for p in meta(f"eanet_{net}_os{stride}").parameters()) == COUNTS[net]


@pytest.mark.parametrize(("net", "wanted"), [("r50", 157.2), ("r101", 237.3), ("r152", 303.2)])
def test_macs(net, wanted):
    assert macs(meta(f"eanet_{net}_os8"), 1, 3, 513, 513) / 1e9 == pytest.approx(wanted, abs=0.05)


def test_the_parts_of_the_head():
    model = meta("eanet_r101_os8")
    parts = [(model.reduce, 2048, 39.87), (model.block, 512, 2.49), (model.refine, 512, 4.98), (model.head, 256, 0.02)]
    for part, channels, wanted in parts:
        assert macs(part, 1, channels, 65, 65) / 1e9 == pytest.approx(wanted, abs=0.005)
    assert round(sum(p.numel() for part, *_ in parts for p in part.parameters()) / 1e6, 2) == 11.22


def test_the_block():
    block = ExternalAttentionBlock(512)
    assert sum(p.numel() for p in block.parameters()) == 591_360
    assert macs(block, 1, 512, 128, 128) / 1e9 == pytest.approx(9.664, abs=0.0005)
    assert macs(ExternalAttentionBlock(512, memory=32), 1, 512, 128, 128) / 1e9 == pytest.approx(9.127, abs=0.0005)


# --- the network ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stride", "third", "fourth", "strides"),
    [(8, [1, 2, 2, 2, 2, 2], [2, 8, 16], [1, 2, 1, 1]), (16, [1] * 6, [1, 4, 8], [1, 2, 2, 1])],
)
def test_dilations_and_strides(stride, third, fourth, strides):
    model = meta(f"eanet_r50_os{stride}")
    found = [[block.conv2.conv.dilation[0] for block in stage] for stage in model.stages]
    assert found == [[1] * 3, [1] * 4, third, fourth]
    assert [stage[0].conv2.conv.stride[0] for stage in model.stages] == strides
    assert model.features(torch.empty(1, 3, 65, 81, device="meta")).shape[2:] == (-(-65 // stride), -(-81 // stride))


@pytest.mark.parametrize("size", [(65, 49), (64, 96), (17, 200)])
def test_any_size(size):
    assert small()(picture(*size)).shape == (2, 5, *size)


def test_a_wrong_number_of_channels_is_refused():
    with pytest.raises(UsageError, match=r"takes images \(b, 3, h, w\), got a tensor of shape \(2, 1, 33, 33\)"):
        small()(torch.zeros(2, 1, 33, 33))
    with pytest.raises(UsageError, match="output_stride"):
        create_model("eanet_r50_os8", output_stride=4)


@pytest.mark.parametrize(
    "change",
    [
        {"output_stride": 16},
        {"blocks": (1, 1, 2, 3)},
        {"width": 8},
        {"dim": 32},
        {"memory": 9},
        {"eps": 0.1},
        {"hidden": 12},
    ],
    ids=str,
)
def test_options_change_the_result(change):
    assert not torch.allclose(small()(picture(49, 65)), small(**change)(picture(49, 65)))


def test_dropout_drops_channels_in_training():
    x = picture(33, 33)
    model = small(dropout=0.5).train()
    assert not torch.allclose(model(x), model(x))
    model = small(dropout=0.0).train()
    torch.testing.assert_close(model(x), model(x))


def test_without_classes_the_map_in_front_of_the_last_convolution():
    assert small(classes=0)(picture(33, 49)).shape == (2, 10, 5, 7)


def test_whole_images_are_not_their_crops():
    """The attention depends on all tokens: a cut-out does not get the answers of the whole."""
    x = picture(65, 97)
    assert not torch.allclose(small()(x)[:, :, :33, :33], small()(x[:, :, :33, :33]), atol=1e-3)


def test_memories_have_storages_of_their_own_and_start_equal():
    model = create_model("eanet_r50_os8", **SMALL)
    places = [tensor.untyped_storage().data_ptr() for tensor in model.state_dict().values()]
    assert len(places) == len(set(places))
    attention = model.block.attention
    assert torch.equal(attention.key.weight, attention.value.weight.T)


def test_query_bias_is_dead_but_counted():
    model, x = small(), picture(33, 33)
    before = model(x)
    with torch.no_grad():
        model.block.query.bias += 1
        torch.testing.assert_close(model(x), before, atol=1e-7, rtol=1e-7)


# --- re-parameterised -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["eanet_r50_os8", "eanet_r50_os16"])
def test_reparameterized_is_equal_and_has_no_norm_left(name):
    model, x = small(name), picture(49, 65)
    before, state = model(x).detach(), copy.deepcopy(model.state_dict())
    folded = model.train().reparameterize()
    assert not folded.training
    assert all(torch.equal(t, state[k]) for k, t in model.state_dict().items())
    torch.testing.assert_close(folded(x), before, atol=1e-12, rtol=1e-10)
    assert not [m for m in folded.modules() if isinstance(m, nn.BatchNorm2d)]
    assert folded.config.form == "reparameterized"
    torch.testing.assert_close(folded.reparameterize()(x), folded(x), atol=0, rtol=0)
    single = copy.deepcopy(folded).float()(x.float())
    torch.testing.assert_close(single, before.float(), atol=2e-5 * float(before.abs().max()), rtol=0)


def test_reparameterized_loads_in_its_form_alone():
    folded = small().reparameterize()
    build(folded.config).load_state_dict(folded.state_dict())
    with pytest.raises(RuntimeError, match="Unexpected key"):
        build(small().config).load_state_dict(folded.state_dict())


def test_reparameterized_costs_less():
    model = meta("eanet_r50_os8")
    folded = meta("eanet_r50_os8").reparameterize()
    saved = macs(model.block, 1, 512, 65, 65) - macs(folded.block, 1, 512, 65, 65)
    assert saved == 2 * 65 * 65 * 512**2
    assert [type(m) for m in folded.block.attention.children()] == [nn.Identity, nn.Linear, nn.Linear, nn.Identity]


def test_half_precision_is_folded():
    model = small().bfloat16()
    folded = model.reparameterize()
    assert {p.dtype for p in folded.parameters()} == {torch.bfloat16}
    x = picture(33, 33).bfloat16()
    gap = (folded(x) - model.eval()(x)).float().norm() / model(x).float().norm()
    assert gap < 0.1


# --- checkpoints ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("net", "keys"), [("r50", 354), ("r101", 660), ("r152", 966)])
def test_keys_of_the_authors(net, keys):
    model = meta(f"eanet_{net}_os8")
    shapes = foreign_shapes(FORMATS["eanet"].entries(model.config), model.state_dict())
    assert len(shapes) == keys
    wanted = {
        "extractor.0.6.weight": (128, 64, 3, 3),
        "extractor.1.running_mean": (128,),
        "extractor.7.2.conv3.weight": (2048, 512, 1, 1),
        "fc0.conv.weight": (512, 2048, 3, 3),
        "linu.conv1.bias": (512,),
        "linu.linear_0.weight": (64, 512, 1),
        "linu.linear_1.weight": (512, 64, 1),
        "linu.conv2.0.weight": (512, 512, 1, 1),
        "fc1.0.conv.weight": (256, 512, 3, 3),
        "fc2.weight": (21, 256, 1, 1),
    }
    assert {key: shapes.get(key) for key in wanted} == wanted


def test_both_ways():
    model = small()
    entries, state = FORMATS["eanet"].entries(model.config), model.state_dict()
    back = to_native(entries, to_foreign(entries, state), state, lambda key: False)
    assert all(torch.equal(back[key], tensor) for key, tensor in state.items())


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """A file as the authors' training on a CPU would write it: weights under `net`, memories on one storage."""
    path = tmp_path_factory.mktemp("files") / "latest.pth"
    config = model_config("eanet_r50_os8", classes=6)
    state = to_foreign(FORMATS["eanet"].entries(config), build(config).state_dict())
    state["linu.linear_0.weight"] = state["linu.linear_0.weight"] * 3
    state["linu.linear_1.weight"] = state["linu.linear_0.weight"].permute(1, 0, 2)
    torch.save({"net": state, "step": 24000}, path)
    return path, state


def test_convert(released, tmp_path):
    path, state = released
    made = convert(path, tmp_path / "a.safetensors", model="eanet_r50_os8", image=33)
    assert (made.format, made.header.config.name, made.header.task) == ("eanet", "eanet_r50_os8", "segment")
    assert made.header.config.classes == len(made.header.classes) == 6
    key = state["linu.linear_0.weight"][:, :, 0]
    assert torch.equal(made.model.block.attention.key.weight, key)
    assert torch.equal(made.model.block.attention.value.weight, key.T)
    convert_back(tmp_path / "a.safetensors", tmp_path / "b.safetensors", to="eanet")
    written = read_checkpoint(tmp_path / "b.safetensors").raw
    assert written.keys() == state.keys()
    assert all(torch.equal(written[name], tensor) for name, tensor in state.items())


def test_the_output_stride_is_asked_for_by_name(released):
    made = convert(released[0], model="eanet_r50_os16", image=33)
    assert made.header.config.output_stride == 16


def test_verbs_for_classifiers_refuse_it(tmp_path):
    model = create_model("eanet_r50_os8", **SMALL)
    path = tmp_path / "segment.safetensors"
    save(path, model.state_dict(), Header(task="segment", config=model.config, classes=tuple("abcde")))
    with pytest.raises(UsageError, match="a model to segment images"):
        mixwise.Predictor(path)
    with pytest.raises(UsageError, match="a model to segment images"):
        mixwise.train("digits", model="eanet_r50_os8", out=tmp_path / "run", changes={"changes.width": 4})
