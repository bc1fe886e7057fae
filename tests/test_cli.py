"""The command line as people and scripts see it."""

import csv
import json
import os
import shlex
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from mixwise import UsageError, __version__, train
from mixwise.cli import app, main
from mixwise.cli.shared import out
from mixwise.cli.using import _print_confusions
from mixwise.data import export_builtin

RUNNER = CliRunner()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    changes = {"recipe.epochs": 2, "recipe.batch_size": 100, "precision": "fp32"}
    return train("digits", model="pool_nano", out=folder, changes=changes, device="cpu").run


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    export_builtin("digits", folder, count=5)
    (folder / "broken é.png").write_bytes(b"not a picture")
    return folder


def call(*arguments: object, code: int = 0) -> str:
    result = RUNNER.invoke(app, [str(a) for a in arguments])
    assert result.exit_code == code, result.output
    return result.stdout


def fails(capsys, monkeypatch, *arguments: object) -> tuple[int, str]:
    monkeypatch.setattr("sys.argv", ["mixwise", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0), capsys.readouterr().err


def test_the_version_is_told():
    assert call("--version") == f"mixwise {__version__}\n"


def test_predict_table_has_a_row_for_the_bad_file(run, pictures, monkeypatch):
    monkeypatch.setattr(out, "width", 300)  # long temporary paths would be folded
    text = call("predict", run, pictures, code=1)
    assert "broken é.png" in text
    assert text.count(".png") >= 6


def test_hints_are_commands_that_a_shell_reads_back(tmp_path, capsys, monkeypatch):
    place = tmp_path / "mit Leerzeichen & ä"
    text = call("train", "digits", "--model", "pool_nano", "--epochs", 1, "--out", place / "run")
    hints = [shlex.split(line)[-4:] for line in text.splitlines() if "mixwise" in line]
    assert ["mixwise", "predict", str(place / "run"), "YOUR_PICTURES"] in hints
    assert ["mixwise", "evaluate", str(place / "run"), "digits"] in hints
    text = call("reparam", place / "run", "-o", place / "fused.safetensors")
    assert shlex.split(text.splitlines()[-1])[-2:] == [str(place / "fused.safetensors"), "IMAGES"]
    code, message = fails(capsys, monkeypatch, "train", "digits", "--out", place / "run")
    assert code == 2
    assert shlex.split(message)[-2:] == ["--resume", str(place / "run")]


@pytest.mark.parametrize(("verb", "options"), [("reparam", ()), ("resize", ("--image-size", 12))])
def test_no_weights_are_lost_to_a_result(verb, options, run, tmp_path, capsys, monkeypatch):
    before = (run / "model.safetensors").read_bytes()
    other = tmp_path / "other.safetensors"
    other.write_bytes(b"mine")
    for place, force, said in (
        (run / "model.safetensors", True, "is the file that is read"),
        (other, False, "exists already"),
        (tmp_path / "new.bin", False, "must end in .safetensors"),
    ):
        code, message = fails(capsys, monkeypatch, verb, run, *options, "-o", place, *["--force"] * force)
        assert (code, said in message) == (2, True), message
    assert (run / "model.safetensors").read_bytes() == before
    assert other.read_bytes() == b"mine"
    call(verb, run, *options, "-o", other, "--force")
    assert len(other.read_bytes()) > 1000


def test_a_folder_in_use_is_refused_before_the_pictures_are_looked_at(run, capsys, monkeypatch):
    monkeypatch.setattr("mixwise.trainer.plan", lambda *_: pytest.fail("looked at the pictures"))
    assert fails(capsys, monkeypatch, "train", "digits", "--out", run)[0] == 2


def test_a_misspelt_model_is_named_in_a_short_sentence_before_the_pictures_are_looked_at(capsys, monkeypatch):
    monkeypatch.setattr("mixwise.training.choose.discover", lambda *_, **__: pytest.fail("looked at the pictures"))
    code, message = fails(capsys, monkeypatch, "train", "digits", "--model", "pol_nano")
    assert code == 2
    assert "did you mean 'pool_nano'" in message
    assert "pool_tiny" in message
    assert len(message) < 300


def test_predict_json(run, pictures):
    lines = [json.loads(line) for line in call("predict", run, pictures, "--json", code=1).splitlines()]
    assert len(lines) == 6
    good = [line for line in lines if not line["error"]]
    assert all(len(line["top"]) == 3 and line["label"] == line["top"][0]["label"] for line in good)
    bad = next(line for line in lines if line["error"])
    assert bad["probability"] is None
    assert "broken" in bad["error"]


def test_predict_csv_has_stable_columns(run, pictures, tmp_path):
    path = tmp_path / "out.csv"
    call("predict", run, pictures, "--csv", path, "--topk", 20, code=1)
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6
    assert list(rows[0])[:7] == ["image", "label", "probability", "index", "error", "label_1", "probability_1"]
    assert "label_10" in rows[0]
    assert "label_11" not in rows[0]
    assert sum(bool(r["error"]) for r in rows) == 1
    text = call("predict", run, pictures, "--csv", "-", code=1)
    assert text.splitlines()[0].startswith("image,label,probability")


def test_pictures_are_found_below_hidden_and_parent_folders(run, pictures, tmp_path, monkeypatch):
    hidden = tmp_path / ".cache" / "pictures"
    export_builtin("digits", hidden, count=2)
    assert len(call("predict", run, hidden, "--json").splitlines()) == 2
    (hidden / "deep").mkdir()
    monkeypatch.chdir(hidden / "deep")
    assert len(call("predict", run, "..", "--json").splitlines()) == 2


def test_one_form_of_answers(run, pictures, capsys, monkeypatch):
    assert fails(capsys, monkeypatch, "predict", run, pictures, "--json", "--csv", "-")[0] == 2


def test_a_file_of_a_run_is_scored_on_the_runs_own_validation_pictures(tmp_path):
    for name, grey in (("a", 0), ("b", 200)):
        (tmp_path / "data" / name).mkdir(parents=True)
        for i in range(10):
            Image.new("L", (8, 8), grey + i).save(tmp_path / "data" / name / f"{i}.png")
    changes = {"recipe.batch_size": 8, "recipe.epochs": 1}
    folder = train(tmp_path / "data", model="pool_nano", out=tmp_path / "run", changes=changes).run
    for model in (folder, folder / "model.safetensors"):
        data = json.loads(call("evaluate", model, tmp_path / "data", "--json"))
        assert (data["split"], data["images"]) == ("val", 4)


def test_evaluate(run):
    text = call("evaluate", run, "digits")
    assert "300 pictures (test)" in text
    data = json.loads(call("evaluate", run, "digits", "--split", "val", "--topk", 50, "--json"))
    assert data["split"] == "val"
    assert data["k"] == 10
    assert sum(map(sum, data["confusion"])) == 300


def test_evaluate_matches_classes_by_name(run, tmp_path):
    """A split that lacks classes is scored by name: the same hits as the answers by name."""
    files = export_builtin("digits", tmp_path / "flat", count=40)
    for path in files:
        label = path.name[0]
        if label in "258":
            target = tmp_path / "test" / label / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)
    data = json.loads(call("evaluate", run, tmp_path / "test", "--json"))
    rows = [json.loads(line) for line in call("predict", run, tmp_path / "test", "--json").splitlines()]
    hits = sum(row["label"] == row["image"].split("/")[-2] for row in rows)
    assert data["top1"] == pytest.approx(hits / len(rows), abs=1e-6)
    assert data["images"] == len(rows) == 12


def test_info_and_list(run):
    text = call("info", run)
    assert "pool_nano" in text
    assert "0, 1, 2" in text
    assert json.loads(call("info", run, "--json"))["config"]["name"] == "pool_nano"
    assert "pool_nano" in call("list", "pool*")
    assert "token_mlp_nano" in json.loads(call("list", "--json"))


def test_narrow_terminals_show_the_parameters_of_models(monkeypatch):
    monkeypatch.setattr(out, "width", 80)
    lines = call("list", "*_compact_small").splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert all(" M " in line for line in lines[1:])


def test_rows_stay_whole_in_a_pipe(tmp_path, capsys, monkeypatch):
    name = "Eretmochelys imbricata subsp. bissa sensu lato " * 3
    for i in range(3):
        (tmp_path / "data" / f"{name}{i}").mkdir(parents=True)
        Image.new("L", (8, 8), 40 * i).save(tmp_path / "data" / f"{name}{i}" / "a.png")
    monkeypatch.setattr(out, "_width", None)
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("sys.argv", ["mixwise", "classes", str(tmp_path / "data")])
    with pytest.raises(SystemExit):
        main()
    assert sum(name in line for line in capsys.readouterr().out.splitlines()) == 3


@pytest.mark.parametrize(("names", "whole"), [(("a", "b"), True), (("a" * 50, "b" * 50), False)])
def test_a_confusion_matrix_that_is_too_wide_gives_way_to_its_mistakes(names, whole, capsys, monkeypatch):
    monkeypatch.setattr(out, "width", 80)
    _print_confusions(np.array([[2, 1], [0, 3]]), names)
    text = capsys.readouterr().out
    assert ("truth ↓" in text) == whole
    assert (f"1 × {names[0]} taken for {names[1]}" in text) == (not whole)


def test_errors_are_one_sentence_with_an_exit_code(run, tmp_path, capsys, monkeypatch):
    cases = [
        (("predict", tmp_path / "nowhere", "x.png"), 1, "no model at"),
        (("predict", tmp_path, "x.png"), 1, "not a run folder"),
        (("train", tmp_path / "nowhere"), 2, "nowhere"),
        (("train", "digits", "--set", "nonsense"), 2, "path=value"),
        (("train", "digits", "--model", "pol_nano"), 2, "did you mean 'pool_nano'"),
        (("list", "nothing*"), 2, "no model matches"),
        (("train", "digits", "--epochs", "-1"), 2, "greater than or equal to 1"),
        (("evaluate", run, "digits", "--split", "tset"), 2, "did you mean 'test'"),
    ]
    for arguments, code, text in cases:
        got, message = fails(capsys, monkeypatch, *arguments)
        assert got == code, arguments
        assert text in " ".join(message.split()), (arguments, message)
        assert "Traceback" not in message
    (tmp_path / "bad[").mkdir()  # the path reads like the end of a style
    (tmp_path / "bad[/bold].png").write_bytes(b"x")
    got, message = fails(capsys, monkeypatch, "predict", run, tmp_path / "bad[/bold].png")
    assert got == 1
    got, message = fails(capsys, monkeypatch, "predict", run, tmp_path / "bad[/bold].png", "--csv", tmp_path)
    assert got == 2
    assert "Traceback" not in message
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes((run / "model.safetensors").read_bytes()[:1000])
    got, message = fails(capsys, monkeypatch, "info", damaged)
    assert got == 1
    assert "not a readable safetensors file" in message


def test_same_picture_same_answer(run, tmp_path):
    """By path, list, bytes, PIL image and array."""
    import numpy as np

    from mixwise import Predictor

    path = export_builtin("digits", tmp_path, count=1)[0]
    predictor = Predictor(run)
    image = Image.open(path)
    ways = [str(path), [path], path.read_bytes(), image, np.asarray(image)]
    answers = [predictor(way)[0] for way in ways]
    assert len({a.top for a in answers}) == 1


def test_names_that_standard_output_cannot_hold_are_written_as_escapes(tmp_path):
    data = tmp_path / "b\udce9"  # a byte that is no UTF-8
    for name in ("猫", "犬"):
        (data / name).mkdir(parents=True)
        for i in range(8):
            Image.new("L", (8, 8), 16 * i).save(data / name / f"{i}.png")
    command = [sys.executable, "-m", "mixwise", "check", str(data), "--json", "--html", str(tmp_path / "check.html")]
    environment = os.environ | {"PYTHONIOENCODING": "ascii:strict"}
    found = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    about = json.loads(found.stdout)
    assert (about["data"], about["summary"]["classes"]) == (str(data), ["犬", "猫"])
    assert "猫" in (tmp_path / "check.html").read_text(encoding="utf-8")
    with pytest.raises(UsageError, match=r"b\\xe9: the path has bytes that are no UTF-8"):
        train(data, model="pool_nano", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
