"""Several labels a picture, from training to answers."""

import csv
import json
from io import StringIO

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from sklearn import metrics
from typer.testing import CliRunner

import mixwise
from mixwise.cli import app
from mixwise.data import Catalog, Items
from mixwise.report.evaluation import write_evaluation
from mixwise.tasks.ranking import best_threshold
from mixwise.training.run import Run

LABELS = ("blue", "green", "red", "never")


def picture(labels: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """16 × 16 pixels of dark noise with a bright square in the channel of each label, somewhere."""
    pixels = generator.integers(0, 90, (16, 16, 3))
    for channel, label in enumerate((2, 1, 0)):
        if labels[label]:
            y, x = generator.integers(0, 10, 2)
            pixels[y : y + 6, x : x + 6, channel] += 140
    return pixels.astype(np.uint8)


def items(count: int, split: str, seed: int) -> Items:
    generator = np.random.default_rng(seed)
    labels = (generator.random((count, 4)) < (0.5, 0.4, 0.3, 0)).astype(np.float32)
    pictures = tuple(picture(row, generator) for row in labels)
    return Items(pictures, labels, tuple(f"{split}/{i:03d}.png" for i in range(count)))


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    splits = {
        name: items(count, name, i) for i, (name, count) in enumerate({"train": 240, "val": 80, "test": 60}.items())
    }
    return Catalog("squares", LABELS, splits, task="multilabel")


@pytest.fixture(scope="module")
def trained(catalog, tmp_path_factory):
    """The run folder, and what training printed."""
    text = StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mixwise.training.choose.discover", lambda source, **options: catalog)
        result = mixwise.train(
            "squares",
            model="repmlp_compact_nano",
            out=tmp_path_factory.mktemp("runs") / "run",
            epochs=12,
            changes={"recipe.ema": 0.0, "recipe.augment.mixup": 0.2, "recipe.augment.mix_prob": 0.2},
            console=Console(file=text, width=200),
        )
    return result, text.getvalue()


@pytest.fixture
def found(trained, catalog, monkeypatch):
    monkeypatch.setattr("mixwise.evaluation.discover", lambda source, **options: catalog)
    return mixwise.evaluate(trained[0].run, "squares")


def test_tr17_training_reports_map_and_stores_thresholds(trained):
    result, text = trained
    header = mixwise.info(result.run)
    assert (header.task, header.classes, result.metric) == ("multilabel", LABELS, "mAP")
    assert result.value > 0.9
    assert header.metrics["val_mAP"] == pytest.approx(result.value)
    assert header.decision.reject is None
    assert header.decision.thresholds[3] == 0.5
    assert "thresholds of best F1" in text
    assert "leave it at 50%: never" in text
    assert "recall is undefined" not in text
    page = Run(result.run).report_file.read_text(encoding="utf-8")
    assert "mean average precision" in page
    assert "Confusion" not in page


def test_tr17_thresholds_are_those_of_best_f1_on_the_validation_pictures(trained, catalog, monkeypatch):
    monkeypatch.setattr("mixwise.evaluation.discover", lambda source, **options: catalog)
    val = mixwise.evaluate(trained[0].run, "squares", split="val")
    stored = mixwise.info(trained[0].run).decision.thresholds
    truth = val.items.labels > 0.5
    for i in range(3):
        p = val.probabilities[:, i].numpy()
        assert stored[i] == pytest.approx(best_threshold(p, truth[:, i]), abs=1e-5)


def test_tr17_evaluation_equals_sklearn(found):
    truth, p = found.items.labels > 0.5, found.probabilities.numpy()
    said = p >= np.array(found.predictor.decision.thresholds, np.float32)
    scores = found.scores
    assert scores.images == 60
    assert scores.value == pytest.approx(metrics.average_precision_score(truth[:, :3], p[:, :3], average="macro"))
    assert scores.exact == pytest.approx(metrics.accuracy_score(truth, said))
    assert scores.micro_f1 == pytest.approx(metrics.f1_score(truth, said, average="micro"))
    assert scores.exact > 0.6
    data = json.loads(found.to_json(), parse_constant=pytest.fail)
    assert [label["average_precision"] is None for label in data["labels"]] == [False, False, False, True]
    assert data["decision"]["thresholds"] == pytest.approx(found.predictor.decision.thresholds)


def test_tr17_predictions_are_all_labels_over_their_thresholds(trained, catalog, tmp_path):
    test = catalog.splits["test"]
    for name, source in zip(test.names[:20], test.sources, strict=False):
        (tmp_path / "in").mkdir(exist_ok=True)
        Image.fromarray(source).save(tmp_path / "in" / name.split("/")[1])
    thresholds = dict(zip(LABELS, mixwise.info(trained[0].run).decision.thresholds, strict=True))
    text = CliRunner().invoke(app, ["predict", str(trained[0].run), str(tmp_path / "in"), "--probs", "--json"]).stdout
    lines = [json.loads(line) for line in text.splitlines()]
    assert len(lines) == 20
    assert len({len(line["labels"]) for line in lines}) > 2
    for line in lines:
        p = line["probabilities"]
        over = sorted((name for name in LABELS if p[name] >= thresholds[name]), key=lambda name: -p[name])
        assert [each["label"] for each in line["labels"]] == over
        assert line["label"] == (over[0] if over else "")
        assert line["index"] == (LABELS.index(over[0]) if over else -1)
    text = CliRunner().invoke(app, ["predict", str(trained[0].run), str(tmp_path / "in"), "--csv", "-"]).stdout
    rows = list(csv.DictReader(StringIO(text)))
    assert [row["labels"] for row in rows] == [";".join(x["label"] for x in line["labels"]) for line in lines]
    table = CliRunner().invoke(app, ["predict", str(trained[0].run), str(tmp_path / "in")])
    assert table.exit_code == 0


def test_tr17_report_of_an_evaluation(found, tmp_path):
    files = write_evaluation(found, tmp_path / "report")
    assert sorted(file.name for file in files) == ["per_class.csv", "predictions.csv", "report.html"]
    with open(tmp_path / "report" / "predictions.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert np.mean([row["right"] == "1" for row in rows]) == pytest.approx(found.scores.exact)
    for row, truth in zip(rows, found.items.labels, strict=True):
        assert row["truth"] == ";".join(name for name, has in zip(LABELS, truth, strict=True) if has)
    with open(tmp_path / "report" / "per_class.csv", encoding="utf-8", newline="") as file:
        never = list(csv.DictReader(file))[3]
    assert (never["label"], never["pictures"], never["average precision"]) == ("never", "0", "")


def test_what_only_one_label_a_picture_can_be_asked_is_refused(trained):
    with pytest.raises(mixwise.UsageError, match="several labels per picture withholds nothing"):
        mixwise.Predictor(trained[0].run, reject="stored")
