"""timm's own tools on the models that timm lacks."""

import copy
import pickle
import subprocess
import sys

import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.data import create_dataset, create_loader, create_transform, resolve_model_data_config
from timm.optim import create_optimizer_v2
from timm.utils import CheckpointSaver, ModelEmaV3, accuracy

import mixwise
from mixwise import MixwiseError, UsageError, create_model
from mixwise.config import VisionConfig
from mixwise.data import export_builtin
from mixwise.models import list_models, model_config
from mixwise.weights import FORMATS, Header, convert, save
from mixwise.weights.mapping import to_foreign
from mixwise.weights.published import PRETRAINED, Published
from testing_weights import lively

SMALL = {
    "resmlp_12_p8_224": {"img_size": (32, 48), "depth": 2, "dim": 24},
    "mixer_h14_224": {"img_size": (28, 42), "depth": 2, "dim": 24, "head_std": 0.02},
    "pool_nano": {"img_size": (32, 48)},
    "token_mlp_compact_nano": {"img_size": (32, 48)},
    "identityformer_s12": {"img_size": (64, 96)},
    "repmlp_cifar": {"img_size": (32, 64)},
}
"""Models of several kinds, made small through their own keywords."""
FAMILIES = (
    *("repmlpnet_t224", "repmlp_res50_light_224", "ff_tiny_16_224", "attention_only_tiny_16_224", "amlp_ti16_224"),
    *("eamlp_7_224", "t2t_ea_7_224", "t2t_vit_7_224", "randformer_s12", "metaformer_pppa_s12", "gmlp_ti16_224_paper"),
)
"""Of every family that timm lacks, one as it is."""


@pytest.fixture(scope="module", autouse=True)
def plugin():
    import mixwise.timm

    return mixwise.timm


def make(name: str, **arguments) -> torch.nn.Module:
    return timm.create_model(name, **{**SMALL[name], **arguments})


def batch(name: str, channels: int = 3) -> torch.Tensor:
    return torch.randn(2, channels, *SMALL[name]["img_size"])


def test_every_preset_that_timm_lacks_is_registered_and_none_that_it_has(plugin):
    assert plugin.register() == []
    homes = {name: timm.model_entrypoint(name).__module__ for name in list_models() if timm.is_model(name)}
    assert all(homes[name] == "mixwise.timm" for name in SMALL)
    assert homes["resmlp_12_224"] == "timm.models.mlp_mixer"
    for name in list_models():
        config = model_config(name)
        assert (name in homes) == (plugin.fits(config) or homes.get(name, "").startswith("timm.")), name
        if homes.get(name) == "mixwise.timm":
            assert isinstance(config, VisionConfig)
            assert timm.get_pretrained_cfg(name).input_size == (config.channels, *config.image)
    assert "pool_nano" in timm.list_models("pool_*")


@pytest.mark.parametrize("name", SMALL)
def test_timms_interface(name):
    model = make(name, num_classes=7, in_chans=1, drop_path_rate=0.0, drop_rate=0.0, global_pool="").eval()
    x = batch(name, 1)
    assert isinstance(model, mixwise.model.Model)
    with torch.no_grad():
        features = model.forward_features(x)
        pooled = model.forward_head(features, pre_logits=True)
        assert pooled.shape == (2, model.num_features) == (2, model.head_hidden_size)
        assert torch.equal(model.forward_head(features), model(x))
        assert model(x).shape == (2, model.num_classes) == (2, 7)
        assert model.get_classifier() is model.head
        model.reset_classifier(3)
        assert model(x).shape == (2, model.num_classes) == (2, 3)
        model.reset_classifier(0)
        assert torch.equal(model(x), pooled)
        assert model.num_classes == 0
    bare = make(name, num_classes=0).eval()
    assert bare(batch(name)).shape == (2, bare.num_features)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_on_shapes(name):
    with torch.device("meta"):
        model = timm.create_model(name, num_classes=7).eval()
        images = model.example(2)
        assert model.forward_head(model.forward_features(images)).shape == (2, 7)
        net = timm.create_model(name, features_only=True).eval()
        maps = net(images)
    assert net.feature_info.channels() == [m.shape[1] for m in maps]
    assert net.feature_info.reduction() == [images.shape[2] // m.shape[2] for m in maps]
    last = model.get_submodule(model.pretrained_cfg["classifier"])
    assert last.out_features == 7


@pytest.mark.parametrize("name", SMALL)
def test_the_same_weights_as_ours_and_the_same_outputs(name, tmp_path):
    model = lively(make(name, num_classes=7)).eval()
    ours = mixwise.models.create_model(name, **renamed(SMALL[name]), classes=7).eval()
    ours.load_state_dict(model.state_dict())
    x = batch(name)
    with torch.no_grad():
        assert torch.equal(ours(x), model(x))
    # A file of ours is a checkpoint of timm's, and the other way round.
    save(tmp_path / "ours.safetensors", ours.state_dict(), Header(config=ours.config))
    again = make(name, num_classes=7, checkpoint_path=str(tmp_path / "ours.safetensors")).eval()
    with torch.no_grad():
        assert torch.equal(again(x), model(x))
    save_file(model.state_dict(), tmp_path / "timm.safetensors")
    make(name, num_classes=7).load_state_dict(timm.models.load_state_dict(tmp_path / "timm.safetensors"), strict=True)
    with pytest.raises(RuntimeError, match="size mismatch"):
        make(name, num_classes=8, checkpoint_path=str(tmp_path / "ours.safetensors"))


def renamed(arguments: dict) -> dict:
    return {{"img_size": "image"}.get(key, key): value for key, value in arguments.items()}


@pytest.mark.parametrize("name", SMALL)
def test_features_only(name):
    net = make(name, features_only=True).eval()
    whole = make(name).eval()
    whole.load_state_dict(net.model.state_dict(), strict=False)
    x = batch(name)
    with torch.no_grad():
        maps = net(x)
        assert all(torch.equal(a, b) for a, b in zip(maps, whole.pyramid(x), strict=True))
    assert net.feature_info.channels() == [m.shape[1] for m in maps]
    assert net.feature_info.reduction() == [x.shape[2] // m.shape[2] for m in maps]
    last = make(name, features_only=True, out_indices=(-1,)).eval()
    assert [m.shape for m in last(x)] == [maps[-1].shape]
    assert last.feature_info.channels() == [maps[-1].shape[1]]
    final, inner = whole.forward_intermediates(x, indices=1)
    assert len(inner) == 1
    assert final.shape == whole.forward_features(x).shape
    assert whole.forward_intermediates(x, output_fmt="NHWC", intermediates_only=True)[0].shape[-1] == maps[0].shape[1]
    with pytest.raises(UsageError, match="before the norm"):
        whole.forward_intermediates(x, norm=True)


def test_arguments_without_effect_are_refused():
    for arguments, text in (
        ({"depht": 2}, "did you mean 'depth'"),
        ({"drop_rate": 0.1}, "no dropout"),
        ({"global_pool": "max"}, "pools in one way"),
        ({"img_size": 33}, "nearest that work are 32×32 and"),
    ):
        with pytest.raises(UsageError, match=text):
            timm.create_model("resmlp_12_p8_224", **arguments)
    model = make("resmlp_12_p8_224")
    with pytest.raises(UsageError, match="pools in one way"):
        model.reset_classifier(3, "avg")
    with pytest.raises(UsageError, match="no gradient checkpointing"):
        model.set_grad_checkpointing()
    model.set_grad_checkpointing(False)
    torch.manual_seed(0)
    x = batch("resmlp_12_p8_224")
    dropping = make("resmlp_12_p8_224", drop_path_rate=0.9, layer_scale=1.0).train()
    assert not torch.equal(dropping(x), dropping(x))


def test_preprocessing():
    model = timm.create_model("mixer_h14_224", depth=1)
    config = resolve_model_data_config(model)
    assert config["mean"] == (0.5, 0.5, 0.5)
    assert config["crop_pct"] == 0.875
    assert config["input_size"] == (3, 224, 224)
    assert model.default_cfg == model.pretrained_cfg
    assert (model.pretrained_cfg["classifier"], model.pretrained_cfg["num_classes"]) == ("head", 1000)
    assert create_transform(**config) is not None
    assert resolve_model_data_config(make("pool_nano"))["mean"] == (0.485, 0.456, 0.406)


@pytest.mark.parametrize("name", SMALL)
def test_copies_pickles_and_compiles(name):
    model = lively(make(name, num_classes=3)).eval()
    x = batch(name)
    with torch.no_grad():
        wanted = model(x)
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), ModelEmaV3(model).module):
            assert torch.equal(other(x), wanted)
        assert torch.allclose(torch.compile(model, backend="eager", fullgraph=True)(x), wanted)
    fused = model.reparameterize()
    assert torch.allclose(fused(x), wanted, atol=1e-5)


def test_another_process_unpickles_a_model(tmp_path):
    torch.save(make("pool_nano"), tmp_path / "model.pt")
    code = "import sys, torch, mixwise.timm; torch.load(sys.argv[1], weights_only=False)"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "model.pt")], check=True)


def test_optimisers_know_the_layers():
    model = make("mixer_h14_224", depth=3)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1.0, weight_decay=0.05, layer_decay=0.5)
    scales = {group["lr_scale"] for group in optimizer.param_groups}
    assert len(scales) >= 4  # stem, three blocks, rest
    assert sum(len(g["params"]) for g in optimizer.param_groups) == len(list(model.parameters()))
    sized = timm.create_model("attention_nano", img_size=32)
    named = dict(sized.named_parameters())
    assert sized.no_weight_decay() <= set(named)


def test_weights_of_other_people(tmp_path, monkeypatch):
    """Through timm's `pretrained`: a file of the authors, ours, another number of classes."""
    config = model_config("resmlp_12_p8_224", image=(32, 48), depth=2, dim=24)
    ours = lively(create_model("resmlp_12_p8_224", image=(32, 48), depth=2, dim=24))
    state = to_foreign(FORMATS["deit_resmlp"].entries(config), ours.state_dict())
    made = make("resmlp_12_p8_224")
    made.load_state_dict(mixwise.timm.checkpoint_filter_fn(dict(made.state_dict()), made))
    with pytest.raises(MixwiseError, match="does not fit resmlp_12_p8_224"):  # no preset is so small
        mixwise.timm.checkpoint_filter_fn(state, made)
    native = tmp_path / "pool.safetensors"
    source = lively(create_model("pool_nano", image=(32, 48), classes=5))
    save(native, source.state_dict(), Header(config=source.config))
    for classes in (5, 3):
        model = make("pool_nano", num_classes=classes)
        model.load_pretrained(str(native))
        kept = [n for n in model.state_dict() if classes == 5 or not n.startswith("head")]
        assert all(torch.equal(model.state_dict()[n], source.state_dict()[n]) for n in kept)
    model = make(
        "pool_nano", num_classes=5, pretrained=True, pretrained_cfg_overlay={"file": str(native), "num_classes": 5}
    )
    assert torch.equal(model.head.weight, source.head.weight)
    with pytest.raises(RuntimeError, match="No pretrained weights"):
        make("pool_nano", pretrained=True)


def test_public_weights_are_in_timms_list(plugin, monkeypatch):
    known = (Published("mine", "https://weights.example/w.pth", "ImageNet"), Published("by_hand", "", "", page="x"))
    monkeypatch.setitem(PRETRAINED, "mixer_s32_224", known)
    cfgs = plugin._cfgs(model_config("mixer_s32_224"))
    assert list(cfgs) == ["mixer_s32_224.mine"]
    assert cfgs["mixer_s32_224.mine"]["url"] == "https://weights.example/w.pth"
    assert cfgs["mixer_s32_224.mine"]["custom_load"]


def test_timms_training_and_validation(tmp_path):
    """The calls of timm's train.py and validate.py, in their order, on a folder of pictures; then back to mixwise."""
    for split, count in (("train", 200), ("val", 100)):
        for path in export_builtin("digits", tmp_path / "flat", split=split, count=count):
            target = tmp_path / split / path.name[0] / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)
    torch.manual_seed(0)
    arguments = {"in_chans": 3, "num_classes": 10, "img_size": 32}
    model = timm.create_model("pool_compact_nano", pretrained=False, scriptable=False, drop_rate=0.0, **arguments)
    config = resolve_model_data_config(model, {"input_size": (3, 32, 32)})
    common = {"input_size": (3, 32, 32), "mean": config["mean"], "std": config["std"], "use_prefetcher": False}

    def load(split: str, training: bool):
        dataset = create_dataset("", root=str(tmp_path / split), split=split)
        return create_loader(dataset, batch_size=20, is_training=training, num_workers=0, no_aug=True, **common)

    optimizer = create_optimizer_v2(model, opt="adamw", lr=3e-3, weight_decay=0.01)
    saver = CheckpointSaver(model, optimizer, checkpoint_dir=str(tmp_path), recovery_dir=str(tmp_path))
    for epoch in range(3):
        model.train()
        for x, target in load("train", True):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), target).backward()
            optimizer.step()
        saver.save_checkpoint(epoch, metric=float(epoch))
    path = tmp_path / "model_best.pth.tar"
    again = timm.create_model("pool_compact_nano", checkpoint_path=str(path), **arguments).eval()
    hits = [accuracy(again(x), target, topk=(1, 5)) for x, target in load("val", False)]
    assert sum(float(top1) for top1, _ in hits) / len(hits) > 30
    made = convert(path, tmp_path / "ours.safetensors", model="pool_compact_nano", image=32)
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(made.model(x), again(x))
