"""Models that start from weights. Nothing here touches the network: downloads are files of this folder."""

import socket
from pathlib import Path

import pytest
import timm
import torch

import mixwise
from foreign_files import small, small_presets, write
from mixwise import MixwiseError, UsageError, create_model, train
from mixwise.data import export_builtin
from mixwise.models import list_models, model_config
from mixwise.training.run import Run
from mixwise.weights import Header, info, load_file, save, weights_hash
from mixwise.weights import pretrained as module
from mixwise.weights.published import PRETRAINED, Published, preprocessing_of, published, split_tag, tags

URL = "https://weights.example/{}.pth"


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*arguments, **keywords):
        raise OSError("the network is off")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture(scope="module", autouse=True)
def presets():
    with small_presets():
        yield


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """A folder with what is on the internet, and the models."""
    folder = tmp_path_factory.mktemp("internet")
    models = {}
    for name, classes in (("first", 5), ("second", 7)):
        models[name], state = small("deit_resmlp", classes=classes)
        write(folder / f"{name}.pth", state, "zip")
    return folder, models


@pytest.fixture
def internet(released, monkeypatch):
    known = (
        Published("first", URL.format("first"), "ImageNet"),
        Published("second", URL.format("second"), "ImageNet"),
        Published("by_hand", "", "ImageNet", page="https://page.example"),
    )
    monkeypatch.setitem(PRETRAINED, "resmlp_small", known)
    asked = []

    def download(url: str) -> Path:
        asked.append(url)
        return released[0] / Path(url).name

    monkeypatch.setattr(module, "_download", download)
    return asked


def equal(one, other) -> bool:
    x = other.example(2)
    with torch.no_grad():
        return torch.equal(one(x), other(x))


def head_apart(model) -> dict:
    return {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("head")}


def same_body(one, other) -> bool:
    a, b = head_apart(one), head_apart(other)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# By name


def test_fresh_models_stay_fresh():
    model = create_model("resmlp_small", depth=3)
    assert model.training
    assert model.config.stages[0].depth == 3
    assert not equal(model.eval(), create_model("resmlp_small", depth=3).eval())


def test_public_weights_by_default_tag_and_name(internet, released):
    models = released[1]
    for model in (
        create_model("resmlp_small", pretrained=True),
        create_model("resmlp_small", pretrained="first"),
        create_model("resmlp_small.first", pretrained=True),
    ):
        assert not model.training
        assert equal(model, models["first"])
    assert equal(create_model("resmlp_small", pretrained="second"), models["second"])
    assert internet == [URL.format(name) for name in ("first", "first", "first", "second")]
    with pytest.raises(UsageError, match="add pretrained=True, or leave out"):
        create_model("resmlp_small.first")


def test_what_cannot_be_had_says_what_to_download(internet, monkeypatch, capsys):
    def offline(url: str) -> Path:
        raise OSError("no route to host")

    monkeypatch.setattr(module, "_download", offline)
    with pytest.raises(MixwiseError) as caught:
        create_model("resmlp_small", pretrained=True)
    for part in ("resmlp_small.first", "no route to host", URL.format("first"), "pretrained=FILE", "--init FILE"):
        assert part in str(caught.value)
    with pytest.raises(MixwiseError, match=r"by a program: download them from https://page.example, and pass the file"):
        create_model("resmlp_small", pretrained="by_hand")
    with pytest.raises(UsageError, match="no public weights of mixer_small are known"):
        create_model("mixer_small", pretrained=True)
    with pytest.raises(UsageError, match="did you mean 'first'"):
        create_model("resmlp_small", pretrained="frist")
    with pytest.raises(UsageError, match="did you mean 'resmlp_small'"):
        create_model("resmlp_smal", pretrained=True)


def test_really_offline(monkeypatch, tmp_path):
    """Through the real libraries, with the network off."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # or it tries again and again
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    address = "https://huggingface.co/timm/resmlp_12_224.fb_in1k/resolve/main/model.safetensors"
    with pytest.raises(MixwiseError, match=f"Download {address} and pass the file"):
        create_model("resmlp_12_224", pretrained="fb_in1k")
    address = "https://storage.googleapis.com/mixer_models/imagenet1k/Mixer-B_16.npz"
    with pytest.raises(MixwiseError, match=f"the network is off.*Download {address} and pass the file"):
        create_model("mixer_b16_224", pretrained="google_in1k")
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_downloads_go_through_the_libraries_and_are_kept(monkeypatch, tmp_path):
    import huggingface_hub

    asked = []
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    hub = str(tmp_path / "hub")
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *a, **k: asked.append((a, k)) or hub)
    monkeypatch.setattr(torch.hub, "download_url_to_file", lambda url, path, **k: Path(path).write_bytes(b"x"))
    assert module._download(published("mixer_b16_224").url) == tmp_path / "hub"
    name = "timm/mixer_b16_224.goog_in21k_ft_in1k"
    assert asked == [((name, "model.safetensors"), {"revision": "main"})]
    paths = {module._download(published("mixer_b16_224", tag).url) for tag in ("google_in1k", "google_in21k")}
    assert len(paths) == 2  # both are called Mixer-B_16.npz
    assert all(path.read_bytes() == b"x" for path in paths)


def test_the_table_of_public_weights():
    for name, entries in PRETRAINED.items():
        assert len({entry.tag for entry in entries}) == len(entries)
        for entry in entries:
            assert entry.url.startswith("https://") or entry.page.startswith("https://"), name
            assert entry.trained
            if "huggingface.co/timm" in entry.url:
                config = timm.get_pretrained_cfg(f"{name}.{entry.tag}")
                assert config.hf_hub_id == f"timm/{name}.{entry.tag}", name
        if any("huggingface.co/timm" in entry.url for entry in entries[:1]):
            assert timm.get_pretrained_cfg(name).tag == entries[0].tag, name
    assert tags("resmlp_12_224")[:2] == ["fb_in1k", "fb_distilled_in1k"]
    assert "fb_dino" in tags("resmlp_12_224")
    assert published("resmlp_12_224", "fb_dino").url.endswith(
        "timm/resmlp_12_224.fb_dino/resolve/main/model.safetensors"
    )
    assert split_tag("mixer_b16_224") == ("mixer_b16_224", "")
    assert preprocessing_of("mixer_b16_224", "miil_in21k")["mean"] == (0, 0, 0)
    assert preprocessing_of("mixer_b16_224", "google_in1k") is None
    assert set(PRETRAINED) <= set(list_models())


# By path


@pytest.fixture
def native(tmp_path):
    model, _ = small(name="resmlp_small")
    path = tmp_path / "run" / "model.safetensors"
    classes = tuple("abcde")
    save(path, model.state_dict(), Header(config=model.config, classes=classes))
    return model, path


def test_files_of_ours_and_of_others(native, internet, released, tmp_path):
    model, path = native
    for given in (path, str(path), path.parent, str(path.parent)):
        assert equal(create_model("resmlp_small", pretrained=given), model)
    assert equal(create_model("resmlp_small", pretrained=released[0] / "second.pth"), released[1]["second"])
    assert internet == []
    with pytest.raises(MixwiseError, match="no file at"):
        create_model("resmlp_small", pretrained=tmp_path / "nowhere")
    with pytest.raises(MixwiseError, match="no file at"):
        create_model("resmlp_small", pretrained="nowhere.pth")
    with pytest.raises(MixwiseError, match="not a run folder"):
        create_model("resmlp_small", pretrained=released[0])
    with pytest.raises(UsageError, match="holds the weights of resmlp_small, not of resmlp_deeper"):
        create_model("resmlp_deeper", pretrained=path)
    with pytest.raises(MixwiseError, match="does not fit resmlp_deeper"):
        create_model("resmlp_deeper", pretrained=released[0] / "first.pth")


def test_a_tag_wins_over_a_folder_of_its_name(internet, released, monkeypatch, tmp_path):
    (tmp_path / "second").mkdir()
    monkeypatch.chdir(tmp_path)
    assert equal(create_model("resmlp_small", pretrained="second"), released[1]["second"])


def test_folded_weights_are_not_a_start(tmp_path):
    folded = create_model("repmlp_nano", image=(32, 32)).eval().reparameterize()
    save(tmp_path / "m.safetensors", folded.state_dict(), Header(config=folded.config))
    with pytest.raises(UsageError, match=r"re-parameterised, a form for inference that mixwise\.load reads"):
        create_model("repmlp_nano", pretrained=tmp_path / "m.safetensors")


# Changes


def test_another_number_of_classes_is_a_new_head(native):
    model, path = native
    for classes in (3, 0, 5):
        made = create_model("resmlp_small", pretrained=path, classes=classes)
        assert made.config.classes == classes
        assert same_body(made, model)
        assert made(torch.randn(1, 3, 32, 48)).shape == (1, classes or 24)
    assert equal(made, model)


def test_the_presets_own_number_counts_where_the_file_has_another(internet, released):
    made = create_model("resmlp_small", pretrained="second", classes=5)
    assert made.config.classes == 5
    assert same_body(made, released[1]["second"])


def test_changes_that_weights_do_not_fit(native):
    _, path = native
    for changes, text in (
        ({"image": (64, 64)}, "are for 32×48 pixels.*for 64×64, first make a file with `mixwise resize`"),
        ({"image": (48, 32)}, "mixwise resize"),
        ({"channels": 1}, "do not fit resmlp_small with channels=1: stem.proj.weight has another shape"),
        ({"depth": 3}, "do not fit resmlp_small with depth=3"),
        ({"depths": 3}, "did you mean 'depth'"),
    ):
        with pytest.raises(UsageError, match=text):
            create_model("resmlp_small", pretrained=path, **changes)


def test_models_of_any_size_take_any_size(tmp_path):
    model = create_model("pool_nano", image=(32, 32), classes=4).eval()
    save(tmp_path / "m.safetensors", model.state_dict(), Header(config=model.config))
    made = create_model("pool_nano", pretrained=tmp_path / "m.safetensors", image=(64, 96))
    assert made.config.image == (64, 96)
    x = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        assert torch.equal(made(x), model(x))


def test_what_the_file_says_survives_changes(tmp_path):
    """Google's files mean the tanh form of GELU; a drop path rate asked for does not undo that."""
    model, state = small("google_mixer", "mixer_small")
    path = write(tmp_path / "w.npz", state, "npz")
    made = create_model("mixer_small", pretrained=path, drop_path=0.2, classes=2)
    assert made.config.drop_path == 0.2
    assert made.config.stages == model.config.stages
    assert made.config.stages[0].branches[0].options["act"] == "gelu_tanh"
    assert same_body(made, model)


# Training


QUICK = {"recipe.epochs": 2, "recipe.batch_size": 100, "precision": "fp32", "state_every": 0}


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    return train(
        "digits", model="pool_nano", out=tmp_path_factory.mktemp("runs") / "digits", changes=QUICK, device="cpu"
    )


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """The digits 0 to 2 as a folder."""
    folder = tmp_path_factory.mktemp("three")
    for path in export_builtin("digits", folder / "all", split="train", count=300):
        if path.name[0] in "012":
            target = folder / "data" / path.name[0] / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)
    return folder / "data"


def last(run: Path) -> str:
    return weights_hash(load_file(Run(run).last)[0].state_dict())


def test_training_starts_from_weights_and_resumes_like_unbroken(digits, three, tmp_path, capsys):
    from rich.console import Console

    out = tmp_path / "run"
    console = Console(width=200)
    made = train(three, pretrained=digits.run, out=out, changes=QUICK, device="cpu", console=console)
    said = capsys.readouterr().out
    assert "all but the head, which is new for 3 classes (10 classes there)" in said
    config, before = Run(out).read_config(), info(digits.run)
    assert (config.model, config.pretrained) == ("pool_nano", str(digits.run / "model.safetensors"))
    assert config.preprocess.mean == before.preprocess.mean
    assert config.preprocess.image == before.preprocess.image == (8, 8)
    fresh = train(three, model="pool_nano", out=tmp_path / "fresh", changes=QUICK, device="cpu")
    assert made.value > fresh.value
    wanted = last(out)
    again = train(three, pretrained=str(digits.run), out=tmp_path / "again", changes=QUICK, device="cpu")
    assert last(again.run) == wanted
    Run(out).state.unlink()  # as if it had died in the last epoch
    train(resume=out)
    assert last(out) == wanted
    for state in (Run(out).state, Run(out).previous_state):  # as if it had died in the first
        state.unlink()
    train(resume=out)
    assert last(out) == wanted


def test_the_same_classes_keep_their_head(digits, tmp_path, capsys):
    from rich.console import Console

    changes = QUICK | {"recipe.epochs": 1, "recipe.optimizer.lr": 1e-9}
    console = Console(width=200)
    made = train("digits", pretrained=digits.run, out=tmp_path / "run", changes=changes, device="cpu", console=console)
    assert "head and all" in capsys.readouterr().out
    before, after = load_file(digits.run / "model.safetensors")[0], load_file(made.run / "model.safetensors")[0]
    assert torch.allclose(before.head.weight, after.head.weight, atol=1e-6)


def test_a_resumed_run_notices_other_weights(digits, tmp_path):
    copy = tmp_path / "start.safetensors"
    copy.write_bytes((digits.run / "model.safetensors").read_bytes())
    run = Run(train("digits", pretrained=copy, out=tmp_path / "run", changes=QUICK, device="cpu").run)
    model, header = load_file(copy)
    with torch.no_grad():
        next(model.parameters()).add_(1)
    save(copy, model.state_dict(), header)
    for state in (run.state, run.previous_state):
        state.unlink()
    with pytest.raises(MixwiseError, match="are not those that the run was started from"):
        train(resume=run.folder)


def test_training_from_public_weights(internet, released, three, tmp_path):
    """Options of the file, such as an adapted one, are there again when the run goes on."""
    made = train(three, model="resmlp_small", pretrained=True, out=tmp_path / "a", changes=QUICK, device="cpu")
    config = Run(made.run).read_config()
    assert config.pretrained == "resmlp_small.first"
    assert config.preprocess.image == (32, 48)
    assert config.preprocess.channels == 3
    assert config.preprocess.mean == (0.485, 0.456, 0.406)
    wanted = last(made.run)
    Run(made.run).state.unlink()
    train(resume=made.run)
    assert last(made.run) == wanted
    recipe = made.run / "config.toml"
    again = train(three, recipe=recipe, out=tmp_path / "b", changes=QUICK, device="cpu")
    assert last(again.run) == wanted
    for pretrained, model, text in (
        (True, None, "name the model whose public weights are meant"),
        ("yes", "mixer_small", "no public weights of mixer_small"),
        ("resmlp_small.second", "mixer_small", "of resmlp_small, not of mixer_small"),
    ):
        with pytest.raises(UsageError, match=text):
            train(three, model=model, pretrained=pretrained, out=tmp_path / "c")
    assert not (tmp_path / "c").exists()
    larger = train(three, model="resmlp_small", pretrained=True, image=64, out=tmp_path / "c", changes=QUICK)
    assert mixwise.info(larger.run).config.image == (64, 64)


def test_the_flag(internet, three, digits, tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from mixwise.cli import app

    def call(*arguments: object) -> str:
        result = CliRunner().invoke(app, [str(a) for a in arguments])
        assert result.exit_code == 0, (result.output, result.exception)
        return result.stdout

    common = ("--epochs", 1, "--set", "precision=fp32", "--device", "cpu")
    text = call("train", three, "--out", tmp_path / "a", "--model", "resmlp_small", *common, "--pretrained")
    assert "weights  resmlp_small.first, all but the head, which is new for 3 classes (5 classes there)" in text
    text = call("train", three, "--pretrained", "--model", "resmlp_small", "--out", tmp_path / "b", *common)
    assert "weights  resmlp_small.first" in text
    text = call("train", three, "--pretrained", "resmlp_small.second", "--out", tmp_path / "c", *common)
    assert "weights  resmlp_small.second" in text
    text = call("train", three, "--pretrained", digits.run, "--out", tmp_path / "d", *common)
    assert f"weights  {digits.run / 'model.safetensors'}, all but the head" in text
    assert mixwise.info(tmp_path / "d").config.name == "pool_nano"
    assert model_config("resmlp_small").classes == 5
