"""Models by name."""

import subprocess
import sys

import pytest
import torch

from mixwise import UsageError, create_model, list_models
from mixwise.models import describe, model_config


def test_every_mixer_has_house_and_compact_models():
    for mixer in ("pool", "token_mlp", "repmlp"):
        assert {f"{mixer}_{s}" for s in ("nano", "tiny", "small", "base")} <= set(list_models())
        assert {f"{mixer}_compact_{s}" for s in ("nano", "tiny", "small")} <= set(list_models())


def test_sizes_grow():
    for family in ("linear_{}", "linear_compact_{}"):
        counts = [describe(family.format(s))[0] for s in ("nano", "tiny", "small")]
        assert counts == sorted(counts)
        assert counts[0] < counts[-1] / 3


def test_one_number_for_both_sides():
    assert model_config("pool_nano", image=64).image == (64, 64)
    assert model_config("pool_compact_nano", image=64, patch=2).patch == (2, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layout": "pyrmid"}, "did you mean 'pyramid'"),
        ({"mlp_ratio": -3.0}, "ratio must be positive"),
        ({"options": {"size": "3"}}, "cannot take the options"),
        ({"imag": 3}, "did you mean 'image'"),
        ({"patch": (0, 0)}, "greater than 0"),
    ],
)
def test_wrong_changes_are_refused(changes, message):
    with pytest.raises(UsageError, match=message):
        create_model("pool_nano", **changes)


@pytest.mark.parametrize("changes", [{"drop_path": 2.0}, {"depth": 0}, {"image": (0, 8)}])
def test_wrong_values_are_named_in_papers_models_too(changes):
    with pytest.raises(UsageError, match=rf"setting .{next(iter(changes))}.*model 'mixer_s16_224'.*got"):
        create_model("mixer_s16_224", **changes)


def test_a_mixer_registered_late_has_models():
    """As in a notebook: after the models were already listed."""
    code = (
        "import mixwise; mixwise.list_models()\n"
        "@mixwise.register('mine')\n"
        "class Mine(mixwise.Mixer):\n"
        "    def forward(self, x, grid): return x.flip(1)\n"
        "assert len(mixwise.list_models('mine*')) == 7\n"
        "mixwise.create_model('mine_nano', image=16)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "name", ["attention_small", "repmlp_compact_tiny", "resmlp_24_224", "caformer_s18", "vit_tiny_patch16_224"]
)
def test_describe_counts_every_block(name):
    assert describe(name)[0] == sum(p.numel() for p in create_model(name).parameters())


@pytest.mark.parametrize(
    ("name", "matrices", "stem"),
    [
        ("resmlp_12_224", 0.02, (3 * 3 * 64) ** -0.5),
        ("mixer_s16_224", (2 / (48 + 192)) ** 0.5, (3 * 64) ** -0.5),
    ],
)
def test_papers_models_start_as_their_codes_do(name, matrices, stem):
    """ResMLP as its authors' (truncated normal, torch's stem), Mixer as timm's (Xavier, LeCun stem)."""
    torch.manual_seed(0)
    model = create_model(name, image=64, patch=8, dim=48, depth=1)
    fc1 = model.stages[0].blocks[0][1].mixer.fc1
    assert float(fc1.weight.detach().std()) == pytest.approx(matrices, rel=0.05)
    assert float(fc1.bias.detach().abs().max()) < 1e-5
    assert float(model.stem.proj.weight.detach().std()) == pytest.approx(stem, rel=0.05)
