"""The skeleton: every option of its config changes the result or is refused."""

import zlib

import pytest
import torch

from mixwise.assemble import drop_path_rates, stage_grids
from mixwise.backbone import Backbone
from mixwise.config import BackboneConfig, BranchConfig, StageConfig
from mixwise.errors import UsageError
from mixwise.heads import MLPHead
from mixwise.layers import DropPath
from mixwise.models import create_model

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


def test_drop_path_of_a_whole_batch_and_without_rescaling():
    torch.manual_seed(0)
    layer = DropPath(0.5, batch=True).train()
    draws = [set(layer(torch.ones(9, 3, 5)).unique().tolist()) for _ in range(20)]
    assert {frozenset(d) for d in draws} == {frozenset({0.0}), frozenset({2.0})}
    assert set(DropPath(0.5, rescale=False).train()(torch.ones(64, 3, 5)).unique().tolist()) == {0.0, 1.0}
    model = Backbone(config(drop_path=0.4, drop_path_batch=True, drop_path_rescale=False))
    layers = [m for m in model.modules() if isinstance(m, DropPath)]
    assert {(m.batch, m.rescale) for m in layers} == {(True, False)}
    assert [m.rate for m in layers] == pytest.approx([0, 0, 0.4, 0.4])


def test_dropout_works_in_training_alone():
    rates = {"dropout": 0.5, "out_dropout": 0.5}
    attention = BranchConfig(mixer="attention", options={"heads": 2, **rates})
    mlp = BranchConfig(mixer="mlp", options={"dropout": 0.5})
    for changes in (
        {"position_dropout": 0.5},
        {"stages": (StageConfig(depth=1, dim=10, branches=(attention,)),)},
        {"stages": (StageConfig(depth=1, dim=10, branches=(mlp,)),)},
    ):
        model, x = Backbone(config(**changes)), torch.randn(2, 2, 16, 24)
        assert not torch.equal(model.train()(x), model(x))
        assert torch.equal(model.eval()(x), model(x))
    with pytest.raises(UsageError, match=r"dropout: rate must be in \[0, 1\)"):
        Backbone(
            config(
                stages=(StageConfig(depth=1, dim=10, branches=(BranchConfig(mixer="mlp", options={"dropout": 1.0}),)),)
            )
        )


def start(**changes) -> Backbone:
    torch.manual_seed(0)
    branches = (BranchConfig(mixer="attention", options={"heads": 4, "qkv_bias": True}), BranchConfig(mixer="mlp"))
    stages = (StageConfig(depth=1, dim=64, branches=branches),)
    return Backbone(config(**{"stages": stages, "class_token": True} | changes))


def test_init_draws_each_matrix_as_it_says():
    for init, std in (("normal", 0.02), ("xavier", (2 / 128) ** 0.5), ("flax", (2 / 128) ** 0.5)):
        attention, mlp = (branch.mixer for branch in start(init=init).stages[0].blocks[0])
        for matrix in attention.matrices():
            assert float(matrix.detach().std()) == pytest.approx(std, rel=0.05)
        assert len(attention.matrices()) == 4  # each of query, key and value by itself
        assert not attention.qkv.bias.any()
        assert float(mlp.fc1.bias.detach().std()) == pytest.approx(1e-6 if init == "flax" else 0.0, rel=0.3)
    assert start().stages[0].blocks[0][1].mixer.fc1.bias.any()  # own: torch's default
    for mixer, options in (("mlp", {"gated": True}), ("repmlp", {})):
        stages = (StageConfig(depth=1, dim=10, branches=(BranchConfig(mixer=mixer, options=options),)),)
        with pytest.raises(UsageError, match="leave the model's init at 'own'"):
            Backbone(config(init="normal", stages=stages))


def test_start_of_class_token_stem_and_head():
    assert not start(class_token_std=0.0).prefix_tokens.any()
    assert float(start(class_token_std=1e-6).prefix_tokens.detach().std()) == pytest.approx(1e-6, rel=0.3)
    stem = {init: start(stem_init=init).stem.proj for init in ("torch", "normal", "lecun")}
    assert [bool(stem[init].bias.any()) for init in stem] == [True, False, False]
    fan = 2 * 4 * 8
    for init, std in (("torch", (3 * fan) ** -0.5), ("normal", 0.02), ("lecun", fan**-0.5)):
        assert float(stem[init].weight.detach().std()) == pytest.approx(std, rel=0.05)
    assert float(start(head_options={"std": None}, classes=64).head.weight.detach().std()) == pytest.approx(
        1 / 8, rel=0.05
    )


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


def test_norms_in_the_channel_mlp_take_over_the_biases():
    def mlp(**options):
        branches = (BRANCHES[0], BranchConfig(mixer="mlp", options=options))
        return {"stages": (StageConfig(depth=2, dim=10, branches=branches),)}

    results = [output(**mlp(**o)) for o in ({}, {"norm": "batch"}, {"norm": "batch", "out_bias": True})]
    results.append(output(**mlp(norm="batch", bias=False)))
    assert all(not torch.allclose(a, b) for i, a in enumerate(results) for b in results[:i])
    model = Backbone(config(**mlp(norm="batch", out_bias=True)))
    assert {n for n, _ in model.stages[0].blocks[0][1].mixer.named_parameters()} == {
        *("fc1.weight", "norm1.weight", "norm1.bias", "fc2.weight", "norm2.weight", "norm2.bias")
    }
    with pytest.raises(UsageError, match="gated goes without a norm"):
        Backbone(config(**mlp(norm="batch", gated=True)))


def test_hidden_head_is_tanh_unless_named():
    assert not torch.allclose(output(head="hidden"), output(head="hidden", head_options={"act": "gelu"}))
    assert not torch.allclose(output(head="hidden"), output())


def pyramid(*, dim=8, **changes) -> BackboneConfig:
    local = (BranchConfig(mixer="pool"), BranchConfig(mixer="mlp"))
    stages = (StageConfig(depth=1, dim=8, branches=local), StageConfig(depth=1, dim=dim, branches=local, **changes))
    return config(stages=stages, image=(16, 32))


def test_downsampling_can_be_left_out():
    images = torch.randn(1, 2, 16, 32)
    assert [m.shape[2:] for m in Backbone(pyramid()).pyramid(images)] == [(4, 4), (2, 2)]
    model = Backbone(pyramid(downsample="none"))
    assert [m.shape[2:] for m in model.pyramid(images)] == [(4, 4), (4, 4)]
    assert stage_grids(model.config) == [(4, 4), (4, 4)]
    assert model.size_step() == (4, 8)
    with pytest.raises(UsageError, match="8 and 9 wide"):
        Backbone(pyramid(downsample="none", dim=9))
    with pytest.raises(UsageError, match="'none' has no options"):
        Backbone(pyramid(downsample="none", downsample_options={"kernel": 3}))


def test_a_norm_on_a_map_of_the_pyramid_leaves_the_logits_alone():
    torch.manual_seed(0)
    model = Backbone(pyramid(pyramid_norm=True)).eval()
    images = torch.randn(1, 2, 16, 32)
    maps, logits = model.pyramid(images), model(images)
    torch.testing.assert_close(maps[1].mean(dim=1), torch.zeros(1, 2, 2), atol=1e-6, rtol=0)
    assert maps[0].mean(dim=1).abs().max() > 1e-3
    torch.nn.init.constant_(model.stages[1].pyramid_norm.weight, 3.0)
    torch.testing.assert_close(model.pyramid(images)[1], 3 * maps[1])
    assert torch.equal(model(images), logits)


def test_images_smaller_than_the_kernel_are_refused():
    local = (StageConfig(depth=1, dim=8, branches=(BranchConfig(mixer="pool"),)),)
    model = Backbone(config(stages=local, patch=(4, 4), stem_options={"kernel": 7, "padding": 2}))
    assert model(torch.randn(1, 2, 3, 5)).shape == (1, 3)
    with pytest.raises(UsageError, match="image 2×9 is too small: it must be at least 3×3"):
        model(torch.randn(1, 2, 2, 9))


@pytest.mark.parametrize("option", ["dropout", "input_dropout"])
def test_dropout_of_the_mlp_head_acts_in_training_only(option):
    torch.manual_seed(0)
    plain, dropped = MLPHead(8, 3), MLPHead(8, 3, **{option: 0.5})
    dropped.load_state_dict(plain.state_dict())
    x = torch.randn(4, 8)
    assert not torch.equal(dropped.train()(x), plain(x))
    assert torch.equal(dropped.eval()(x), plain(x))


@pytest.mark.parametrize("name", ["repmlpnet_t224", "mixer_s32_224"])
def test_a_size_that_does_not_fit_is_answered_with_the_nearest_that_do(name):
    with pytest.raises(UsageError, match=r"cannot take images of 100×40 pixels.*96×32 and 128×64"):
        create_model(name, image=(100, 40))
