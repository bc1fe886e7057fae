"""RepMLP of 2021: the block, the ResNets and the CIFAR nets: sizes, costs, folding, and the traps of its sheet."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.flop_counter import FlopCounterMode

from mixwise import UsageError, create_model
from mixwise.config import RepMLPBlockConfig
from mixwise.model import build, parse_config
from mixwise.models import model_config
from mixwise.models.maps import fold
from mixwise.models.repmlp_v1 import GroupedLinear, RepMLPV1, map_unwindows, map_windows
from mixwise.weights import Header, load_file, save
from testing_weights import lively

# name, changes; M parameters and GMACs of both forms, from the sheet (None: not stated there)
SIZES = [
    ("repmlp_res50_224", {}, 41.07, 40.87, 3.95, 3.89),
    ("repmlp_res50_light_224", {}, 87.04, 86.14, 3.30, 3.08),
    ("repmlp_res50_light_224", {"groups": 8}, 58.35, 57.87, 3.03, 2.92),
    ("repmlp_res50_224", {"where": (), "squeeze": ()}, None, 25.53, None, 4.09),
    ("repmlp_res50_224", {"where": (3,), "squeeze": (8,)}, None, 25.03, None, 3.66),
    ("repmlp_res50_224", {"where": (3,), "squeeze": (4,), "groups": 4}, None, 37.02, None, 3.85),
    ("repmlp_res50_224", {"where": (1, 2, 3), "squeeze": (2, 2, 4)}, None, 66.98, None, 3.98),
    ("repmlp_res50_224", {"where": (1, 2, 3, 4), "squeeze": (2, 2, 4, 4)}, None, 74.46, None, 3.87),
    (
        "repmlp_res50_224",
        {"image": 320, "window": 10, "kernels": (1, 3, 5, 7), "groups": (8, 16)},
        *(None, 59.22, None, 8.06),
    ),
    ("repmlp_cifar", {}, 22.84, 22.38, 0.11887, 0.05281),
    ("repmlp_cifar", {"kernels": ()}, None, 22.38, 0.05281, 0.05281),
    ("repmlp_cifar", {"global_perceptron": False}, None, 22.05, None, 0.0525),
    ("repmlp_cifar_conv", {}, 0.44, 0.44, 0.06511, 0.06511),
    ("repmlp_cifar_conv", {"kernel": 9, "dims": (16, 32, 64)}, None, 0.88, None, 0.12955),
    ("repmlp_cifar_conv", {"kernel": 9, "dims": (16, 32, 64), "groups": 2}, None, 0.45, None, 0.06585),
]
NETS = {
    "bottleneck": ("repmlp_res50_224", {"image": (96, 64), "window": (3, 2), "depths": (1, 2, 2, 1)}),
    "light": ("repmlp_res50_light_224", {"image": (96, 64), "window": (3, 2), "depths": (1, 2, 2, 1)}),
    "cifar": ("repmlp_cifar", {"image": (16, 32), "window": (4, 2)}),
    "conv": ("repmlp_cifar_conv", {"image": (16, 32)}),
}


def net(which, **changes):
    name, own = NETS[which]
    torch.manual_seed(0)
    narrow = {"dims": (32, 64, 64, 96), "groups": 4} if "res50" in name else {"dims": (4, 8, 12)}
    return lively(create_model(name, classes=5, **{**own, **narrow, **changes}))


def images(model, batch=2):
    shape = (batch, model.config.channels, *model.config.image)
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def block(dim=8, out=12, size=(6, 15), **options):
    torch.manual_seed(0)
    return lively(RepMLPV1(dim, out, size, RepMLPBlockConfig(**{"window": (3, 5), "groups": 2, **options})))


@pytest.mark.parametrize(("name", "changes", "trained", "folded", "macs", "fewer"), SIZES)
def test_parameters_and_macs(name, changes, trained, folded, macs, fewer):
    with torch.device("meta"):
        model = build(model_config(name, **changes)).eval()
        for one, million, giga in ((model, trained, macs), (model.reparameterize(), folded, fewer)):
            with FlopCounterMode(display=False) as counter:
                one(torch.empty(1, 3, *model.config.image))
            if million is not None:
                assert sum(p.numel() for p in one.parameters()) / 1e6 == pytest.approx(million, abs=0.00501)
            if giga is not None:
                near = 0.006 if giga > 1 else 0.00006  # the sheet has two digits, and five of the CIFAR nets
                assert counter.get_total_flops() / 2e9 == pytest.approx(giga, abs=near)


@pytest.mark.parametrize(
    ("name", "trained", "folded"),
    [
        ("repmlp_res50_224", 41_071_144, 40_871_528),
        ("repmlp_res50_light_224", 87_038_248, 86_142_440),
        ("repmlp_cifar", 22_844_858, 22_376_666),
        ("repmlp_cifar_conv", 438_634, 437_610),
    ],
)
def test_exact_parameters(name, trained, folded):
    with torch.device("meta"):
        model = build(model_config(name))
        counts = [sum(p.numel() for p in m.parameters()) for m in (model, model.reparameterize())]
    assert counts == [trained, folded]


@pytest.mark.parametrize(("dim", "out", "groups"), [(8, 8, 2), (8, 12, 1), (8, 12, 2), (8, 12, 4), (12, 8, 4)], ids=str)
@pytest.mark.parametrize("size", [(6, 15), (3, 5)], ids=str)
def test_block_folds_exactly_with_other_widths_behind(dim, out, groups, size):
    module = block(dim, out, size, groups=groups, kernels=(1, 3, 5, 7)).double().eval()
    x = torch.randn(2, dim, *size, dtype=torch.float64)
    with torch.no_grad():
        fused = module.folded()
        assert torch.allclose(fused(x), module(x), atol=1e-12)
    assert not any(isinstance(m, _BatchNorm | nn.Conv2d) for m in fused.modules())


def test_block_folds_with_kernels_larger_than_the_window():
    module = block(4, 6, (4, 3), window=(2, 1), groups=2, kernels=(1, 7)).double().eval()
    x = torch.randn(2, 4, 4, 3, dtype=torch.float64)
    with torch.no_grad():
        assert torch.allclose(module.folded()(x), module(x), atol=1e-12)


def test_block_by_loops():
    """Windows, groups and the sum of the global perceptron, against indices written out."""
    module = block(4, 6, (2, 6), window=(2, 3), groups=2, kernels=(3,)).double().eval()
    x = torch.randn(2, 4, 2, 6, dtype=torch.float64)
    with torch.no_grad():
        means = torch.stack([x[:, c, :, 3 * p : 3 * p + 3].mean(dim=(1, 2)) for c in range(4) for p in range(2)], 1)
        means = module.context.norm(means.view(2, 4, 1, 2)).flatten(1)
        added = module.context.fc2(module.context.fc1(means).relu()).view(2, 4, 2)
        weight, y = module.fc3.weight, torch.empty(2, 6, 2, 6, dtype=torch.float64)
        for p in range(2):
            part = x[:, :, :, 3 * p : 3 * p + 3] + added[:, :, p, None, None]
            rows = [part[:, 2 * g : 2 * g + 2].flatten(1) @ weight[g].t() for g in range(2)]
            mixed = module.norm(torch.cat(rows, 1)[:, None])[:, 0].view(2, 6, 2, 3)
            y[:, :, :, 3 * p : 3 * p + 3] = mixed + module.local[0](part)
        assert torch.allclose(module(x), y, atol=1e-12)


def test_windows_and_back():
    x = torch.randn(2, 3, 4, 6)
    parts = map_windows(x, (2, 3))
    assert torch.equal(parts[1], x[0, :, :2, 3:])
    assert torch.equal(map_unwindows(parts, (2, 2)), x)


@pytest.mark.parametrize("which", NETS)
def test_nets_fold_everything_exactly_and_load_in_their_form(which, tmp_path):
    model = net(which).train()
    x, before = images(model), copy.deepcopy(model.state_dict())
    fused = model.reparameterize()
    assert model.training
    assert all(torch.equal(t, before[k]) for k, t in model.state_dict().items())
    assert not any(isinstance(m, _BatchNorm) for m in fused.modules())
    with torch.no_grad():
        wanted = model.eval()(x)
        assert (fused(x) - wanted).abs().max() <= 2e-5 * max(1.0, float(wanted.abs().max()))
        exact, double = copy.deepcopy(model).double(), x.double()
        assert torch.allclose(exact.reparameterize()(double), exact(double), rtol=1e-11, atol=1e-11)
        again = fused.reparameterize()
        fold(again)
        assert torch.equal(again(x), fused(x))
    path = tmp_path / "fused.safetensors"
    save(path, fused.state_dict(), Header(config=fused.config))
    loaded, header = load_file(path)
    assert header.config.form == "reparameterized"
    assert torch.equal(loaded(x), fused(x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_folds_in_other_precisions(dtype):
    module = block(window=(3, 5), kernels=(1, 3)).eval().to(dtype)
    x = torch.randn(2, 8, 6, 15).to(dtype)
    with torch.no_grad():
        wanted, fused = module(x).double(), module.folded()
        assert {p.dtype for p in fused.parameters()} == {dtype}
        assert (fused(x).double() - wanted).abs().max() < 0.06 * wanted.abs().max()


@pytest.mark.parametrize("which", NETS)
def test_shapes_config_and_gradients(which):
    model = net(which).train()
    x = images(model, 3)
    logits = model(x)
    assert logits.shape == (3, 5)
    (logits * torch.randn(logits.shape, generator=torch.Generator().manual_seed(2))).sum().backward()
    lost = [n for n, p in model.named_parameters() if p.grad is None or float(p.grad.abs().max()) == 0]
    assert lost == []
    model.eval()
    tokens, grid = model.features(x)
    maps = model.pyramid(x)
    assert tokens.shape == (3, grid[0] * grid[1], maps[-1].shape[1])
    assert len(maps) == len(model.stages)
    assert torch.allclose(model(x), model.head(model.pool(model.features(x))))
    config = model.config
    assert config == parse_config(config.model_dump(mode="json")) == type(config).from_toml(config.to_toml())
    assert build(config.model_copy(update={"classes": 0})).eval()(x).shape == (3, maps[-1].shape[1])


@pytest.mark.parametrize(
    ("which", "changes"),
    [
        ("bottleneck", {"groups": 2}),
        ("bottleneck", {"groups": (4, 2)}),
        ("bottleneck", {"squeeze": (1, 2)}),
        ("bottleneck", {"where": (2,), "squeeze": (2,)}),
        ("bottleneck", {"kernels": (1, 3)}),
        ("bottleneck", {"reduce": 2}),
        ("bottleneck", {"reduce": (1, 2)}),
        ("bottleneck", {"window": (6, 2)}),
        ("bottleneck", {"light": True}),
        ("light", {"groups": 2}),
        ("cifar", {"groups": 4}),
        ("cifar", {"kernels": ()}),
        ("cifar", {"global_perceptron": False}),
        ("cifar", {"reduce": 4}),
        ("cifar", {"depth": 1}),
        ("cifar", {"window": 2}),
        ("conv", {"kernel": 5}),
        ("conv", {"groups": 2}),
        ("conv", {"depth": 3}),
    ],
)
def test_options_change_the_result(which, changes):
    plain, changed = net(which).eval(), net(which, **changes).eval()
    assert not torch.allclose(plain(images(plain)), changed(images(plain)))


def test_orthogonal_start_has_orthonormal_columns():
    torch.manual_seed(0)
    config = RepMLPBlockConfig(window=(2, 3), groups=2, init="orthogonal")
    weight = RepMLPV1(4, 4, (2, 3), config).fc3.weight.flatten(0, 1)
    assert torch.allclose(weight.t() @ weight, torch.eye(weight.shape[1]), atol=1e-5)
    default = RepMLPV1(4, 4, (2, 3), config.model_copy(update={"init": "default"})).fc3.weight
    assert float(default.detach().abs().max()) <= 12**-0.5


def test_fused_groups_are_one_batched_product(monkeypatch):
    calls = []
    original = torch.baddbmm
    monkeypatch.setattr(torch, "baddbmm", lambda *a, **k: calls.append(a[2].shape[0]) or original(*a, **k))
    fused = block(8, 12, groups=4).folded()
    assert isinstance(fused.fc3, GroupedLinear)
    fused(torch.randn(2, 8, 6, 15))
    assert calls == [4]


def test_refusals_say_what_works():
    with pytest.raises(UsageError, match="7×7 do not tile a map of 12×12"):
        create_model("repmlp_res50_224", image=96)
    with pytest.raises(UsageError, match="groups must divide the widths 64 and 64, got 5"):
        create_model("repmlp_res50_224", groups=5)
    with pytest.raises(UsageError, match="squeeze is about bottlenecks"):
        create_model("repmlp_res50_light_224", squeeze=(1, 1))
    with pytest.raises(UsageError, match="groups needs one entry for each stage"):
        create_model("repmlp_res50_224", groups=(8,))
    with pytest.raises(UsageError, match="where names some of them"):
        create_model("repmlp_res50_224", where=(5,), squeeze=(1,))
    with pytest.raises(UsageError, match="kernels must be odd"):
        create_model("repmlp_cifar", kernels=(2,))
    with pytest.raises(UsageError, match="there is none"):
        create_model("repmlp_cifar", global_perceptron=False, reduce=2)
    with pytest.raises(UsageError, match="kernel must be odd"):
        create_model("repmlp_cifar_conv", kernel=4)
    model = create_model("repmlp_cifar", image=(16, 32), window=4)
    with pytest.raises(UsageError, match="weights for 16×32 pixels and was given 32×32"):
        model(torch.randn(1, 3, 32, 32))
    with pytest.raises(UsageError, match="takes images"):
        model(torch.randn(1, 1, 16, 32))
    assert create_model("repmlp_cifar_conv")(torch.randn(2, 3, 24, 40)).shape == (2, 10)
    with pytest.raises(UsageError, match="more than one value per channel"):
        create_model("repmlp_cifar").train()(torch.randn(1, 3, 32, 32))


@pytest.mark.parametrize("which", ["bottleneck", "cifar"])
def test_exports_with_a_dynamic_batch_in_both_forms(which):
    model = net(which).eval()
    for one in (model, model.reparameterize()):
        shapes = ({0: torch.export.Dim("batch")},)
        program = torch.export.export(one, (images(one),), dynamic_shapes=shapes).module()
        for batch in (1, 5):
            x = images(one, batch)
            assert torch.allclose(program(x), one(x), atol=1e-5)
