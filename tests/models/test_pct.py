"""PCT: counts, operations, what a cloud's order and size mean, re-parameterisation, checkpoints, what is refused."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

import mixwise
from mixwise import UsageError, create_model
from mixwise.cli import app
from mixwise.config import PCTConfig
from mixwise.errors import MixwiseError
from mixwise.mixers.external_attention import ExternalAttention
from mixwise.model import build
from mixwise.models import describe, model_config
from mixwise.models.points import PointAttention, farthest_points, nearest_points, sort_points
from mixwise.norms import TokenBatchNorm
from mixwise.weights import FORMATS, Header, convert, convert_back, load_file, save
from mixwise.weights.foreign import read_checkpoint
from mixwise.weights.mapping import to_foreign
from testing_weights import lively

PRESETS = ("pct", "pct_position", "pct_ea", "spct")
SMALL = {"width": 8, "fused": 24, "hidden": (12, 10), "classes": 5}
GROUPS = {"groups": ((16, 6), (9, 4))}


def small(name="pct", **changes):
    """A small model whose answers depend on the cloud: its many layers would wear weights as small as usual down."""
    torch.manual_seed(0)
    groups = {} if name == "spct" else GROUPS
    model = lively(create_model(name, **{**SMALL, **groups, **changes})).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(2 if weight.dim() > 1 else 1)
    return model


def clouds(points=30, batch=2, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, points, 3, generator=generator, dtype=torch.float64)


def shuffled(cloud):
    return cloud[:, torch.randperm(cloud.shape[1], generator=torch.Generator().manual_seed(2))]


def macs(model, points) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.empty(1, points, 3, device=next(model.parameters()).device))
    return counter.get_total_flops() // 2


# --- counts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("pct", 2_876_136), ("pct_position", 2_811_112), ("pct_ea", 2_678_504), ("spct", 1_360_552)],
)
def test_parameters(name, parameters):
    with torch.device("meta"):
        model = build(model_config(name))
    assert sum(p.numel() for p in model.parameters()) == parameters


@pytest.mark.parametrize(("name", "parameters"), [("pct", 148_480), ("pct_ea", 99_072)])
def test_parameters_of_a_layer(name, parameters):
    with torch.device("meta"):
        layer = build(model_config(name)).layers[0]
    assert sum(p.numel() for p in layer.parameters()) == parameters


@pytest.mark.parametrize(("name", "wanted", "queries"), [("pct", 2.238, 4), ("pct_ea", 2.087, 0)])
def test_macs_are_the_authors_without_what_they_compute_twice(name, wanted, queries):
    """Theirs are with the queries, which are the keys, and with the distances as matrix products."""
    with torch.device("meta"):
        model = build(model_config(name)).eval()
    counted = macs(model, 1024)
    distances = 3 * (512 * 1024 + 256 * 512)
    assert (counted + queries * 256 * 256 * 64 + distances) / 1e9 == pytest.approx(wanted, abs=0.0005)
    embed, pairs = 1024 * (3 * 64 + 64 * 64), 512 * 32 * 2 * 128**2 + 256 * 32 * 2 * 256**2
    own = 256 * 256 * (64 + 256 + 256) + 256**2 * (64 + 256) if queries else 256 * 256 * (2 * 64 + 256)
    rest = 256 * (2 * 256**2 + 1280 * 1024) + 1024 * 512 + 512 * 256 + 256 * 40
    assert counted == embed + pairs + 4 * own + rest


@pytest.mark.parametrize(
    ("name", "wanted"), [("pct", 2.220), ("pct_position", 2.203), ("pct_ea", 2.085), ("spct", 1.377)]
)
def test_macs_of_the_table(name, wanted):
    with torch.device("meta"):
        model = build(model_config(name)).eval()
    assert macs(model, 1024) / 1e9 == pytest.approx(wanted, abs=0.0005)


# --- sampling ---------------------------------------------------------------------------------------------------------


def test_farthest_points_against_a_loop():
    points = clouds(20)
    found = farthest_points(points, 7)
    for cloud, chosen in zip(points, found.tolist(), strict=True):
        wanted = [0]
        while len(wanted) < 7:
            gaps = [min(float((p - cloud[i]).norm()) for i in wanted) for p in cloud]
            wanted.append(gaps.index(max(gaps)))
        assert chosen == wanted


def test_nearest_points_against_a_loop():
    points = clouds(20)
    found = nearest_points(points, points[:, 3:8], 4)
    for cloud, near in zip(points, found.tolist(), strict=True):
        for centre, chosen in zip(cloud[3:8], near, strict=True):
            gaps = (cloud - centre).norm(dim=1).tolist()
            assert set(chosen) == set(sorted(range(20), key=gaps.__getitem__)[:4])


def test_sorting_is_by_x_then_y_then_z():
    points = torch.randint(3, (2, 40, 3), generator=torch.Generator().manual_seed(0)).float()
    assert sort_points(points).tolist() == [sorted(cloud) for cloud in points.tolist()]


def test_distances_far_from_the_origin_stay_exact():
    """Squared norms minus products would lose them to rounding."""
    points = clouds(50).float() + 1000
    assert torch.equal(nearest_points(points, points[:, :9], 5), nearest_points(points - 1000, points[:, :9] - 1000, 5))


# --- the network ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRESETS)
def test_the_order_of_the_points_does_not_matter(name):
    model, x = small(name), clouds()
    torch.testing.assert_close(model(shuffled(x)), model(x), atol=1e-12, rtol=1e-12)
    assert not torch.allclose(model(x), model(2 * x), atol=0.01)
    assert (model(x)[0] - model(x)[1]).abs().max() > 0.01


@pytest.mark.parametrize("name", ["pct", "pct_ea"])
def test_ties_do_not_bring_the_order_back(name):
    """On a lattice most distances are equal, and some points are there twice."""
    lattice = torch.cartesian_prod(*[torch.arange(4.0)] * 3).double()[None]
    x = torch.cat((lattice, lattice[:, :5]), 1)
    model = small(name)
    torch.testing.assert_close(model(shuffled(x)), model(x), atol=1e-12, rtol=1e-12)


def test_order_given_starts_at_the_first_point():
    model, x = small(order="given"), clouds()
    assert not torch.allclose(model(shuffled(x)), model(x), atol=1e-4)
    rest = torch.cat((x[:, :1], shuffled(x[:, 1:])), 1)
    torch.testing.assert_close(model(rest), model(x), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("name", PRESETS)
def test_clouds_of_a_batch_do_not_see_each_other(name):
    model, x = small(name), clouds(batch=3)
    for i in range(3):
        torch.testing.assert_close(model(x[i : i + 1])[0], model(x)[i], atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("points", [6, 7, 13, 16, 17, 101])
def test_any_number_of_points_from_that_of_the_neighbours(points):
    model = small()
    assert model(clouds(points)).shape == (2, 5)
    assert model.features(clouds(points)).shape == (2, min(points, 9), 24)
    assert small("spct").features(clouds(points)).shape == (2, points, 24)
    assert model(clouds(points)[:, [0] * points]).isfinite().all()  # one place, many times


@pytest.mark.parametrize("points", [1, 5])
def test_too_few_points_are_refused(points):
    with pytest.raises(UsageError, match=f"at least 6 points, as many as it reads neighbours, and was given {points}"):
        small()(clouds(points))
    assert small("spct")(clouds(points)).shape == (2, 5)


@pytest.mark.parametrize("shape", [(2, 3, 30), (30, 3), (2, 30, 4), (2, 3, 8, 8)])
def test_other_shapes_are_refused(shape):
    with pytest.raises(UsageError, match=r"pct takes clouds \(b, n, 3\) of coordinates, got torch.float32 of shape"):
        small()(torch.zeros(shape))


def test_whole_numbers_are_refused():
    with pytest.raises(UsageError, match=r"clouds \(b, n, 3\) of coordinates, got torch.int64 of shape \(2, 30, 3\)"):
        small()(torch.zeros(2, 30, 3, dtype=torch.long))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"groups": ((9, 4), (5, 10))}, "a grouping reads 10 neighbours where 9 points are left"),
        ({"groups": (), "order": "given"}, "order is about the sampling in groups"),
        ({"groups": (), "width": 6}, "a multiple of 4 channels, got 6"),
        ({"groups": ((9, 0),)}, "greater than 0"),
        ({"grups": ()}, "did you mean 'groups'"),
        ({"image": (32, 32)}, "unknown change 'image'"),
    ],
)
def test_wrong_options_are_refused(changes, said):
    with pytest.raises(UsageError, match=said):
        create_model("pct", **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"classes": 6},
        {"width": 12},
        {"groups": ((16, 6), (8, 4))},
        {"groups": ((16, 6), (9, 5))},
        {"groups": ((16, 6),)},
        {"order": "given"},
        {"positions": True},
        {"depth": 3},
        {"memory": 7},
        {"offset": False},
        {"eps": 0.1},
        {"fused": 20},
        {"pool": "max_mean"},
        {"hidden": (12, 9)},
        {"head_act": "relu"},
    ],
    ids=str,
)
def test_options_change_the_result(changes):
    plain, other = small()(clouds()), small(**changes)(clouds())
    assert plain.shape != other.shape or not torch.allclose(plain, other, atol=1e-6)


@pytest.mark.parametrize("change", [{"offset": True}, {"memory": 9}, {"eps": 0.1}], ids=str)
def test_options_of_external_attention_change_the_result(change):
    assert not torch.allclose(small("pct_ea")(clouds()), small("pct_ea", **change)(clouds()), atol=1e-6)


def test_dropout_is_of_the_head_in_training():
    x = clouds()
    model = small(dropout=0.5).train()
    assert not torch.allclose(model(x), model(x))
    model = small(dropout=0.0).train()
    torch.testing.assert_close(model(x), model(x))


def test_without_classes_the_pooled_features():
    model, x = small(classes=0), clouds()
    torch.testing.assert_close(model(x), model.features(x).amax(1))
    assert small(classes=0, pool="max_mean")(x).shape == (2, 48)


def test_rows_of_the_attention_sum_to_one_and_the_softmax_is_over_the_written_points():
    x = clouds(11)
    module = lively(PointAttention(8)).double()
    points = torch.cat((x, x, x[:, :, :2]), 2)
    key, value = module.key(points), module.value(points)
    seen = (key @ key.mT).softmax(1)  # over the points that are written to
    wanted = (seen / seen.sum(2, keepdim=True)) @ value
    torch.testing.assert_close(module(points, (11,)), wanted)
    reverse = (key @ key.mT).softmax(2)
    assert not torch.allclose(module(points, (11,)), reverse / reverse.sum(1, keepdim=True) @ value)


@pytest.mark.parametrize("name", PRESETS)
def test_gradients_reach_every_parameter_and_the_coordinates(name):
    model, x = small(name), clouds().requires_grad_()
    model(x).square().sum().backward()
    assert [n for n, p in model.named_parameters() if not p.grad.abs().max() > 0] == []
    assert (x.grad.abs().amax(2) > 0).any(1).all()


@pytest.mark.parametrize("name", PRESETS)
def test_only_biases_in_front_of_batch_norms_are_idle_in_training(name):
    """As in the authors' code; the value's bias is among them, for the attention's rows sum to one.

    So is the shift in front of the maximum, where all maxima are positive.
    """
    model = small(name, dropout=0.0, eps=None).train()
    model(clouds(batch=4)).square().sum().backward()
    idle = {n for n, p in model.named_parameters() if not p.grad.abs().max() > 1e-10}
    wanted = {f"layers.{i}.out.linear.bias" for i in range(4)} | {"head.3.linear.bias"}
    if name != "pct_ea":
        wanted |= {f"layers.{i}.attention.value.bias" for i in range(4)}
    assert idle - {"fuse.0.norm.bias"} == wanted


def test_a_single_cloud_is_too_few_to_train_on():
    with pytest.raises(UsageError, match="use a larger batch"):
        small().train()(clouds(batch=1))


def test_half_precision():
    model, x = small().bfloat16(), clouds().bfloat16()
    assert model(x).dtype == torch.bfloat16
    assert torch.allclose(model(x).double(), small()(x.double()), atol=0.1)


def test_export_with_a_dynamic_batch():
    model = small().float()
    x = clouds(batch=3).float()
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},)).module()
    with torch.no_grad():
        for n in (1, 2):
            torch.testing.assert_close(program(x[:n]), model(x[:n]), atol=1e-5, rtol=1e-5)


# --- re-parameterised, files, verbs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("changes", [{}, {"offset": False}, {"memory": 7}], ids=str)
def test_reparameterized_is_equal_and_has_no_norm_left(name, changes):
    model, x = small(name, **changes), clouds()
    before = model(x).detach()
    folded = model.train().reparameterize()
    torch.testing.assert_close(folded(x), before, atol=1e-11, rtol=1e-9)
    torch.testing.assert_close(model.eval()(x), before, atol=0, rtol=0)
    assert not [m for m in folded.modules() if isinstance(m, TokenBatchNorm)]
    fresh = build(folded.config).double().eval()
    fresh.load_state_dict(folded.state_dict())
    assert torch.equal(fresh(x), folded(x))
    assert torch.equal(folded.reparameterize()(x), folded(x))


@pytest.mark.parametrize(("name", "wanted"), [("pct", 1.452), ("pct_ea", 1.251)])
def test_reparameterized_costs_less(name, wanted):
    with torch.device("meta"):
        assert macs(build(model_config(name)).reparameterize(), 1024) / 1e9 == pytest.approx(wanted, abs=0.0005)


@pytest.mark.parametrize("name", PRESETS)
def test_save_and_load(name, tmp_path):
    model, path = small(name).float(), tmp_path / "points.safetensors"
    for one in (model, model.reparameterize()):
        save(path, one.state_dict(), Header(task=one.config.task, config=one.config, classes=tuple("abcde")))
        loaded, header = load_file(path)
        assert (header.task, header.config) == ("points", one.config)
        assert type(header.config) is PCTConfig
        with torch.no_grad():
            assert torch.equal(loaded(clouds().float()), one(clouds().float()))
    assert PCTConfig.from_toml(model.config.to_toml()) == model.config


def test_info_and_list(tmp_path):
    model, path = small().float(), tmp_path / "points.safetensors"
    save(path, model.state_dict(), Header(task="points", config=model.config, classes=("bed", "cone", "cup", "d", "e")))
    said = CliRunner().invoke(app, ["info", str(path)]).output
    assert "pct, trainable" in said
    assert "1024 × 3 (points × coordinates), or another number from 6 of points" in said
    assert "5: bed, cone, cup, d, e" in said
    assert model_config("spct").input == "1024 × 3 (points × coordinates), or another number of points"
    assert set(PRESETS) <= set(mixwise.list_models())
    assert describe("pct") == (2_876_136, PointAttention.__doc__.splitlines()[0])
    assert describe("pct_ea") == (2_678_504, ExternalAttention.__doc__.splitlines()[0])


def test_verbs_for_classifiers_of_images_refuse_it(tmp_path):
    model, path = small(), tmp_path / "points.safetensors"
    save(path, model.state_dict(), Header(task="points", config=model.config, classes=tuple("abcde")))
    with pytest.raises(UsageError, match="a model to classify point clouds, and this is for classifiers of images"):
        mixwise.Predictor(path)
    for name, what in (("pct", "classify point clouds"), ("gmlp_text", "complete texts")):
        with pytest.raises(UsageError, match=f"{name} is a model to {what}, and training is for classifiers of images"):
            mixwise.train("digits", model=name, out=tmp_path / "run")
    with pytest.raises(UsageError, match="does not take images"):
        mixwise.reparam(path, tmp_path / "fused.safetensors")
    with pytest.raises(UsageError, match="no model of images"):
        mixwise.resize(path, 64)
    assert [p.name for p in tmp_path.iterdir()] == ["points.safetensors"]


# --- checkpoints of the port ------------------------------------------------------------------------------------------


def port(state, cloud, *, positions):
    """The port's network in evaluation, written from its keys: maps (b, c, n), sampling from the first point on."""

    def norm(x, name):
        mean, var = state[f"{name}.running_mean"], state[f"{name}.running_var"]
        return F.batch_norm(x, mean, var, state[f"{name}.weight"], state[f"{name}.bias"])

    def conv(x, name):
        return F.conv1d(x, state[f"{name}.weight"], state.get(f"{name}.bias"))

    def group(x, points, name, count, neighbours):
        outputs, kept = [], []
        for features, cloud in zip(x, points, strict=True):
            chosen = [0]
            while len(chosen) < count:
                chosen.append(int(torch.stack([(cloud - cloud[i]).norm(dim=1) for i in chosen]).amin(0).argmax()))
            rows = []
            for i in chosen:
                near = (cloud - cloud[i]).norm(dim=1).argsort()[:neighbours]
                own = features[:, i : i + 1].expand(-1, neighbours)
                y = torch.cat((features[:, near] - own, own))[None]
                for n in (1, 2):
                    y = norm(conv(y, f"{name}.conv{n}"), f"{name}.bn{n}").relu()
                rows.append(y.amax(2)[0])
            outputs.append(torch.stack(rows, 1))
            kept.append(cloud[chosen])
        return torch.stack(outputs), torch.stack(kept)

    x = norm(conv(cloud.mT, "conv1"), "bn1").relu()
    x = norm(conv(x, "conv2"), "bn2").relu()
    x, points = group(x, cloud, "gather_local_0", 16, 6)
    local, points = group(x, points, "gather_local_1", 9, 4)
    x = norm(conv(local, "pt_last.conv1"), "pt_last.bn1").relu()
    if not positions:
        x = norm(conv(x, "pt_last.conv2"), "pt_last.bn2").relu()
    outputs = []
    for i in range(1, 5):
        name = f"pt_last.sa{i}"
        x = x + conv(points.mT, "pt_last.pos_xyz") if positions else x
        weights = (conv(x, f"{name}.q_conv").mT @ conv(x, f"{name}.k_conv")).softmax(2)
        weights = weights / (1e-9 + weights.sum(1, keepdim=True))
        y = x - conv(x, f"{name}.v_conv") @ weights
        x = x + norm(conv(y, f"{name}.trans_conv"), f"{name}.after_norm").relu()
        outputs.append(x)
    x = F.leaky_relu(norm(conv(torch.cat((*outputs, local), 1), "conv_fuse.0"), "conv_fuse.1"), 0.2).amax(2)
    x = F.leaky_relu(norm(F.linear(x, state["linear1.weight"]), "bn6"), 0.2)
    x = F.leaky_relu(norm(F.linear(x, state["linear2.weight"], state["linear2.bias"]), "bn7"), 0.2)
    return F.linear(x, state["linear3.weight"], state["linear3.bias"])


@pytest.mark.parametrize("name", ["pct", "pct_position"])
def test_outputs_are_those_of_the_port(name):
    model, x = small(name, order="given"), clouds()
    state = to_foreign(FORMATS["pct"].entries(model.config), model.state_dict())
    torch.testing.assert_close(model(x), port(state, x, positions=name == "pct_position"), atol=1e-10, rtol=1e-9)


@pytest.mark.parametrize("name", ["pct", "pct_position"])
def test_convert_and_back(name, tmp_path):
    config = model_config(name, classes=10)
    state = to_foreign(FORMATS["pct"].entries(config), lively(build(config)).state_dict())
    assert state["pt_last.sa3.q_conv.weight"].shape == (64, 256, 1)
    assert state["conv_fuse.0.weight"].shape == (1024, 1280, 1)
    torch.save({f"module.{key}": tensor for key, tensor in state.items()}, tmp_path / "model.t7")
    made = convert(tmp_path / "model.t7", tmp_path / "a.safetensors")
    assert (made.format, made.header.config, made.header.task) == ("pct", config, "points")
    convert_back(tmp_path / "a.safetensors", tmp_path / "b.safetensors", to="pct")
    written = read_checkpoint(tmp_path / "b.safetensors").raw
    assert written.keys() == state.keys()
    assert all(torch.equal(written[key], tensor) for key, tensor in state.items())


def test_queries_of_their_own_are_refused(tmp_path):
    config = model_config("pct")
    state = to_foreign(FORMATS["pct"].entries(config), build(config).state_dict())
    state["pt_last.sa2.q_conv.weight"] = state["pt_last.sa2.q_conv.weight"] + 1
    torch.save(state, tmp_path / "model.t7")
    with pytest.raises(MixwiseError, match=r"pt_last.sa2.q_conv.weight and .* are not the same"):
        convert(tmp_path / "model.t7", tmp_path / "a.safetensors")
