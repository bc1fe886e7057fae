"""The contract of every house model: registry × {pyramid, isotropic}, all axes of different sizes."""

import pytest
import torch
from torch import nn

from mixwise import UsageError, create_model
from mixwise.backbone import Backbone, Branch
from mixwise.config import BackboneConfig
from mixwise.mixers import MIXERS
from mixwise.norms import TokenBatchNorm
from mixwise.weights import Header, load_file, save, weights_hash

SHAPES = {
    "pyramid": {"image": (24, 40), "patch": (2, 4)},  # grids 12×10, 6×5, 3×3
    "isotropic": {"image": (24, 40), "patch": (4, 8)},  # grid 6×5
}
CASES = [
    (mixer, layout, channels) for mixer in sorted(MIXERS) for layout, channels in (("pyramid", 1), ("isotropic", 4))
]


def build(mixer: str, layout: str, channels: int, **changes) -> Backbone:
    torch.manual_seed(0)
    return create_model(f"{mixer}_nano", layout=layout, channels=channels, classes=5, **SHAPES[layout], **changes)


def lively(model: nn.Module) -> nn.Module:
    """Give norms and their statistics values that a mistake would show in."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for module in model.modules():
            for name, value in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
                if name in ("running_var", "weight") and value.dim() == 1:
                    value.uniform_(0.5, 1.5, generator=generator)
                elif name in ("running_mean", "bias", "shift"):
                    value.normal_(0, 0.2, generator=generator)
    return model


def images(channels: int, batch: int = 3, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(batch, channels, 24, 40, generator=torch.Generator().manual_seed(2)).to(dtype)


@pytest.mark.parametrize(("mixer", "layout", "channels"), CASES)
def test_shapes_and_intermediates(mixer, layout, channels):
    model = build(mixer, layout, channels).eval()
    x = images(channels)
    tokens, grid = model.features(x)
    maps = model.pyramid(x)
    assert model(x).shape == (3, 5)
    assert tokens.shape == (3, grid[0] * grid[1], model.config.stages[-1].dim)
    grids = {"pyramid": [(12, 10), (6, 5), (3, 3)], "isotropic": [(6, 5)]}[layout]
    assert [tuple(m.shape[2:]) for m in maps] == grids
    assert [m.shape[1] for m in maps] == [s.dim for s in model.config.stages]


@pytest.mark.parametrize(("mixer", "layout", "channels"), CASES)
def test_every_parameter_gets_a_gradient(mixer, layout, channels):
    # Unscaled, its softmax is saturated at 128 channels, and the gradient of the norm's shift is rounding alone.
    options = {"options": {"scale": True}} if mixer == "simple_attention" else {}
    model = lively(build(mixer, layout, channels, **options)).double().train()
    logits = model(images(channels, batch=4, dtype=torch.float64))
    (
        logits * torch.randn(logits.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    ).sum().backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
    assert [n for n, g in gradients.items() if g is None] == []
    largest = max(float(g.abs().max()) for g in gradients.values())
    assert [n for n, g in gradients.items() if float(g.abs().max()) < 1e-12 * largest] == []


@pytest.mark.parametrize(("mixer", "layout", "channels"), CASES)
def test_zeroing_any_submodule_changes_the_output(mixer, layout, channels):
    model = lively(build(mixer, layout, channels)).double().eval()
    x = images(channels, dtype=torch.float64)
    with torch.no_grad():
        before = model(x)
        for name, module in model.named_modules():
            if name == "" or isinstance(module, nn.ModuleList | nn.Identity):
                continue
            ran: list[str] = []
            handle = module.register_forward_hook(lambda module, inputs, output, ran=ran: _zero(output, ran))
            changed = (model(x) - before).abs().max()
            handle.remove()
            if not ran:  # its parameters are read by the module around it, which is zeroed as a whole
                continue
            assert changed > 1e-9 * before.abs().max(), f"{name} does nothing"


def _zero(output, ran):
    ran.append("yes")
    return (output[0] * 0, *output[1:]) if isinstance(output, tuple) else output * 0


@pytest.mark.parametrize(("mixer", "layout", "channels"), CASES)
def test_images_of_a_batch_do_not_influence_each_other(mixer, layout, channels):
    model = lively(build(mixer, layout, channels)).double().eval()
    x = images(channels, batch=7, dtype=torch.float64)
    with torch.no_grad():
        together, alone = model(x), torch.cat([model(x[i : i + 1]) for i in range(7)])
    assert torch.allclose(together, alone, atol=1e-10)


@pytest.mark.parametrize(("mixer", "layout", "channels"), CASES)
def test_file_round_trip(mixer, layout, channels, tmp_path):
    model = lively(build(mixer, layout, channels)).eval()
    path = tmp_path / "model.safetensors"
    save(path, model.state_dict(), Header(config=model.config, classes=tuple("abcde")))
    loaded, header = load_file(path)
    assert header.classes == tuple("abcde")
    assert weights_hash(loaded.state_dict()) == weights_hash(model.state_dict())
    assert torch.equal(loaded(images(channels)), model(images(channels)))
    config = model.config
    assert config == BackboneConfig.from_json(config.to_json()) == BackboneConfig.from_toml(config.to_toml())


@pytest.mark.parametrize(("mixer", "layout", "channels"), CASES)
def test_reparameterized_is_equal_and_loads(mixer, layout, channels, tmp_path):
    model = lively(build(mixer, layout, channels)).train()
    fused = model.reparameterize()
    x = images(channels)
    with torch.no_grad():
        assert torch.allclose(fused(x), model.eval()(x), atol=2e-5)
        assert torch.equal(fused.reparameterize()(x), fused(x))
    path = tmp_path / "fused.safetensors"
    save(path, fused.state_dict(), Header(config=fused.config))
    assert torch.equal(load_file(path)[0](x), fused(x))


@pytest.mark.parametrize(("mixer", "layout", "channels"), CASES)
def test_another_size_works_or_is_refused_with_the_sizes_that_work(mixer, layout, channels):
    model = build(mixer, layout, channels).eval()
    other = torch.randn(2, channels, 29, 43)
    if model.fixed_size:
        with pytest.raises(UsageError, match="24×40"):
            model(other)
    else:
        assert model(other).shape == (2, 5)
    with pytest.raises(UsageError, match=f"takes images .b, {channels}, h, w."):
        model(torch.randn(2, channels + 1, 24, 40))


@pytest.mark.parametrize("mixer", sorted(MIXERS))
def test_bf16_autocast_is_near_fp32(mixer):
    model = lively(build(mixer, "pyramid", 1)).eval()
    with torch.no_grad():
        exact = model(images(1))
        with torch.autocast("cpu", torch.bfloat16):
            rough = model(images(1)).float()
    assert torch.isfinite(rough).all()
    assert (rough - exact).abs().max() < 0.1 * exact.abs().max() + 0.05


@pytest.mark.parametrize("mixer", sorted(MIXERS))
def test_only_batch_norm_statistics_change_in_training(mixer):
    model = build(mixer, "pyramid", 1).train()
    before = {n: b.clone() for n, b in model.named_buffers()}
    model(images(1))
    changed = {n.rsplit(".", 1)[1] for n, b in model.named_buffers() if not torch.equal(b, before[n])}
    assert changed == {"running_mean", "running_var", "num_batches_tracked"}
    assert any(isinstance(m, TokenBatchNorm) for m in model.modules())
    assert all(isinstance(b, Branch) for s in model.stages for block in s.blocks for b in block)
