"""The skeleton: every option of its config changes the result or is refused."""

import zlib

import pytest
import torch

from mixwise.backbone import Backbone, drop_path_rates
from mixwise.config import BackboneConfig, BranchConfig, StageConfig
from mixwise.errors import UsageError
from mixwise.layers import DropPath

BRANCHES = (BranchConfig(mixer="token_mlp"), BranchConfig(mixer="mlp"))


def config(**changes) -> BackboneConfig:
    base = {
        "image": (16, 24),
        "channels": 2,
        "classes": 3,
        "patch": (4, 8),
        "stages": (StageConfig(depth=2, dim=10, branches=BRANCHES),),
    }
    return BackboneConfig.parse(base | changes)


def output(**changes) -> torch.Tensor:
    torch.manual_seed(0)
    model = Backbone(config(**changes)).double().eval()
    x = torch.randn(2, 2, 16, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        for (
            name,
            parameter,
        ) in model.named_parameters():  # by name: a new module must not shift them
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            start = 1.0 if parameter.dim() == 1 and name.endswith("weight") else 0.0
            parameter.copy_(start + 0.3 * torch.randn(parameter.shape, generator=generator))
        return model(x)


@pytest.mark.parametrize("norm", ["layer", "group1", "batch", "affine", "none"])
@pytest.mark.parametrize("stem", ["conv", "patch"])
def test_norms_and_stems_run_and_differ(norm, stem):
    other = "layer" if norm == "none" else "none"
    assert not torch.allclose(output(norm=norm, stem=stem), output(norm=other, stem=stem))


@pytest.mark.parametrize(
    "changes",
    [
        {"positions": "learned"},
        {"positions": "sincos"},
        {"class_token": True},
        {"layer_scale": 0.3},
        {"final_act": "relu"},
        {"pooled_norm": "layer"},
        {"pooled_norm": "batch"},
        {"patch": (8, 8)},
        {"stem": "conv"},
        {"classes": 4},
    ],
)
def test_options_change_the_result(changes):
    plain, changed = output(), output(**changes)
    assert plain.shape != changed.shape or not torch.allclose(plain, changed)


def test_an_option_without_effect_would_be_seen():
    assert torch.equal(output(), output(drop_path=0.3))  # evaluation mode: nothing is dropped


def test_pool_token_reads_the_class_token():
    assert not torch.allclose(output(class_token=True), output(class_token=True, pool="token"))


def test_drop_path_is_linear_or_constant_and_drops_whole_samples():
    stages = (StageConfig(depth=2, dim=10, branches=BRANCHES), StageConfig(depth=3, dim=12, branches=BRANCHES))
    assert drop_path_rates(config(drop_path=0.4, stages=stages)) == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])
    assert drop_path_rates(config(drop_path=0.4, drop_path_schedule="constant")) == [0.4, 0.4]
    layer = DropPath(0.5).train()
    torch.manual_seed(0)
    y = layer(torch.ones(64, 3, 5))
    assert set(y.unique().tolist()) == {0.0, 2.0}
    assert all(len(sample.unique()) == 1 for sample in y)
    assert torch.equal(layer.eval()(torch.ones(2, 3, 5)), torch.ones(2, 3, 5))


def test_refused_configs_say_why():
    two = (StageConfig(depth=1, dim=8, branches=BRANCHES), StageConfig(depth=1, dim=8, branches=BRANCHES))
    with pytest.raises(UsageError, match="class token cannot pass a downsampling"):
        config(class_token=True, stages=two)
    with pytest.raises(UsageError, match="class_token must be true"):
        config(pool="token")
    with pytest.raises(UsageError, match="did you mean 'channels'"):
        config(chanels=3)
    pool = (StageConfig(depth=1, dim=8, branches=(BranchConfig(mixer="pool"),)),)
    with pytest.raises(UsageError, match="cannot have a class token"):
        Backbone(config(class_token=True, stages=pool))
    local = (StageConfig(depth=1, dim=8, branches=(BranchConfig(mixer="local_mlp"),)),)
    with pytest.raises(UsageError, match="cannot have a class token"):
        Backbone(config(class_token=True, stages=local))
    with pytest.raises(UsageError, match="ratio must be positive"):
        Backbone(
            config(stages=(StageConfig(depth=1, dim=8, branches=(BranchConfig(mixer="mlp", options={"ratio": 0}),)),))
        )
    with pytest.raises(UsageError, match=r"image.*greater than 0"):
        config(image=(0, 8))
    wrong = (StageConfig(depth=1, dim=8, branches=(BranchConfig(mixer="pool", options={"siz": 3}),)),)
    with pytest.raises(UsageError, match="did you mean 'size'"):
        Backbone(config(stages=wrong))


def test_sizes_that_work_are_named():
    pool = (StageConfig(depth=1, dim=8, branches=(BranchConfig(mixer="pool"), BranchConfig(mixer="mlp"))),)
    model = Backbone(config(stages=pool))
    assert model(torch.randn(1, 2, 32, 8)).shape == (1, 3)
    with pytest.raises(UsageError, match="16×16 and 20×24"):
        model(torch.randn(1, 2, 18, 20))
    pyramid = (pool[0], StageConfig(depth=1, dim=8, branches=pool[0].branches, downsample="patch"))
    with pytest.raises(UsageError, match="multiples of 8 and widths of 16"):
        Backbone(config(stages=pyramid, image=(16, 32)))(torch.randn(1, 2, 20, 32))


def test_conv_stem_takes_any_size():
    pool = (StageConfig(depth=1, dim=8, branches=(BranchConfig(mixer="pool"), BranchConfig(mixer="mlp"))),)
    model = Backbone(config(stages=pool, stem="conv", patch=(6, 1), image=(17, 5)))
    assert model.features(torch.randn(2, 2, 17, 5)).grid == (3, 5)
    assert model.features(torch.randn(2, 2, 7, 2)).grid == (2, 2)


def test_no_head():
    assert output(classes=0).shape == (2, 10)
