"""Folding: equal outputs with non-trivial statistics, in every precision, and files of their own form."""

import pytest
import torch

import mixwise
from mixwise import MixwiseError, UsageError, create_model
from mixwise.mixers import MIXERS
from mixwise.model import build
from mixwise.norms import Affine, TokenBatchNorm
from mixwise.reparameterization import compare, reparam
from mixwise.weights import Header, info, load, save
from testing_weights import lively

NORMS = ("affine", "batch", "group1", "layer", "none")
LAYOUTS = ("pyramid", "isotropic")


def pair(name, dtype=torch.float64, **changes):
    torch.manual_seed(0)
    model = lively(create_model(name, **changes)).to(dtype)
    return model, model.reparameterize()


def gap(model, fused, dtype=torch.float64):
    x = torch.randn(3, 3, *model.config.image, generator=torch.Generator().manual_seed(1)).to(dtype)
    with torch.no_grad():
        a, b = model.eval()(x).double(), fused(x).double()
    return float((a - b).abs().max()) / max(1.0, float(a.abs().max()))


def norms(model):
    return sum(isinstance(m, TokenBatchNorm | Affine) for m in model.modules())


@pytest.mark.parametrize("mixer", sorted(MIXERS))
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("norm", NORMS)
def test_equal_in_float64_and_rebuilt_from_its_config(mixer, layout, norm):
    model, fused = pair(f"{mixer}_nano", image=(16, 24), classes=5, layout=layout, norm=norm)
    assert gap(model, fused) < 1e-12
    fresh = build(fused.config).double().eval()
    fresh.load_state_dict(fused.state_dict())
    assert gap(fused, fresh) == 0
    assert gap(fused, fused.reparameterize()) == 0
    assert norms(fused) < norms(model) or norms(model) == 0


@pytest.mark.parametrize("name", ["resmlp_12_224", "repmlp_compact_nano", "linear_nano", "separable_conv_nano"])
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 2e-5), (torch.bfloat16, 0.05), (torch.float16, 0.01)])
def test_precisions(name, dtype, limit):
    model, fused = pair(name, dtype, image=64, classes=5)
    assert {p.dtype for p in fused.parameters()} == {dtype}
    assert gap(model, fused, dtype) < limit


def test_from_training_mode_and_the_original_is_left():
    model = lively(create_model("repmlp_nano", image=16, classes=3)).double().train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    fused = model.reparameterize()
    assert model.training
    assert not fused.training
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert gap(model.eval(), fused) < 1e-12


def test_what_is_folded():
    """ResMLP loses every affine map and layer scale; its MLPs and head take them."""
    _, fused = pair("resmlp_12_224", image=32, classes=5)
    assert norms(fused) == 0
    assert not [n for n, _ in fused.named_parameters() if n.endswith((".scale", "norm.weight"))]
    _, pool = pair("pool_nano", image=32, classes=5, norm="batch")
    assert norms(pool) == 1  # in front of the ReLU that stands before the mean


def test_training_a_fused_model_has_to_be_asked_for():
    model = create_model("pool_nano", image=16, classes=3)
    with pytest.raises(UsageError, match="trainable=True"):
        model.reparameterize().train()
    assert model.reparameterize(trainable=True).train().training


@pytest.fixture
def file(tmp_path):
    torch.manual_seed(0)
    model = lively(create_model("repmlp_compact_nano", image=32, channels=1, classes=10)).eval()
    save(tmp_path / "model.safetensors", model.state_dict(), Header(config=model.config, classes=tuple("0123456789")))
    return tmp_path / "model.safetensors"


def test_the_file_states_its_form_and_loads_only_in_it(file, tmp_path):
    out = tmp_path / "fused.safetensors"
    report = mixwise.reparam(file, out, repeats=1, limit=8)
    assert info(out).config.form == "reparameterized"
    assert info(out).classes == info(file).classes
    assert load(out).config.form == "reparameterized"
    assert report.pictures_compared == 8
    assert report.same_top1 == 1
    assert max(report.noise, report.pictures) < 1e-5 * max(1, report.largest)
    assert report.after.norms < report.before.norms
    assert report.after.operators < report.before.operators
    with pytest.raises(UsageError, match="re-parameterised already"):
        reparam(out, tmp_path / "again.safetensors")


def test_a_wrong_fold_is_refused_and_nothing_written(file, tmp_path, monkeypatch):
    monkeypatch.setattr("mixwise.blocks.absorb_after", lambda *arguments: None)
    monkeypatch.setattr("mixwise.layers.absorb_after", lambda *arguments: None)
    with pytest.raises(MixwiseError, match="nothing was written"):
        reparam(file, tmp_path / "fused.safetensors", repeats=1, limit=4)
    assert not (tmp_path / "fused.safetensors").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "", "fused.txt"])
def test_the_trainable_file_is_never_overwritten(file, tmp_path, name):
    before = file.read_bytes()
    with pytest.raises(UsageError, match=r"the file that is read|is a folder|must end in \.safetensors"):
        reparam(file, tmp_path / name, repeats=1, limit=4)
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_pictures_are_compared_a_few_at_a_time():
    """All 64 at once took 4 GB for the smallest EANet."""
    model = lively(create_model("pool_nano", image=16, classes=3)).eval()
    fused, sizes = model.reparameterize(), []
    model.register_forward_pre_hook(lambda module, inputs: sizes.append(len(inputs[0])))
    pictures = torch.randn(19, 3, 16, 16)
    report = compare(model, fused, pictures, repeats=1)
    assert max(sizes) <= 8
    assert report.pictures == pytest.approx(float((model(pictures) - fused(pictures)).abs().max().detach()), abs=1e-6)
    with torch.no_grad():
        fused.head.bias += torch.tensor([9.0, 0, 0])
    wrong = compare(model, fused, pictures, repeats=1)
    share = float((model(pictures).argmax(1) == fused(pictures).argmax(1)).double().mean())
    assert (wrong.same_top1, wrong.noise) == (pytest.approx(share), pytest.approx(9.0, abs=1e-4))
