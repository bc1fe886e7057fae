"""Other people's checkpoints: every container and wrapper, and everything that can be wrong with a file."""

import json
import os
import pickle
import sys
import zipfile

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load_file as load_safetensors
from safetensors.torch import save_file
from typer.testing import CliRunner

import mixwise
from foreign_files import fake_yacs, script_arguments, small, small_presets, write
from mixwise import MixwiseError, UsageError
from mixwise.cli import app, main
from mixwise.labels import read_labels
from mixwise.model import build
from mixwise.models import model_config
from mixwise.weights import FORMATS, convert, convert_back, info, load
from mixwise.weights.foreign import read_checkpoint
from mixwise.weights.mapping import to_foreign
from mixwise.weights.names import default_names
from testing_weights import lively

WRAPPERS = ("model", "state_dict", "net", "unknown", "twice", "module", "compiled", "lightning", "averaged", "flax")
KINDS = ("safetensors", "npz", "zip", "legacy")


@pytest.fixture(scope="module", autouse=True)
def presets():
    with small_presets():
        yield


@pytest.fixture(scope="module")
def sample():
    return small()


def same(model, other) -> bool:
    x = other.example(2)
    with torch.no_grad():
        return torch.equal(model(x), other(x))


def call(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == code, result.output
    return result.stdout


def fails(capsys, monkeypatch, *arguments: object) -> tuple[int, str]:
    monkeypatch.setattr("sys.argv", ["mixwise", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0), " ".join(capsys.readouterr().err.split())


# Containers and wrappers


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["timm_resmlp", "deit_resmlp", "google_mixer", "timm_mixer"])
def test_every_container_holds_every_format(kind, form, tmp_path):
    model, state = small(form, "mixer_small" if "mixer" in form else "resmlp_small")
    made = convert(write(tmp_path / "weights", state, kind), tmp_path / "ours.safetensors")
    assert (made.format, made.model.config) == (form, model.config)
    assert same(made.model, model)
    assert same(load(tmp_path / "ours.safetensors"), model)
    assert "every tensor is the file's bit for bit" in made.checks[1]


def wrapped(state: dict, how: str) -> dict:
    stray = {"epoch": 7, "best": torch.tensor(0.5), "optimizer": {"state": {0: torch.ones(2)}}}
    return {
        "model": {"model": {n: torch.nn.Parameter(t) for n, t in state.items()}, **stray, "args": script_arguments()},
        "state_dict": {"state_dict": state, "arch": "x", **stray},
        "net": {"net": state, "step": 3},
        "unknown": {"weights_of_mine": state, "step": 3},
        "twice": {"checkpoint": 1, "model": {"state_dict": state}},
        "module": {f"module.{name}": tensor for name, tensor in state.items()},
        "compiled": {f"_orig_mod.module.{name}": tensor for name, tensor in state.items()},
        "lightning": {"state_dict": {f"model.{name}": tensor for name, tensor in state.items()}},
        "averaged": {"n_averaged": torch.tensor(4), **{f"module.{name}": tensor for name, tensor in state.items()}},
        "flax": {**{f"opt/target/{n}": t for n, t in state.items()}, "opt/state/step": torch.tensor(3)},
    }[how]


@pytest.mark.parametrize("kind", ["zip", "legacy"])
@pytest.mark.parametrize("how", WRAPPERS)
def test_wrappers_of_training_scripts(how, kind, sample, tmp_path):
    model, state = sample
    assert same(convert(write(tmp_path / "w.pth", wrapped(state, how), kind)).model, model)


def test_settings_of_repmlp_are_passed_over(sample, tmp_path):
    model, state = sample
    with fake_yacs() as node:
        config = node({"MODEL": node({"NAME": "x", "SIZES": [1, 2]}), "LR": 0.1})
        path = write(tmp_path / "w.pth", {"model": state, "config": config}, "zip")
    assert same(convert(path).model, model)
    assert "yacs" not in sys.modules


def test_raw_and_averaged_weights(sample, tmp_path):
    model, state = sample
    other = {name: tensor * 1.5 for name, tensor in state.items()}
    path = write(tmp_path / "w.pth", {"state_dict": state, "state_dict_ema": other}, "zip")
    raw, ema = convert(path), convert(path, weights="ema")
    assert same(raw.model, model)
    assert not same(ema.model, model)
    assert (raw.header.weights, ema.header.weights) == ("raw", "ema")
    assert any("raw and averaged" in note and "raw were taken" in note for note in raw.notes)
    only = write(tmp_path / "only.pth", {"model_ema": other}, "zip")
    assert convert(only).header.weights == "ema"
    with pytest.raises(MixwiseError, match="only averaged"):
        convert(only, weights="raw")
    with pytest.raises(MixwiseError, match="no averaged weights"):
        convert(write(tmp_path / "bare.pth", state, "zip"), weights="ema")


def test_several_unnamed_sets_are_not_guessed_among(sample, tmp_path):
    path = write(tmp_path / "w.pth", {"student": sample[1], "teacher": sample[1]}, "zip")
    with pytest.raises(MixwiseError, match=r"several sets of weights \(student, teacher\)"):
        convert(path)


def test_tensors_that_share_a_storage_come_apart(tmp_path):
    big = torch.randn(10, 4)
    path = write(tmp_path / "w.pth", {"a": big[:5], "b": big[5:], "c": big.t(), "d": torch.ones(1).expand(3)}, "zip")
    state = read_checkpoint(path).raw
    state["a"].zero_()
    state["d"][0] = 7
    assert torch.equal(state["c"], big.t())
    assert state["d"].tolist() == [7, 1, 1]


def test_half_and_double_precision(sample, tmp_path):
    model, state = sample
    for dtype, text in ((torch.float16, "exactly"), (torch.bfloat16, "exactly"), (torch.float64, "rounded")):
        given = {name: tensor.to(dtype) for name, tensor in state.items()}
        made = convert(write(tmp_path / f"{dtype}.pth", given, "zip"), tmp_path / f"{dtype}.safetensors")
        assert any(text in note and str(dtype).removeprefix("torch.") in note for note in made.notes)
        written = load_safetensors(tmp_path / f"{dtype}.safetensors")
        assert all(tensor.dtype == torch.float32 for tensor in written.values())
        again = {name: tensor.float() for name, tensor in given.items()}
        back = to_foreign(FORMATS["timm_resmlp"].entries(model.config), written)
        assert all(torch.equal(back[name], again[name]) for name in again)


def test_bfloat16_in_npz(tmp_path):
    _, state = small("google_mixer", "mixer_small")
    half = {name: tensor.bfloat16() for name, tensor in state.items()}
    raw = {name: tensor.view(torch.int16).numpy().view("V2") for name, tensor in half.items()}
    with open(tmp_path / "w.npz", "wb") as file:
        np.savez(file, **raw, note=np.array("text beside the weights"))
    found = read_checkpoint(tmp_path / "w.npz").raw
    assert all(torch.equal(found[name], half[name]) for name in half)
    assert "note" not in found


def test_another_byte_order(tmp_path):
    with open(tmp_path / "w.npz", "wb") as file:
        np.savez(file, a=np.arange(3, dtype=">f4"))
    assert read_checkpoint(tmp_path / "w.npz").raw["a"].tolist() == [0, 1, 2]


def test_paths_with_letters_of_any_kind(sample, tmp_path):
    model, state = sample
    for kind in KINDS:
        folder = tmp_path / f"Gewichte ü 猫 [{kind}]"
        folder.mkdir()
        convert(write(folder / "é.bin", state, kind), folder / "unser é.safetensors")
        assert same(load(folder / "unser é.safetensors"), model)


# What is wrong with a file


def cuts(size: int) -> list[int]:
    return sorted(
        {1, 3, 8, 9, 12, 60, 200, size // 4, size // 2, size - 3000, size - 60, size - 22, size - 5, size - 1}
    )


@pytest.mark.parametrize("kind", KINDS)
def test_truncated_files(kind, sample, tmp_path):
    path = write(tmp_path / "whole", sample[1], kind)
    content = path.read_bytes()
    short = tmp_path / "short.pth"
    for cut in cuts(len(content)):
        short.write_bytes(content[:cut])
        with pytest.raises(MixwiseError, match=r"short\.pth"):
            convert(short, tmp_path / "ours.safetensors")
    assert not (tmp_path / "ours.safetensors").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_bytes_never_end_in_a_traceback(kind, sample, tmp_path):
    content = bytearray(write(tmp_path / "whole", sample[1], kind).read_bytes())
    generator = np.random.default_rng(0)
    damaged = tmp_path / "damaged"
    for _ in range(60):
        place = int(generator.integers(0, min(len(content), 4000)))
        other = bytearray(content)
        other[place : place + 4] = generator.bytes(4)
        damaged.write_bytes(other)
        try:
            convert(damaged)
        except MixwiseError:
            continue


class Evil:
    """Makes a folder when it is unpickled."""

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (self.mark,)


@pytest.mark.parametrize("kind", ["zip", "legacy", "pickle", "npz", "module"])
def test_a_pickle_with_code_in_it_is_never_opened(kind, sample, tmp_path):
    mark, path = tmp_path / "executed", tmp_path / "evil.pth"
    content = {"state_dict": sample[1], "extra": Evil(str(mark))}
    if kind == "pickle":
        path.write_bytes(pickle.dumps({name: tensor.numpy() for name, tensor in sample[1].items()} | content))
    elif kind == "npz":
        with open(path, "wb") as file:
            np.savez(file, a=np.ones(2), b=np.array([Evil(str(mark))], dtype=object))
    elif kind == "module":
        torch.save(torch.nn.Linear(2, 2), path)
    else:
        write(path, content, kind)
    with pytest.raises(MixwiseError, match=r"evil\.pth .*(not opened|never opened)") as caught:
        convert(path, tmp_path / "ours.safetensors")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["evil.pth"]
    if kind in ("zip", "legacy"):
        assert "mkdir" in str(caught.value)
    if kind == "module":
        assert "torch.nn.modules.linear.Linear" in str(caught.value)
    with open(path, "rb") as file:  # it would have been executed
        if kind == "pickle":
            pickle.load(file)
            assert mark.exists()


@pytest.mark.parametrize(
    "name", ["os.system", "builtins.eval", "argparse.FileType", "numpy.load", "yacs.config.load_cfg"]
)
def test_names_beside_the_harmless_ones_are_refused(name, tmp_path):
    module, function = name.rsplit(".", 1)
    code = b"\x80\x02c" + module.encode() + b"\n" + function.encode() + b"\nX\x04\x00\x00\x00echo\x85R."
    path = tmp_path / "evil.pth"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", code)
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/byteorder", "little")
    with pytest.raises(MixwiseError, match="was not opened"):
        convert(path)


def test_files_that_are_something_else(tmp_path):
    script = torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2))
    torch.jit.save(script, tmp_path / "script.pth")
    cases = {
        "empty.pth": (b"", "is empty"),
        "page.pth": (b"\n<!DOCTYPE html><html>", "a web page"),
        "lfs.pth": (b"version https://git-lfs.github.com/spec/v1\noid", "git lfs pull"),
        "text.json": (b'{"weight_map": {}}', "a text file"),
        "keras.h5": (b"\x89HDF\r\n\x1a\n" + b"0" * 90, "HDF5"),
        "one.npy": (b"\x93NUMPY\x01\x00", "a single NumPy array"),
        "packed.gz": (b"\x1f\x8b\x08", "gzip"),
        "noise.bin": (bytes(range(256)), "noise.bin"),
        "zip.zip": (b"PK\x05\x06" + b"\0" * 18, "zip.zip"),
    }
    for name, (content, text) in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(MixwiseError, match=text):
            convert(tmp_path / name)
    with pytest.raises(MixwiseError, match="TorchScript"):
        convert(tmp_path / "script.pth")
    with pytest.raises(MixwiseError, match=r"is a folder: give a file in it, such as .*empty\.pth"):
        convert(tmp_path)
    with pytest.raises(MixwiseError, match="no file at"):
        convert(tmp_path / "nowhere.pth")
    for content, text in (
        ([torch.ones(1)], "holds a list"),
        ({"epoch": 3, "optimizer": {"a": 1}}, "no weights: its entries are epoch, optimizer"),
        ({}, "no weights: its entries are none"),
        ({"a": torch.ones(2, 2).to_sparse()}, "sparse"),
        ({"a": torch.ones(2, dtype=torch.complex64)}, "complex64"),
        ({"a": torch.ones(2), "b": torch.ones(3)}, "none of the known formats .* it has 2 tensors, the first: a, b"),
        ({"a": torch.tensor(1.0)}, "none of the known formats"),
    ):
        with pytest.raises(MixwiseError, match=text):
            convert(write(tmp_path / "w.pth", content, "zip"))


def test_missing_surplus_and_wrong_tensors(sample, tmp_path):
    state = sample[1]

    def after(**changes) -> dict:
        changed = {**state, **{key.replace("__", "."): value for key, value in changes.items()}}
        return {name: tensor for name, tensor in changed.items() if tensor is not None}

    cases = [
        (after(norm__alpha=None), "norm.alpha is missing"),
        (after(surprise=torch.ones(2)), "surprise is not expected"),
        (after(norm__alpha=torch.ones(1, 1, 23)), r"norm.alpha is \(1, 1, 23\), not \(1, 1, 24\)"),
        (after(norm__alpha=torch.tensor(1.0)), r"norm.alpha is \(\), not \(1, 1, 24\)"),
        (after(norm__alpha=torch.ones(1, 1, 24, dtype=torch.int64)), "norm.alpha holds torch.int64"),
        (after(norm__alpha=torch.full((1, 1, 24), torch.nan)), "norm.alpha has infinite or undefined numbers"),
        (after(head__bias=None), "head.bias is missing"),
        (after(head__bias=torch.ones(4)), "head.bias is"),
        # The keys that the format is recognised by are missing: the nearest format says so.
        (after(blocks__0__linear_tokens__weight=None), "blocks.0.linear_tokens.weight is missing"),
    ]
    for content, text in cases:
        with pytest.raises(MixwiseError, match=text):
            convert(write(tmp_path / "w.pth", content, "zip"), tmp_path / "ours.safetensors")
    assert not (tmp_path / "ours.safetensors").exists()


def test_a_file_of_another_model_or_format(sample, tmp_path):
    path = write(tmp_path / "w.pth", sample[1], "zip")
    for arguments, kind, text in (
        (
            {"model": "resmlp_deeper"},
            MixwiseError,
            r"does not fit resmlp_deeper: blocks\.2\.\S+ is missing.*and \d+ more",
        ),
        ({"model": "mixer_small"}, MixwiseError, r"a timm_resmlp file, which can hold resmlp_\*, not mixer_small"),
        ({"model": "resmlp_smal"}, UsageError, "did you mean 'resmlp_small'"),
        ({"source": "timm_mixer"}, MixwiseError, "is not expected|is missing"),
        ({"source": "timm_mixr"}, UsageError, "did you mean 'timm_mixer'"),
        ({"image": (48, 32)}, MixwiseError, None),
        ({"image": 64}, MixwiseError, r"linear_tokens.weight is \(24, 24\), not \(64, 64\)"),
        ({"image": 33}, MixwiseError, "must be multiples of"),
    ):
        if text is None:  # as many tokens: what the user says is believed
            assert convert(path, **arguments).header.config.image == (48, 32)
            continue
        with pytest.raises(kind, match=text):
            convert(path, **arguments)


def test_another_image_size_is_named_and_never_guessed(tmp_path):
    _, state = small(image=(64, 64))
    path = write(tmp_path / "w.pth", state, "zip")
    with pytest.raises(MixwiseError, match="those for 64×64 pixels, or as many tokens: --image-size 64"):
        convert(path)
    made = convert(path, image=64)
    assert made.header.config.image == made.header.preprocess.image == (64, 64)


def test_presets_that_look_alike(tmp_path, monkeypatch):
    from functools import partial

    from mixwise.models.registry import PRESETS

    preset = PRESETS["mixer_small"]
    monkeypatch.setitem(PRESETS, "mixer_tanh", partial(preset, name="mixer_tanh", gelu="tanh"))
    monkeypatch.setitem(PRESETS, "mixer_calm", partial(preset, name="mixer_calm", drop_path=0.1))
    model, state = small("timm_mixer", "mixer_small")
    with pytest.raises(MixwiseError, match="mixer_calm, mixer_small, mixer_tanh alike, which compute different things"):
        convert(write(tmp_path / "w.pth", state, "zip"))
    made = convert(write(tmp_path / "mixer_tanh-0a1b.pth", state, "zip"))
    assert made.header.config.name == "mixer_tanh"
    assert any("the file's name says mixer_tanh" in note for note in made.notes)
    assert convert(tmp_path / "w.pth", model="mixer_small").header.config == model.config
    monkeypatch.delitem(PRESETS, "mixer_tanh")
    made = convert(tmp_path / "w.pth")
    assert any("alike; the first was taken" in note for note in made.notes)


# Classes, channels and the head


def test_classes_and_channels_are_the_files(tmp_path):
    for classes, channels in ((7, 3), (1, 1), (1000, 3), (24, 3)):
        model, state = small(classes=classes, channels=channels)
        made = convert(write(tmp_path / "w.pth", state, "zip"))
        assert (made.header.config.classes, made.header.config.channels) == (classes, channels)
        assert same(made.model, model)
        assert len(made.header.classes) == classes
        assert len(made.header.preprocess.mean) == channels
    model, state = small(channels=12)
    made = convert(write(tmp_path / "w.pth", state, "zip"))
    assert made.header.preprocess is None
    assert any("12 channels" in note for note in made.notes)


def test_a_file_without_a_head(tmp_path):
    model, state = small(classes=0)
    path = write(tmp_path / "w.pth", state, "zip")
    made = convert(path)
    assert made.header.config.classes == 0
    assert same(made.model, model)
    assert any("no head" in note for note in made.notes)
    assert convert(path, new_head=4).header.config.classes == 4


def test_the_head_is_made_anew_only_when_asked(sample, tmp_path):
    model, state = sample
    path = write(tmp_path / "w.pth", state, "zip")
    with pytest.raises(UsageError, match="5 outputs and 3 class names"):
        convert(path, classes=("a", "b", "c"))
    made = convert(path, tmp_path / "ours.safetensors", new_head=3, classes=("a", "b", "c"))
    assert info(tmp_path / "ours.safetensors").classes == ("a", "b", "c")
    assert any("new and untrained, for 3 classes" in note for note in made.notes)
    ours, theirs = made.model.state_dict(), model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours if not name.startswith("head."))
    assert torch.equal(made.model.head.weight, convert(path, new_head=3).model.head.weight)


def test_class_names(tmp_path):
    names, said = default_names(1000)
    assert names[0] == "tench, Tinca tinca"
    assert len(set(names)) == 1000
    assert {n for n in names if n.startswith("crane (")} == {"crane (n02012849)", "crane (n03126707)"}
    assert "imagenet-1k" in said
    for classes in (11221, 11821, 21841, 21842, 21843):
        found, _ = default_names(classes)
        assert len(set(found)) == classes
    assert default_names(3)[0] == ("0", "1", "2")
    cases = {
        "a\nb é\n": ("a", "b é"),
        "a\r\nb\r\n": ("a", "b"),
        '["a", "b"]': ("a", "b"),
        '{"1": "b", "0": "a"}': ("a", "b"),
        '{"0": ["n1", "a"], "1": ["n2", "b"]}': ("a", "b"),
    }
    path = tmp_path / "labels"
    for text, wanted in cases.items():
        path.write_text(text, encoding="utf-8")
        assert read_labels(path).names == wanted
    for text, said in (("a\n\nb\n", "line 2 is empty"), ("a\na\n", "more than once"), ('{"0": "a", "2": "b"}', "JSON")):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(UsageError, match=said):
            read_labels(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="cannot read the labels"):
        read_labels(path)


def test_weights_for_any_size_are_read_for_the_size_that_is_published_with_them(tmp_path):
    """convformer_s18 takes any size, so its shapes do not say that a checkpoint is the one for 384 pixels."""
    model = mixwise.create_model("convformer_s18", head_options={"eps": 1e-6})
    entries = FORMATS["timm_metaformer"].entries(model.config)
    path = tmp_path / "model.safetensors"
    save_file(to_foreign(entries, model.state_dict()), path)
    assert convert(path, compare=False).model.config.image == (224, 224)
    tagged = convert(path, model="convformer_s18.sail_in1k_384", compare=False).header
    assert tagged.config.image == tagged.preprocess.image == (384, 384)
    cfg = {"mean": [0.5] * 3, "std": [0.5] * 3, "input_size": [3, 288, 320]}
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "convformer_s18", "pretrained_cfg": cfg}))
    assert convert(path, compare=False).header.preprocess.image == (288, 320)
    assert convert(path, image=256, compare=False).header.preprocess.image == (256, 256)


def test_the_hint_about_the_size_knows_presets_whose_patch_goes_with_it(tmp_path):
    model = mixwise.create_model("pool_nano", image=64, classes=5)
    torch.save(model.state_dict(), tmp_path / "bare.pth")
    with pytest.raises(MixwiseError, match=r"does not fit pool_nano.*--image-size 64"):
        convert(tmp_path / "bare.pth", model="pool_nano")
    assert convert(tmp_path / "bare.pth", model="pool_nano", image=64).model.config == model.config


def test_what_timm_says_beside_its_files(sample, tmp_path):
    path = write(tmp_path / "model.safetensors", sample[1], "safetensors")
    plain = convert(path).header
    cfg = {"mean": [0.0, 0.0, 0.0], "std": [1.0, 1.0, 1.0], "crop_pct": 0.9, "interpolation": "bilinear"}
    beside = tmp_path / "config.json"
    beside.write_text(json.dumps({"architecture": "resmlp_small", "pretrained_cfg": cfg}))
    made = convert(path)
    pre = made.header.preprocess
    assert (pre.mean, pre.std, pre.crop_pct, pre.filter) == ((0, 0, 0), (1, 1, 1), 0.9, "bilinear")
    assert any("config.json beside the file" in note for note in made.notes)
    beside.write_text(json.dumps({"architecture": "resmlp_deeper", "pretrained_cfg": cfg}))
    with pytest.raises(MixwiseError, match=r"does not fit resmlp_deeper: .* \(the model that \S+config.json names\)"):
        convert(path)
    assert convert(path, model="resmlp_small").header == plain
    larger = cfg | {"input_size": [3, 64, 96]}
    beside.write_text(json.dumps({"architecture": "resmlp_small", "pretrained_cfg": larger}))
    with pytest.raises(MixwiseError, match=r"linear_tokens.weight is"):
        convert(path)  # weights of one size, and the file beside says another
    for text in ('{"architectures": ["ResNet"]}', '{"architecture": "resnet50", "pretrained_cfg": {}}', "[1]", "{"):
        beside.write_text(text)
        assert convert(path).header == plain
    beside.write_text(json.dumps({"architecture": "resmlp_deeper", "pretrained_cfg": cfg}))
    path.rename(tmp_path / "other.safetensors")  # the page is about the file of the usual name
    assert convert(tmp_path / "other.safetensors").header.preprocess == plain.preprocess


# Where to write


def test_places_that_are_not_written(sample, tmp_path):
    state = sample[1]
    path = write(tmp_path / "w.safetensors", state, "safetensors")
    before = path.read_bytes()
    there = tmp_path / "there.safetensors"
    there.write_text("mine")
    (tmp_path / "folder.safetensors").mkdir()
    (tmp_path / "link.safetensors").symlink_to(path)
    cases = [
        (path, UsageError, "is the file that is read"),
        (tmp_path / "link.safetensors", UsageError, "is the file that is read"),
        (there, UsageError, "exists already"),
        (tmp_path / "folder.safetensors", UsageError, "is a folder"),
        (tmp_path / "ours.pth", UsageError, r"must end in \.safetensors"),
        (there / "x.safetensors", MixwiseError, "is not a folder"),
        ("/proc/self/x.safetensors", MixwiseError, "cannot write"),
    ]
    for out, kind, text in cases:
        with pytest.raises(kind, match=text):
            convert(path, out)
    with pytest.raises(UsageError, match="is the file that is read"):
        convert(path, path, overwrite=True)
    assert path.read_bytes() == before
    assert there.read_text() == "mine"
    convert(path, there, overwrite=True)
    convert(path, tmp_path / "new" / "folder" / "ours.safetensors")
    assert info(tmp_path / "new" / "folder" / "ours.safetensors").config.name == "resmlp_small"
    with pytest.raises(MixwiseError, match="is a mixwise file already"):
        convert(there)


# Checks before anything is claimed


def test_a_wrong_table_does_not_pass_the_comparison_with_timm(tmp_path, monkeypatch):
    from dataclasses import replace

    theirs = lively(timm.create_model("resmlp_12_224", num_classes=3))
    path = write(tmp_path / "w.pth", theirs.state_dict(), "zip")
    form = FORMATS["timm_resmlp"]

    def swapped(config):
        table = form.entries(config)
        other = {"blocks.3.norm1.alpha": "blocks.3.norm2.alpha", "blocks.3.norm2.alpha": "blocks.3.norm1.alpha"}
        return [e._replace(foreign=tuple(other.get(name, name) for name in e.foreign)) for e in table]

    made = convert(path, tmp_path / "ours.safetensors")
    assert "equal to timm's resmlp_12_224 on noise: max |Δ|" in made.checks[-1]
    monkeypatch.setitem(FORMATS, "timm_resmlp", replace(form, entries=swapped))
    # What the table confuses in reading it confuses in writing, so the round trip is silent; the outputs are not.
    with pytest.raises(MixwiseError, match=r"timm's resmlp_12_224 gives other outputs .* max \|Δ\|"):
        convert(path, tmp_path / "again.safetensors")
    assert not (tmp_path / "again.safetensors").exists()


def test_a_table_that_does_not_invert_is_refused(sample, tmp_path, monkeypatch):
    from dataclasses import replace

    form = FORMATS["timm_resmlp"]

    def lossy(config):
        return [e._replace(read=lambda x: x.abs()) if e.native == "head.weight" else e for e in form.entries(config)]

    monkeypatch.setitem(FORMATS, "timm_resmlp", replace(form, entries=lossy))
    with pytest.raises(MixwiseError, match=r"head\.weight differs"):
        convert(write(tmp_path / "w.pth", sample[1], "zip"))


# The way back


def test_back_to_timm_and_timm_loads_it(tmp_path):
    cases = {
        "back.safetensors": {"num_classes": 3},
        "back.pth": {"num_classes": 4, "in_chans": 1, "img_size": (64, 96)},
    }
    for name, arguments in cases.items():
        theirs = lively(timm.create_model("resmlp_12_224", **arguments)).eval()
        path = write(tmp_path / "w.pth", theirs.state_dict(), "zip")
        convert(path, tmp_path / "ours.safetensors", image=arguments.get("img_size"), overwrite=True)
        made = convert_back(tmp_path / "ours.safetensors", tmp_path / name, to="timm")
        state = eval(made.use, {"timm": timm}).state_dict()
        assert all(torch.equal(state[key], tensor) for key, tensor in theirs.state_dict().items())
        assert len(made.tensors) == len(state)
        assert "equal to timm's" in made.checks[-1]


def test_back_to_the_authors(tmp_path):
    _, state = small("google_mixer", "mixer_small")
    path = write(tmp_path / "theirs.npz", state, "npz")
    convert(path, tmp_path / "ours.safetensors")
    made = convert_back(tmp_path / "ours.safetensors", tmp_path / "back.npz", to="google_mixer")
    with np.load(path) as wanted, np.load(tmp_path / "back.npz") as found:
        assert set(wanted.files) == set(found.files) == set(made.tensors)
        assert all(np.array_equal(wanted[name], found[name]) for name in wanted.files)


def test_what_cannot_go_back(sample, tmp_path, monkeypatch):
    _, tanh = small("google_mixer", "mixer_small")
    convert(write(tmp_path / "w.npz", tanh, "npz"), tmp_path / "tanh.safetensors")
    convert(write(tmp_path / "w.pth", small("timm_mixer", "mixer_small")[1], "zip"), tmp_path / "erf.safetensors")
    cases = [
        ("tanh", "timm", MixwiseError, "timm has no mixer_small. With `import mixwise.timm`|could not be compared"),
        ("erf", "google_mixer", MixwiseError, "other options than a google_mixer file means: stages"),
        ("erf", "timm_resmlp", MixwiseError, "that format has no such model"),
        ("erf", "tim", UsageError, "did you mean 'timm'"),
        ("nowhere", "timm", MixwiseError, "no model at"),
    ]
    for name, to, kind, text in cases:
        with pytest.raises(kind, match=text):
            convert_back(tmp_path / f"{name}.safetensors", tmp_path / "back.pth", to=to)
    with pytest.raises(UsageError, match=r"must end in \.safetensors or \.pth"):
        convert_back(tmp_path / "erf.safetensors", tmp_path / "back.h5", to="google_mixer")
    assert not (tmp_path / "back.pth").exists()


def test_timm_computes_something_else(tmp_path):
    """Google's GELU is the tanh form and timm's is not: same keys, other outputs, so nothing is written."""
    config = model_config("mixer_s32_224", classes=3, gelu="tanh")
    model = lively(build(config)).eval()
    path = tmp_path / "ours.safetensors"
    mixwise.weights.save(path, model.state_dict(), mixwise.Header(config=config))
    with pytest.raises(MixwiseError, match="gives other outputs"):
        convert_back(path, tmp_path / "back.pth", to="timm")
    assert not (tmp_path / "back.pth").exists()


# The command line


def test_command(sample, tmp_path):
    path = write(tmp_path / "w.pth", {"model": sample[1]}, "zip")
    out = tmp_path / "ours.safetensors"
    (tmp_path / "labels.txt").write_text("a\nb\nc\nd\ne\n")
    text = call("convert", path, "-o", out, "--labels", tmp_path / "labels.txt")
    for part in (
        "timm_resmlp: ResMLP of timm",
        "resmlp_small, 15,749 parameters",
        "3 × 32 × 48",
        "every key accounted for: 30 tensors",
        "bit for bit",
        "finite output",
        f"next:  mixwise predict {out} IMAGES",
    ):
        assert part in text, part
    header = json.loads(call("info", out, "--json"))
    assert header["classes"] == list("abcde")
    assert header["origin"] == "w.pth (timm_resmlp)"
    assert "w.pth (timm_resmlp)" in call("info", out)
    picture = tmp_path / "p.png"
    from PIL import Image

    Image.new("RGB", (60, 40), (200, 30, 30)).save(picture)
    assert json.loads(call("predict", out, picture, "--json"))["label"] in "abcde"


def test_command_lists_the_formats():
    text = " ".join(call("convert", "--list").split())
    assert all(name in text for name in FORMATS)


def test_command_fails_with_one_sentence(sample, tmp_path, capsys, monkeypatch):
    path = write(tmp_path / "w.pth", sample[1], "zip")
    short = tmp_path / "short.pth"
    short.write_bytes(path.read_bytes()[:500])
    out = tmp_path / "ours.safetensors"
    cases = [
        (("convert", short, "-o", out), 1, "cut short"),
        (("convert", tmp_path / "nowhere", "-o", out), 1, "no file at"),
        (("convert", tmp_path, "-o", out), 1, "is a folder: give a file in it"),
        (("convert", path, "-o", out, "--model", "mixer_small"), 1, "can hold"),
        (("convert", path), 2, "needs both"),
        (("convert", path, "-o", path), 2, "must end in"),
        (("convert", path, "-o", out, "--image-size", "3x4x5"), 2, "height x width"),
        (("convert", path, "-o", out, "--image-size", "0"), 2, "height x width"),
        (("convert", path, "-o", out, "--new-head", "0"), 2, "1"),
        (("convert", path, "-o", out, "--weights", "best"), 2, "raw"),
        (("convert", path, "-o", out, "--from", "tim_mixer"), 2, "did you mean 'timm_mixer'"),
        (("convert", path, "-o", out, "--to", "timm", "--model", "x"), 2, "without --model"),
        (("convert", path, "-o", out, "--to", "timm"), 1, "not a readable safetensors file"),
        (("convert", path, "-o", out, "--labels", tmp_path / "no.txt"), 2, "cannot read the labels"),
    ]
    for arguments, code, text in cases:
        got, message = fails(capsys, monkeypatch, *arguments)
        assert got == code, (arguments, message)
        assert text in message, (arguments, message)
        assert "Traceback" not in message
    assert sorted(p.name for p in tmp_path.iterdir()) == ["short.pth", "w.pth"]


def test_the_page_says_what_the_formats_are():
    """Rows of docs/convert.md are those of `--list`; a format that the page does not have yet is only named."""
    import re
    import warnings
    from pathlib import Path

    page = (Path(__file__).parent.parent / "docs" / "convert.md").read_text(encoding="utf-8")
    rows = {row[0]: row for row in re.findall(r"^\| `([a-z0-9_]+)` \| (.+?) \| (`.+`) \|$", page, flags=re.M)}
    assert rows
    for name, about, models in rows.values():
        assert name in FORMATS, f"docs/convert.md lists the format {name}, which is gone"
        assert about == FORMATS[name].about, name
        assert re.findall("`(.+?)`", models) == list(FORMATS[name].presets), name
    if missing := [name for name in FORMATS if name not in rows]:
        warnings.warn(f"docs/convert.md has no row for {', '.join(missing)}", stacklevel=1)
