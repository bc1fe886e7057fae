"""RepMLPNet: sizes and costs of every preset, options, and what its sheet says goes wrong elsewhere."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mixwise import UsageError, create_model
from mixwise.model import build
from mixwise.models import model_config
from mixwise.weights.repmlp import injected
from testing_weights import lively

PRESETS = {
    "repmlpnet_t224": (38_293_608, 38_331_720, 2.808, 2.799),
    "repmlpnet_t256": (58_687_848, 58_739_400, 4.258, 4.246),
    "repmlpnet_b224": (68_242_712, 68_332_664, 6.676, 6.657),
    "repmlpnet_b256": (96_447_512, 96_568_184, 9.640, 9.616),
    "repmlpnet_d256": (86_887_648, 86_985_280, 8.636, 8.611),
    "repmlpnet_l256": (117_641_560, 117_820_600, 11.610, 11.579),
}
SMALL = {
    "image": (32, 48),
    "classes": 5,
    "depths": (1, 2),
    "dims": (8, 12),
    "sharesets": (2, 6),
}


def small(**changes):
    torch.manual_seed(0)
    return create_model("repmlpnet_t224", **{**SMALL, **changes})


def images(*size, seed=1):
    return torch.randn(2, 3, *(size or (32, 48)), generator=torch.Generator().manual_seed(seed))


def cost(model):
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        model(torch.empty(1, 3, *model.config.image))
    return sum(p.numel() for p in model.parameters()), counter.get_total_flops() // 2


def closed_form(config, *, local):
    """Multiply-accumulates of convolutions and matrices for one picture."""
    rows, columns = (side // patch for side, patch in zip(config.image, config.patch, strict=True))
    before = config.channels * config.patch[0] * config.patch[1]
    total = 0
    for stage in config.stages:
        n, c, options = rows * columns, stage.dim, stage.branches[0].options
        total += n * before * c
        mixing = n * c * (n + local * sum(k * k for k in options["kernels"])) + 2 * c * (c // options["reduce"])
        total += stage.depth * (mixing + 2 * n * c * round(stage.branches[1].options["ratio"] * c))
        rows, columns, before = rows // 2, columns // 2, 4 * c
    return total + c * config.classes


@pytest.mark.parametrize("name", PRESETS)
def test_parameters_and_macs(name):
    config = model_config(name)
    trained, folded, macs, fewer = PRESETS[name]
    with torch.device("meta"):
        models = [build(config).eval(), injected(config.model_copy(update={"form": "reparameterized"})).eval()]
    for model, count, published, local in zip(models, (trained, folded), (macs, fewer), (1, 0), strict=True):
        parameters, measured = cost(model)
        assert parameters == count
        assert measured == closed_form(config, local=local)
        assert measured / 1e9 == pytest.approx(published, abs=0.001)


@pytest.mark.parametrize(
    "changes",
    [
        {"kernels": (1,)},
        {"kernels": (3, 5)},
        {"sharesets": (2, 3)},
        {"reduce": 2},
        {"ratio": 2.0},
        {"patch": 8},
        {"dims": (8, 18)},
        {"partitions": ((4, 6), (2, 3))},
        {"partitions": ((4, 6), (2, 3)), "order": "official"},
    ],
)
def test_options_change_the_result(changes):
    base = {"partitions": changes["partitions"]} if "order" in changes else {}
    plain, changed = lively(small(**base)).eval(), lively(small(**changes)).eval()
    assert not torch.allclose(plain(images()), changed(images()))


def test_every_batch_norm_is_there_and_the_convolutions_have_no_bias():
    names = dict(small().named_parameters())
    assert "stem.proj.bias" not in names
    assert "stages.1.downsample.proj.bias" not in names
    assert "stages.0.blocks.0.1.mixer.fc1.bias" not in names
    for norm in ("stem.norm", "stages.1.downsample.norm", "stages.0.blocks.0.0.norm", "stages.0.blocks.0.1.norm"):
        assert {f"{norm}.weight", f"{norm}.bias"} <= names.keys()
    assert {"stages.0.blocks.0.1.mixer.norm2.bias", "norm.bias"} <= names.keys()


@pytest.mark.parametrize("partitions", [None, ((4, 6), (2, 3))])
def test_reparameterized_with_lively_statistics_is_equal_and_so_is_a_second_time(partitions):
    model = lively(small(partitions=partitions)).train()
    x = images()
    with torch.no_grad():
        fused = model.reparameterize()
        assert torch.allclose(fused(x), model.eval()(x), atol=2e-5)
        assert torch.equal(fused.reparameterize()(x), fused(x))
    fresh = build(fused.config)
    fresh.load_state_dict(fused.state_dict())
    assert torch.equal(fresh.eval()(x), fused(x))


@pytest.mark.parametrize(("dtype", "gap"), [(torch.float64, 1e-12), (torch.bfloat16, 0.1), (torch.float16, 0.02)])
def test_reparameterized_in_other_precisions(dtype, gap):
    model = lively(small()).eval().to(dtype)
    fused = model.reparameterize()
    assert {p.dtype for p in fused.parameters()} == {dtype}
    with torch.no_grad():
        wanted, got = model(images().to(dtype)).double(), fused(images().to(dtype)).double()
    assert (got - wanted).abs().max() < gap * wanted.abs().max()


def test_twice_the_size_by_windows():
    """The weights of the native model run on four windows; other sizes are refused in a sentence."""
    native = lively(small()).eval()
    larger = small(image=(64, 96), partitions=((8, 12), (4, 6))).eval()
    larger.load_state_dict(native.state_dict())
    assert larger(images(64, 96)).shape == (2, 5)
    assert torch.allclose(larger(images()), native(images()), atol=1e-6)
    with pytest.raises(UsageError, match="8×12 tokens do not tile"):
        larger(images(48, 96))
    with pytest.raises(UsageError, match="weights for 32×48 pixels"):
        native(images(64, 96))


def test_wrong_lists_are_refused():
    with pytest.raises(UsageError, match="one entry a stage"):
        small(depths=(1, 2, 1))
    with pytest.raises(UsageError, match="sharesets must divide the width 12, got 5"):
        small(sharesets=(2, 5))
    with pytest.raises(UsageError, match="needs a partition"):
        small(order="official")


def test_it_trains():
    model = small().train()
    model(images()).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
