"""What people get when they ask a trained model about pictures: tables, JSON, and answers withheld."""

import csv
import io
import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from mixwise import Predictor, UsageError, info, train
from mixwise.cli import app
from mixwise.config import Decision
from mixwise.data import export_builtin
from mixwise.weights import load_file, save

RUNNER = CliRunner()
KNOWN, FOREIGN = "0123456", "789"


def call(*arguments: object, code: int = 0) -> str:
    result = RUNNER.invoke(app, [str(a) for a in arguments])
    assert result.exit_code == code, result.output
    return result.stdout


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """Folders of the digits 0 to 6 in three splits, and a flat folder of 7, 8 and 9, which are in none of them."""
    root = tmp_path_factory.mktemp("digits")
    for split, count in (("train", 1197), ("val", 300), ("test", 300)):
        for file in export_builtin("digits", root / "all" / split, split=split, count=count):
            known = file.name[0] in KNOWN
            folder = root / "known" / split / file.name[0] if known else root / "foreign"
            folder.mkdir(parents=True, exist_ok=True)
            file.rename(folder / f"{split}_{file.name}")
    shutil.rmtree(root / "all")
    return root


@pytest.fixture(scope="module")
def run(digits, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "seven"
    return train(digits / "known", model="repmlp_compact_nano", out=out, epochs=6, changes={"recipe.ema": 0.0}).run


def changed(run, out, **fields):
    """The model of a run with other fields in its header."""
    model, header = load_file(run / "model.safetensors")
    save(out, model.state_dict(), header.model_copy(update=fields))
    return out


def few(folder, count=4):
    return sorted(folder.rglob("*.png"))[:count]


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.parametrize("colours", [("red", "blue"), ("red",)])
def test_sv01_tr01_top_five_of_one_or_two_classes(colours, tmp_path):
    for name in colours:
        for i in range(8):
            for split in ("train", "val"):
                file = tmp_path / "data" / split / name / f"{i}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (8, 8), name).save(file)
    changes = {"recipe.batch_size": 4}
    run = train(tmp_path / "data", model="pool_nano", out=tmp_path / "run", epochs=1, changes=changes).run
    picture = tmp_path / "data" / "val" / "red" / "0.png"
    answer = json.loads(call("predict", run, picture, "--topk", 5, "--json"))
    assert {each["label"] for each in answer["top"]} == set(colours)
    text = call("evaluate", run, tmp_path / "data", "--topk", 5)
    assert "top-" not in text
    assert json.loads(call("evaluate", run, tmp_path / "data", "--topk", 5, "--json"))["k"] == len(colours)


def test_sv03_json_has_name_index_probability_and_model(run, digits):
    lines = [json.loads(line) for line in call("predict", run, digits / "known" / "test" / "3", "--json").splitlines()]
    assert list(lines[0]) == ["image", "label", "probability", "index", "labels", "top", "error", "model"]
    assert all(info(run).classes[line["index"]] == line["label"] for line in lines)
    assert all(line["labels"] == line["top"][:1] for line in lines)
    assert {line["model"] for line in lines} == {Predictor(run).id}


def test_the_model_id_is_that_of_the_weights_wherever_they_lie(run, tmp_path):
    copy = tmp_path / "copy.safetensors"
    shutil.copy(run / "model.safetensors", copy)
    assert Predictor(copy).id == Predictor(run).id
    model, header = load_file(copy)
    state = model.state_dict()
    next(iter(state.values())).add_(1)
    save(copy, state, header)
    assert Predictor(copy).id != Predictor(run).id


def test_sv04_pictures_of_other_classes_become_unknown(run, digits, tmp_path):
    """The threshold keeps nearly all pictures of known classes and refuses most of the others."""
    table = tmp_path / "known.csv"
    call("predict", run, digits / "known" / "test", "--reject", "--csv", table)
    known = rows_of(table.read_text(encoding="utf-8"))
    foreign = rows_of(call("predict", run, digits / "foreign", "--csv", "-", "--reject"))
    refused = [row for row in foreign if row["label"] == "unknown"]
    assert len(foreign) == 533
    assert len(refused) > 0.6 * len(foreign)
    assert sum(row["label"] == "unknown" for row in known) < 0.12 * len(known)
    assert {(row["index"], row["labels"]) for row in refused} == {("-1", "")}
    assert all(row["label_1"] in KNOWN for row in refused)  # what it would have said
    least = info(run).decision.reject
    assert all((float(row["probability_1"]) < least) == (row["label"] == "unknown") for row in foreign)


def test_sv04_reject_by_a_probability_of_ones_own(run, digits):
    pictures = [str(path) for path in few(digits / "known" / "test")]
    plain = Predictor(run)(pictures)
    assert [p.label for p in Predictor(run, reject=0.0)(pictures)] == [p.label for p in plain]
    strict = Predictor(run, reject=1.0)(pictures)
    assert {(p.label, p.index, p.labels) for p in strict} == {("unknown", -1, ())}
    assert [(p.probability, p.top) for p in strict] == [(p.probability, p.top) for p in plain]
    between = sorted(p.probability for p in plain)[1]
    line = call("predict", run, *pictures, "--reject", between, "--json").splitlines()
    assert sum(json.loads(each)["label"] == "unknown" for each in line) == 1
    assert call("predict", run, "--reject", *pictures, "--json")  # a path is no probability
    assert "--reject takes a probability" in str(
        RUNNER.invoke(app, ["predict", str(run), "x", "--reject=half"]).exception
    )


def test_sv04_where_nothing_can_be_withheld_it_says_why(run, tmp_path):
    bare = changed(run, tmp_path / "bare.safetensors", decision=Decision())
    named = changed(run, tmp_path / "named.safetensors", classes=("unknown", *info(run).classes[1:]))
    for file, reject, text in (
        (bare, "stored", "stores no reject threshold"),
        (named, "stored", "has a class named 'unknown'"),
        (named, 0.5, "has a class named 'unknown'"),
        (run, 1.5, "from 0 to 1, got 1.5"),
    ):
        with pytest.raises(UsageError, match=text):
            Predictor(file, reject=reject)
    assert Predictor(named)(np.zeros((8, 8), np.uint8))[0].label in ("unknown", *KNOWN)
    assert Predictor(bare, reject=1.0)(np.zeros((8, 8), np.uint8))[0].label == "unknown"


def test_sv05_sv06_csv_with_all_probabilities_and_a_row_for_a_bad_file(run, digits, tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    for path in few(digits / "known" / "test" / "2", 3):
        shutil.copy(path, folder)
    (folder / "broken.png").write_bytes(b"no picture")
    rows = rows_of(call("predict", run, folder, "--csv", "-", "--probs", "--topk", 2, code=1))
    names = [f"probability:{name}" for name in KNOWN]
    first = ["image", "label", "probability", "index", "error"]
    assert list(rows[0]) == [*first, "label_1", "probability_1", "label_2", "probability_2", "labels", *names]
    assert len(rows) == 4
    bad = next(row for row in rows if row["error"])
    assert bad["image"].endswith("broken.png")
    assert {bad[name] for name in ["label", "probability", "labels", *names]} == {""}
    for row in rows:
        if row is not bad:
            values = [float(row[name]) for name in names]
            assert sum(values) == pytest.approx(1, abs=1e-4)
            assert KNOWN[int(row["index"])] == row["label"] == row["labels"]
            assert max(values) == float(row["probability"]) == values[int(row["index"])]


def test_all_probabilities_in_json_and_in_the_table(run, digits):
    picture = few(digits / "known" / "test", 1)[0]
    answer = json.loads(call("predict", run, picture, "--probs", "--topk", 1, "--json"))
    assert list(answer["probabilities"]) == list(KNOWN)
    assert len(answer["top"]) == 1
    assert answer["probabilities"][answer["label"]] == answer["probability"]
    assert call("predict", run, picture, "--probs").count("%") == len(KNOWN)


def test_the_stored_temperature_changes_probabilities_and_no_answer(run, digits, tmp_path):
    pictures = [str(path) for path in few(digits / "known" / "test", 40)]
    hot = changed(run, tmp_path / "hot.safetensors", decision=Decision(temperature=4.0))
    plain = changed(run, tmp_path / "plain.safetensors", decision=Decision())
    before, after = Predictor(plain)(pictures, topk=7), Predictor(hot)(pictures, topk=7)
    assert [p.label for p in before] == [p.label for p in after]
    for one, other in zip(before, after, strict=True):
        logs = torch.tensor([value for _, value in one.top]).log() / 4
        assert [value for _, value in other.top] == pytest.approx(logs.softmax(0).tolist(), abs=1e-5)


def test_a_model_whose_outputs_are_no_numbers_gives_no_answer(run, digits, tmp_path):
    model, header = load_file(run / "model.safetensors")
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(torch.nan)
    save(tmp_path / "nan.safetensors", model.state_dict(), header)
    picture = few(digits / "known" / "test", 1)[0]
    for verb, data in (("predict", picture), ("evaluate", digits / "known")):
        result = RUNNER.invoke(app, [verb, str(tmp_path / "nan.safetensors"), str(data)])
        assert result.exit_code == 1
        assert result.stdout == ""
        assert "gives outputs that are not finite" in str(result.exception)


@pytest.mark.parametrize("wrong", [{"topk": 0}, {"batch_size": 0}, {"batch_size": -1}])
def test_sizes_that_are_none_are_refused(run, digits, wrong):
    with pytest.raises(UsageError, match="at least 1"):
        Predictor(run)(few(digits / "known" / "test", 1), **wrong)
