"""Evaluating a trained model: by name, with an interval, and as files for people and programs."""

import csv
import hashlib
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file
from typer.testing import CliRunner

from mixwise import Predictor, UsageError, evaluate, info, reparam, train
from mixwise.cli import app
from mixwise.config import Decision
from mixwise.data import export_builtin
from mixwise.report.evaluation import write_evaluation
from mixwise.resizing import resize_file
from mixwise.tasks import task
from mixwise.training.run import Run
from mixwise.weights.native import KEY


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    return train("digits", model="pool_nano", out=out, epochs=3, changes={"recipe.batch_size": 100}).run


@pytest.fixture
def folder(tmp_path):
    """Test pictures of four of the ten digits, in folders of these names."""
    for path in export_builtin("digits", tmp_path / "flat", count=200):
        if path.name[0] in "2589":
            target = tmp_path / "data" / path.name[0] / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)
    return tmp_path / "data"


def tree(folder: Path) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return hashlib.sha256(b"".join(str(f).encode() + f.read_bytes() for f in files)).hexdigest()


def rows_of(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_da04_a_split_without_a_class_is_scored_by_name(tmp_path):
    """Trained on a, b, c; a test split of b and c alone must give what the answers by name give."""
    colours = {"a": (200, 30, 30), "b": (30, 200, 30), "c": (30, 30, 200)}
    generator = np.random.default_rng(0)
    for split, names in (("train", "abc"), ("val", "abc"), ("test", "bc")):
        for name in names:
            (tmp_path / "data" / split / name).mkdir(parents=True)
            for i in range(12):
                pixels = generator.normal(colours[name], 60, (8, 8, 3)).clip(0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(tmp_path / "data" / split / name / f"{i}.png")
    changes = {"recipe.batch_size": 6, "recipe.ema": 0.0}
    run = train(tmp_path / "data", model="pool_nano", out=tmp_path / "run", epochs=4, changes=changes).run
    found = evaluate(run, tmp_path / "data", split="test")
    answers = Predictor(run)([str(path) for path in sorted((tmp_path / "data" / "test").rglob("*.png"))])
    truth = [Path(p.image).parent.name for p in answers]
    assert found.scores.top1 == pytest.approx(np.mean([p.label == t for p, t in zip(answers, truth, strict=True)]))
    assert found.scores.top1 > 0.7
    absent, *others = found.scores.classes
    assert (absent.name, absent.support) == ("a", 0)
    assert [c.support for c in others] == [12, 12]
    assert found.scores.balanced == pytest.approx(found.scores.top1)
    data = json.loads(found.to_json(), parse_constant=pytest.fail)
    assert data["classes"][0]["recall"] is None
    assert any("no pictures of 1 of 3 classes: a" in note for note in data["notes"])


def test_tr12_report_files(run, folder, tmp_path):
    before = tree(folder)
    done = CliRunner().invoke(app, ["evaluate", str(run), str(folder), "--report", str(tmp_path / "out"), "--json"])
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout, parse_constant=pytest.fail)
    out = tmp_path / "out"
    names = {"confusion.csv", "confusion.png", "per_class.csv", "predictions.csv", "report.html"}
    assert {path.name for path in out.iterdir()} == names
    confusion = rows_of(out / "confusion.csv")
    counts = np.array([[int(row[name]) for name in "0123456789"] for row in confusion])
    assert [row["truth \\ answer"] for row in confusion] == list("0123456789")
    assert counts.tolist() == data["confusion"]
    assert counts.diagonal().sum() / counts.sum() == pytest.approx(data["top1"])
    predictions = rows_of(out / "predictions.csv")
    assert len(predictions) == data["images"] == sum(1 for _ in folder.rglob("*.png"))
    assert np.mean([row["right"] == "1" for row in predictions]) == pytest.approx(data["top1"])
    assert all((row["right"] == "1") == (row["label"] == row["truth"]) for row in predictions)
    assert all(float(row[f"probability:{row['label']}"]) == float(row["probability"]) for row in predictions)
    classes = {row["class"]: row for row in rows_of(out / "per_class.csv")}
    assert float(classes["5"]["recall"]) == pytest.approx(counts[5, 5] / counts[5].sum())
    assert (classes["3"]["pictures"], classes["3"]["recall"]) == ("0", "")
    with Image.open(out / "confusion.png") as picture:
        assert picture.format == "PNG"
        assert min(picture.size) > 300
    page = (out / "report.html").read_text(encoding="utf-8")
    wrong = [row for row in predictions if row["right"] == "0"]
    assert page.count('<figure><img src="data:image/png;base64,') == min(24, len(wrong)) > 0
    worst = min(wrong, key=lambda row: float(row[f"probability:{row['truth']}"]))
    assert page.index(worst["image"]) == min(page.index(row["image"]) for row in wrong if row["image"] in page)
    assert tree(folder) == before


def test_tr12_best_and_last_are_always_written(run):
    assert Run(run).best.is_file()
    assert Run(run).last.is_file()


def test_reports_are_never_written_over_something_or_among_the_pictures(run, folder, tmp_path):
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "mine.txt").write_text("x")
    (tmp_path / "file").write_text("x")
    before = tree(tmp_path)
    for place, text in (
        (folder, "where nothing is written"),
        (folder / "2" / "deep", "where nothing is written"),
        (tmp_path / "used", "not an empty folder"),
        (tmp_path / "file", "not an empty folder"),
    ):
        done = CliRunner().invoke(app, ["evaluate", str(run), str(folder), "--report", str(place)])
        assert isinstance(done.exception, UsageError)
        assert text in str(done.exception)
        with pytest.raises(UsageError, match=text):
            write_evaluation(evaluate(run, folder), place)
    assert tree(tmp_path) == before
    (tmp_path / "empty").mkdir()
    assert write_evaluation(evaluate(run, folder), tmp_path / "empty")


def test_a_read_only_folder_of_pictures_works(run, folder, tmp_path):
    for path in (*folder.rglob("*"), folder):
        os.chmod(path, 0o555 if path.is_dir() else 0o444)
    try:
        write_evaluation(evaluate(run, folder), tmp_path / "out")
    finally:
        for path in (folder, *folder.rglob("*")):
            os.chmod(path, 0o755)


def test_evaluation_is_the_same_again_and_its_interval_holds_the_accuracy(run):
    one, other = evaluate(run, "digits").scores, evaluate(run, "digits").scores
    assert one.interval == other.interval
    assert one.interval[0] < one.top1 < one.interval[1]
    text = CliRunner().invoke(app, ["evaluate", str(run), "digits"]).stdout
    assert f"95% interval {one.interval[0]:.1%} to {one.interval[1]:.1%}" in text
    with pytest.raises(UsageError, match="topk must be at least 1, got 0"):
        evaluate(run, "digits", topk=0)


def test_temperature_is_stored_and_makes_probabilities_truer(run):
    found = evaluate(run, "digits", split="val")
    temperature = info(run).decision.temperature
    assert temperature != 1
    assert found.scores.calibration_error < found.uncalibrated
    text = CliRunner().invoke(app, ["evaluate", str(run), "digits", "--split", "val"]).stdout
    assert f"({found.uncalibrated:.2%} without the temperature {temperature:.3g})" in text
    assert info(run).metrics["val_loss"] == pytest.approx(found.scores.loss, abs=1e-5)


def test_sv04_evaluation_with_withheld_answers(run, tmp_path):
    plain, found = evaluate(run, "digits"), evaluate(run, "digits", reject="stored")
    s = found.scores
    assert s.top1 == plain.scores.top1  # what the answers would have been
    assert 0.8 < s.coverage < 1
    assert s.answered_top1 > s.top1
    text = CliRunner().invoke(app, ["evaluate", str(run), "digits", "--reject"]).stdout
    assert f"{s.coverage:.2%}" in text
    assert f"{s.answered_top1:.2%}" in text
    write_evaluation(found, tmp_path / "out")
    rows = rows_of(tmp_path / "out" / "predictions.csv")
    withheld = [row for row in rows if row["label"] == "unknown"]
    assert len(withheld) == round((1 - s.coverage) * s.images)
    assert {row["right"] for row in withheld} == {""}
    assert {row["right"] for row in rows if row["label"] != "unknown"} == {"0", "1"}


def test_the_summary_tells_of_withheld_answers_only_where_they_were_asked_for(run):
    for reject, told in ((0.5, True), (None, False)):
        what = [name for name, _, _ in evaluate(run, "digits", reject=reject).scores.summary()]
        assert what[0] == task("classify").metric
        assert ("answered" in what) == told


def test_equal_models_keep_the_decision_and_resized_ones_forget_it(run, tmp_path):
    reparam(run, tmp_path / "folded.safetensors")
    assert info(tmp_path / "folded.safetensors").decision == info(run).decision != Decision()
    resize_file(run, tmp_path / "larger.safetensors", (12, 12))
    assert info(tmp_path / "larger.safetensors").decision == Decision()


def test_a_file_from_before_loads_and_answers_as_before(run, tmp_path):
    """Its header says nothing of temperature and thresholds."""
    with safe_open(run / "model.safetensors", framework="pt") as file:
        header = json.loads(file.metadata()[KEY])
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (safe_open is no mapping)
    del header["decision"]
    save_file(state, tmp_path / "old.safetensors", metadata={KEY: json.dumps(header)})
    old = evaluate(tmp_path / "old.safetensors", "digits")
    assert old.predictor.decision.temperature == 1
    assert old.scores.calibration_error == old.uncalibrated
    assert old.scores.top1 == evaluate(run, "digits").scores.top1
    assert (
        "temperature" not in CliRunner().invoke(app, ["evaluate", str(tmp_path / "old.safetensors"), "digits"]).stdout
    )


def test_a_copy_of_the_training_pictures_is_recognised(tmp_path):
    for path in export_builtin("digits", tmp_path / "flat", split="train", count=60):
        target = tmp_path / "data" / path.name[0] / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
    run = train(tmp_path / "data", model="pool_nano", out=tmp_path / "run", epochs=1).run
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    assert not any("may know them" in note for note in evaluate(run, tmp_path / "data").notes)
    assert any("60 of these 60 pictures" in note for note in evaluate(run, tmp_path / "copy").notes)


def test_nothing_is_written_among_the_pictures(tmp_path, run):
    folder = tmp_path / "data"
    for path in export_builtin("digits", folder / "a", count=6):
        (folder / "b").mkdir(exist_ok=True)
        shutil.copy(path, folder / "b")
    before = tree(folder)
    inside = folder / "a" / "0.csv"
    call = CliRunner()
    for arguments in (
        ["predict", run, folder, "--csv", inside],
        ["predict", run, next((folder / "a").iterdir()), "--csv", next((folder / "a").iterdir())],
        ["classes", folder, "-o", inside],
        ["evaluate", run, folder, "--report", folder / "report"],
        ["check", folder, "--html", folder / "page.html"],
        ["train", folder, "--model", "pool_nano", "--epochs", "1", "--out", folder / "run"],
    ):
        result = call.invoke(app, [str(a) for a in arguments])
        assert isinstance(result.exception, UsageError), (arguments, result.output)
    assert tree(folder) == before
