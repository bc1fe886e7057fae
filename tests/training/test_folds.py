"""Cross-validation."""

import csv
import io
import statistics

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from mixwise import UsageError, cross_validate, evaluate, train
from mixwise.cli import app
from mixwise.config import Data
from mixwise.data import Catalog, Items
from mixwise.training.folds import fold_of, folded
from mixwise.training.run import Run
from mixwise.training.settings import read_recipe

QUICK = {"model": "pool_nano", "recipe.epochs": 1, "recipe.batch_size": 16, "precision": "fp32", "device": "cpu"}


def items(labels: np.ndarray, names: list[str] | None = None) -> Items:
    names = names or [f"{i}.png" for i in range(len(labels))]
    return Items(names, labels, tuple(names))


def test_every_fold_has_its_share_of_every_class():
    labels = np.repeat([0, 1, 2], [50, 23, 4])
    folds = fold_of(items(labels), 5, seed=0)
    for label, count in enumerate((50, 23, 4)):
        sizes = np.bincount(folds[labels == label], minlength=5)
        assert set(sizes) <= {count // 5, -(-count // 5)}
    assert max(np.bincount(folds)) - min(np.bincount(folds)) <= 1
    rows = np.zeros((40, 3), np.float32)
    rows[:20, 0], rows[10:30, 1] = 1, 1
    several = fold_of(items(rows), 4, seed=0)
    for kind in np.unique(rows, axis=0):
        sizes = np.bincount(several[(rows == kind).all(axis=1)], minlength=4)
        assert max(sizes) - min(sizes) <= 1


def test_a_pictures_fold_follows_its_name_and_the_seed():
    names = [f"{i}.png" for i in range(60)]
    labels = np.arange(60) % 3
    first = dict(zip(names, fold_of(items(labels, names), 3, 0), strict=True))
    order = np.random.default_rng(0).permutation(60)
    again = fold_of(items(labels[order], [names[i] for i in order]), 3, 0)
    assert first == dict(zip([names[i] for i in order], again, strict=True))
    assert first != dict(zip(names, fold_of(items(labels, names), 3, 1), strict=True))


def test_folds_partition_the_pictures_and_leave_test_alone():
    train_items, test_items = items(np.repeat([0, 1], 12)), items(np.repeat([0, 1], 2), list("abcd"))
    val = items(np.array([0, 1, 1]), ["x", "y", "z"])
    catalog = Catalog(
        "here", ("a", "b"), {"train": train_items, "val": val, "test": test_items}, ("val is 3 of …", "n")
    )
    seen = []
    for fold in (1, 2, 3):
        made = folded(catalog, Data(source="here", folds=3, fold=fold))
        assert made.splits["test"] is test_items
        assert not set(made.splits["train"].names) & set(made.splits["val"].names)
        assert len(made.splits["train"]) + len(made.splits["val"]) == 27
        assert made.notes == ("n", f"fold {fold} of 3: 9 of 27 pictures are validated on")
        seen += made.splits["val"].names
    assert sorted(seen) == sorted(train_items.names + val.names)
    assert folded(catalog, Data(source="here")) is catalog
    for folds, fold in ((1, 1), (3, 0), (3, 4), (0, 1)):
        with pytest.raises(UsageError, match="must be between 1 and"):
            folded(catalog, Data(source="here", folds=folds, fold=fold))
    with pytest.raises(UsageError, match="27 pictures to divide into 28 folds"):
        folded(catalog, Data(source="here", folds=28, fold=1))


@pytest.mark.parametrize("several", [False, True])
def test_more_folds_than_pictures_of_a_class_are_warned_of(several):
    labels = np.repeat([0, 1, 2], [9, 3, 5])
    pictures = items(np.eye(3, dtype=np.float32)[labels] if several else labels)
    catalog = Catalog("here", ("a", "b", "c"), {"train": pictures}, (), "multilabel" if several else "classify")
    notes = {n: folded(catalog, Data(source="here", folds=n, fold=1)).notes[-1] for n in (3, 4)}
    assert "Warning" not in notes[3]
    assert "Warning: the smallest class, 'b', has 3, so some folds have none of it" in notes[4]


def test_only_a_fold_that_had_begun_starts_again(draw, tmp_path):
    text = io.StringIO()
    made = cross_validate(
        draw("data", a=8, b=8), 2, out=tmp_path / "cv", changes=QUICK, console=Console(file=text, width=200)
    )
    told = "no state was saved yet: starting from the first epoch"
    assert told not in text.getvalue()
    Run(made.folds[1].run).state.unlink()
    cross_validate(resume=tmp_path / "cv", console=Console(file=text, width=200))
    assert text.getvalue().count(told) == 1


def test_val_split_is_refused_with_folds(draw, tmp_path):
    arguments = ["train", str(draw("data", a=8, b=8)), "--kfold", "2", "--val-split", "0.3"]
    result = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "cv")])
    assert isinstance(result.exception, UsageError)
    assert "--val-split (data.val_split) has no part in it" in str(result.exception)
    assert not (tmp_path / "cv").exists()


def test_kfold_is_one_command_with_a_run_each_and_a_table(draw, tmp_path):
    data, out = draw("data", a=20, b=10), tmp_path / "cv"
    common = ["--model", "pool_nano", "--epochs", "1", "--device", "cpu", "--set", "precision=fp32"]
    result = CliRunner().invoke(app, ["train", str(data), "--kfold", "3", "--out", str(out), *common])
    assert result.exit_code == 0, result.output
    with open(out / "folds.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    values = [float(row["value"]) for row in rows]
    assert [row["fold"] for row in rows] == ["1", "2", "3"]
    summary = f"{statistics.mean(values):.2%} ± {statistics.stdev(values):.2%}"
    assert summary in result.stdout
    assert "standard deviation of 3 folds" in result.stdout
    for number, value in enumerate(values, start=1):
        run = out / f"fold-{number}"
        assert Run(run).report_file.is_file()
        scores = evaluate(run, data)
        assert (scores.split, scores.scores.images) == ("val", 10)
        assert scores.scores.value == pytest.approx(value, abs=1e-6)
    assert "data.fold" not in "".join(read_recipe(out / "fold-2" / "config.toml"))


def test_an_interrupted_cross_validation_goes_on(draw, tmp_path, monkeypatch):
    import mixwise.crossvalidation as module

    data = draw("data", a=12, b=12)
    whole = cross_validate(data, 3, out=tmp_path / "whole", changes=QUICK)
    plain, calls = module.go_on, []

    def stopping(run, console):
        calls.append(run.folder.name)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return plain(run, console)

    monkeypatch.setattr(module, "go_on", stopping)
    with pytest.raises(KeyboardInterrupt):
        cross_validate(data, 3, out=tmp_path / "cv", changes=QUICK)
    monkeypatch.undo()
    assert not (tmp_path / "cv" / "folds.csv").exists()
    result = CliRunner().invoke(app, ["train", "--resume", str(tmp_path / "cv")])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "cv" / "folds.csv").read_text() == (tmp_path / "whole" / "folds.csv").read_text()
    hashes = [train(resume=tmp_path / "cv" / f"fold-{n}").weights_hash for n in (1, 2, 3)]
    assert hashes == [fold.weights_hash for fold in whole.folds]
    with pytest.raises(UsageError, match="give nothing else"):
        cross_validate(data, resume=tmp_path / "cv")
    refused = CliRunner().invoke(app, ["train", "--kfold", "2", "--resume", str(tmp_path / "cv")])
    assert "give no --kfold" in str(refused.exception)
    with pytest.raises(UsageError, match="at least 2 parts"):
        cross_validate(data, 1)
