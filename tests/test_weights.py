"""Model files: self-describing, strict, and clear about what is wrong with them."""

import json

import pytest
import torch
from safetensors.torch import save_file

import mixwise
from mixwise import MixwiseError, create_model
from mixwise.weights import Header, info, load, load_file, resolve, save, weights_hash
from mixwise.weights.native import KEY, read_header


@pytest.fixture
def model():
    torch.manual_seed(0)
    return create_model("pool_nano", image=(16, 16), channels=1, classes=3).eval()


@pytest.fixture
def file(model, tmp_path):
    path = tmp_path / "model.safetensors"
    save(
        path, model.state_dict(), Header(config=model.config, classes=("1", "10", "猫"), metrics={"val_accuracy": 0.5})
    )
    return path


def test_header_round_trip(file, model):
    header = read_header(file)
    assert header.classes == ("1", "10", "猫")
    assert header.config == model.config
    assert Header.from_json(header.to_json()) == header == info(file)


def test_load_is_in_evaluation_mode_and_equal(file, model):
    loaded = load(file)
    assert not loaded.training
    x = torch.randn(2, 1, 16, 16)
    assert torch.equal(loaded(x), model(x))


def test_hash_sees_names_types_shapes_and_values(model):
    state = model.state_dict()
    before = weights_hash(state)
    name = next(iter(state))
    assert weights_hash({**state, name: state[name] + 1e-3}) != before
    assert weights_hash({("x" if k == name else k): v for k, v in state.items()}) != before
    assert weights_hash(dict(reversed(state.items()))) == before


def test_damaged_and_foreign_files(file, model, tmp_path):
    truncated = tmp_path / "truncated.safetensors"
    truncated.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(MixwiseError, match=r"truncated.safetensors is not a readable"):
        load_file(truncated)
    text = tmp_path / "text.safetensors"
    text.write_text("hello")
    with pytest.raises(MixwiseError, match="not a readable"):
        load_file(text)
    bare = tmp_path / "bare.safetensors"
    save_file({"a": torch.zeros(1)}, bare)
    with pytest.raises(MixwiseError, match="without a mixwise header"):
        load_file(bare)
    newer = tmp_path / "newer.safetensors"
    save_file({"a": torch.zeros(1)}, newer, metadata={KEY: json.dumps({"format": 99})})
    with pytest.raises(MixwiseError, match="format 99"):
        load_file(newer)


@pytest.mark.parametrize("text", ["no JSON", "[1]", "null", '{"format": 1'])
def test_a_damaged_header_is_one_sentence(text, tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.zeros(1)}, path, metadata={KEY: text})
    with pytest.raises(MixwiseError, match="damaged mixwise header"):
        read_header(path)


def test_missing_and_extra_keys_are_refused(model, tmp_path):
    path = tmp_path / "model.safetensors"
    state = model.state_dict()
    state.pop("head.bias")
    save(path, state | {"surprise": torch.zeros(1)}, Header(config=model.config))
    with pytest.raises(MixwiseError, match=r"(?s)does not fit.*head.bias.*surprise"):
        load_file(path)


def test_resolve_names_what_it_wanted(file, tmp_path):
    assert resolve(tmp_path) == file
    with pytest.raises(MixwiseError, match=r"did you mean .*model.safetensors"):
        resolve(tmp_path / "modle.safetensors")
    (tmp_path / "empty").mkdir()
    with pytest.raises(MixwiseError, match="not a run folder"):
        resolve(tmp_path / "empty")


def test_a_failed_write_leaves_the_old_file(file, model, monkeypatch):
    before = file.read_bytes()

    def fail(*arguments, **keywords):
        raise OSError("disk full")

    monkeypatch.setattr("mixwise.weights.native.save_file", fail)
    with pytest.raises(OSError, match="disk full"):
        save(file, model.state_dict(), Header(config=model.config))
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


def test_whoever_may_read_other_files_may_read_the_weights(file, tmp_path):
    other = tmp_path / "other"
    other.touch()
    assert file.stat().st_mode == other.stat().st_mode


def test_predictor_needs_preprocessing(file):
    with pytest.raises(MixwiseError, match="carries no preprocessing"):
        mixwise.Predictor(file)
