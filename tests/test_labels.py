"""Labels go by name: whatever their order, whatever a split lacks, whatever an outside list calls them."""

import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

import mixwise
from mixwise import UsageError, evaluate, train
from mixwise.cli import app
from mixwise.labels import as_lines, difference, read_labels, write_labels
from mixwise.training.run import Run

RUNNER = CliRunner()
COLOURS = {str(i): tuple(int(v) for v in np.random.default_rng(i).integers(0, 256, 3)) for i in range(12)}
"""Twelve colours in folders 0 to 11: as text, 10 and 11 stand before 2."""


def make(root: Path, names: dict[str, str], count: int = 4) -> Path:
    """Folders by name with plain pictures of a colour, each a little different."""
    for folder, colour in names.items():
        (root / folder).mkdir(parents=True)
        for i in range(count):
            noise = np.random.default_rng(i).integers(-9, 10, (8, 8, 3))
            pixels = (np.array(COLOURS[colour]) + noise).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / folder / f"{i}.png")
    return root


def quick(data: Path, out: Path, *, epochs: int = 1, **options):
    changes = {"recipe.augment": {"scale": 1, "ratio": 1, "flip": 0}, "precision": "fp32", "recipe.ema": 0.0}
    return train(data, model="pool_nano", out=out, epochs=epochs, changes=changes, device="cpu", **options)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("colours")
    make(root / "train", {name: name for name in COLOURS}, 12)
    return make(root / "val", {name: name for name in COLOURS}).parent


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory) -> Path:
    result = quick(data, tmp_path_factory.mktemp("runs") / "run", epochs=30, batch_size=24)
    assert result.value == 1
    return result.run


def call(*arguments: object, code: int = 0) -> str:
    result = RUNNER.invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.stdout


def accuracy(run: Path, data: Path, **options) -> float:
    return evaluate(run, data, device="cpu", **options).scores.value


def test_da01_a_prediction_is_the_name_of_the_folder(run: Path, data: Path):
    found = mixwise.Predictor(run, device="cpu")([data / "val" / name / "0.png" for name in COLOURS])
    assert [each.label for each in found] == list(COLOURS)
    assert [each.index for each in found] == [sorted(COLOURS).index(name) for name in COLOURS]


def test_da02_classes_prints_number_and_name(run: Path, data: Path, tmp_path: Path):
    wanted = {str(i): name for i, name in enumerate(sorted(COLOURS))}
    for source in (run, run / "model.safetensors", data):
        assert json.loads(call("classes", source, "--json")) == wanted
        assert call("classes", source, "--csv").splitlines()[:3] == ["index,name", "0,0", "1,1"]
    rows = [line.split() for line in call("classes", data).splitlines()]
    assert rows[0] == ["index", "name", "train", "val"]
    assert rows[3] == ["2", "10", "12", "4"]
    assert read_labels(run / "labels.csv").names == tuple(wanted.values())
    for suffix in (".txt", ".json", ".csv"):
        call("classes", run, "-o", tmp_path / f"l{suffix}")
        assert read_labels(tmp_path / f"l{suffix}").names == tuple(wanted.values())


def test_da02_wrong_requests(run: Path, tmp_path: Path):
    with pytest.raises(UsageError, match="three forms of the same list"):
        RUNNER.invoke(app, ["classes", str(run), "--json", "--csv"], catch_exceptions=False)
    with pytest.raises(UsageError, match=r"must end in \.txt or \.json or \.csv"):
        RUNNER.invoke(app, ["classes", str(run), "-o", str(tmp_path / "l.xml")], catch_exceptions=False)


def test_da03_the_documented_way_to_score_with_image_folder(run: Path, data: Path, capsys):
    text = (Path(__file__).parents[1] / "docs" / "data.md").read_text(encoding="utf-8")
    block = next(
        block for block in re.findall(r"^```python\n(.*?)^```", text, flags=re.M | re.S) if "ImageFolder" in block
    )
    block = block.replace("runs/colours", str(run)).replace("DATA/val", str(data / "val"))
    exec(compile(block, "docs/data.md", "exec"), {})
    assert "100.0%" in capsys.readouterr().out


def test_da03_an_outside_list_in_another_order_is_named_and_harmless(run: Path, data: Path, tmp_path: Path):
    natural = tmp_path / "natural.txt"
    natural.write_text("\n".join(COLOURS))
    result = evaluate(run, data, labels=natural, device="cpu")
    assert result.scores.value == 1
    assert result.notes[0] == (
        f"{natural} has the same names in another order: number 2 is '2' there and '10' in the model; "
        "names count, not positions"
    )
    assert not evaluate(run, data, labels=run / "labels.csv", device="cpu").notes


def test_da04_a_split_that_lacks_classes_shifts_nothing(run: Path, tmp_path: Path):
    part = make(tmp_path / "part", {name: name for name in ("11", "2", "9")})
    assert accuracy(run, part) == 1
    wrong = make(tmp_path / "wrong", {"11": "11", "2": "9", "9": "2"})
    assert accuracy(run, wrong) == pytest.approx(1 / 3)
    table = tmp_path / "t.csv"
    table.write_text("path,label\n" + "".join(f"part/{n}/0.png,{n}\n" for n in ("9", "11")))
    assert accuracy(run, table) == 1


def test_da05_an_extra_class_stops_with_its_name_or_is_dropped_and_counted(run: Path, data: Path, tmp_path: Path):
    extra = make(tmp_path / "extra", {"3": "3", "12": "4", "noise": "5"})
    with pytest.raises(
        UsageError, match=r"the model does not know: '12' \(did you mean '\d+'\?\), 'noise'; known: 0, 1"
    ):
        evaluate(run, extra, device="cpu")
    result = evaluate(run, extra, unknown_classes="drop", device="cpu")
    assert (result.scores.images, result.scores.value) == (4, 1)
    dropped = "train: 8 pictures of classes that the model does not know were dropped: 12 (4), noise (4)"
    assert dropped in result.notes
    with pytest.raises(UsageError, match="has no picture of a class that the model knows"):
        evaluate(run, make(tmp_path / "other", {"x": "1"}), unknown_classes="drop", device="cpu")


def test_da05_train_likewise_and_resume_remembers(data: Path, tmp_path: Path):
    root = make(tmp_path / "data" / "train", {"a": "1", "b": "2"}).parent
    make(root / "val", {"a": "1", "b": "2", "extra": "3"})
    with pytest.raises(UsageError, match=r"val of .* has classes that the train split does not know: 'extra'"):
        quick(root, tmp_path / "run")
    text = io.StringIO()
    result = quick(root, tmp_path / "run", unknown="drop", console=Console(file=text, width=200))
    assert "val: 4 pictures of classes that the train split does not know were dropped: extra (4)" in text.getvalue()
    assert train(resume=result.run).weights_hash == result.weights_hash
    assert evaluate(result.run, root, device="cpu").scores.images == 8


def test_da09_the_split_is_the_same_again_and_recorded(tmp_path: Path):
    root = make(tmp_path / "data", {"a": "1", "b": "2"}, 10)
    runs = [
        Run(quick(root, tmp_path / name, val_split=0.3, split_seed=seed).run)
        for name, seed in zip("xyz", (1, 1, 2), strict=True)
    ]
    configs = [run.read_config().data for run in runs]
    assert [(config.val_split, config.split_seed) for config in configs] == [(0.3, 1), (0.3, 1), (0.3, 2)]
    assert len({config.fingerprint for config in configs}) == 2
    assert configs[0].fingerprint == configs[1].fingerprint
    assert evaluate(runs[2].folder, root, device="cpu").scores.images == 6  # its own split
    help = call("train", "--help")
    assert "--val-split" in help
    assert "--split-seed" in help


def test_a_label_file_orders_classes_and_renames_folders(tmp_path: Path):
    root = make(tmp_path / "data", {"n00000002": "1", "n00000001": "2", "third": "3"})
    labels = tmp_path / "words.txt"
    labels.write_text("n00000002 zebra\nn00000001 ant\n")
    with pytest.raises(UsageError, match=r"words\.txt does not know: 'third'; known: zebra, ant"):
        quick(root, tmp_path / "run", labels=labels)
    result = quick(root, tmp_path / "run", labels=labels, unknown="drop")
    config = Run(result.run).read_config()
    assert config.classes == ("zebra", "ant")
    assert config.data.rename == (("n00000001", "ant"), ("n00000002", "zebra"))
    assert mixwise.info(result.run).classes == ("zebra", "ant")
    labels.unlink()  # a run keeps what it needs
    assert train(resume=result.run).weights_hash == result.weights_hash
    assert evaluate(result.run, root, device="cpu").scores.images == 2
    assert evaluate(result.run, make(tmp_path / "more", {"n00000001": "2"}), device="cpu").scores.images == 4
    recipe = train(root, recipe=result.run / "config.toml", out=tmp_path / "again", model="pool_nano", epochs=1)
    assert Run(recipe.run).read_config().classes == ("n00000001", "n00000002", "third")


def test_evaluate_translates_numbers_and_words(run: Path, tmp_path: Path):
    root = make(tmp_path / "data", {"ten": "10", "n00000002": "2"})
    labels = tmp_path / "map.json"
    labels.write_text(json.dumps({"ten": "10", "n00000002": "2"}))
    result = evaluate(run, root, labels=labels, device="cpu")
    assert result.scores.value == 1
    assert "classes that are called otherwise here: n00000002 → 2, ten → 10" in result.notes
    assert "other names: 0, 1, 11, 3, 4 … only in the model" in result.notes[0]


@pytest.mark.parametrize(
    ("name", "text", "names", "word"),
    [
        ("l.txt", "b\na\n", ("b", "a"), ("1", "a")),
        (
            "l.txt",
            "n01440764 tench, Tinca tinca\nn01443537 goldfish\n",
            ("tench, Tinca tinca", "goldfish"),
            ("n01443537", "goldfish"),
        ),
        ("l.json", '["b", "a"]', ("b", "a"), ("0", "b")),
        ("l.json", '{"1": "a", "0": "b"}', ("b", "a"), ("0", "b")),
        ("l.json", '{"b": 0, "a": 1}', ("b", "a"), ("1", "a")),
        ("l.json", '{"0": ["n1", "b"], "1": ["n2", "a"]}', ("b", "a"), ("n2", "a")),
        ("l.json", '{"n1": "b", "n2": "a"}', ("b", "a"), ("n1", "b")),
        ("l.csv", "index,name\n1,a\n0,b\n", ("b", "a"), ("0", "b")),
        ("l.csv", '0,"b, c"\n1,a\n', ("b, c", "a"), ("0", "b, c")),
        ("l.csv", "wnid,class\nn1,b\nn2,a\n", ("b", "a"), ("n2", "a")),
        ("l.csv", "n1,b\nn2,a\n", ("b", "a"), ("n1", "b")),
        ("l.tsv", "index\twnid\tname\n1\tn2\ta\n0\tn1\tb\n", ("b", "a"), ("n2", "a")),
        ("l.csv", "b\na\n", ("b", "a"), ("1", "a")),
        ("l.csv", "a,1\nb,0\n", ("b", "a"), ("1", "a")),
        ("l.csv", "id,name\n1,a\n0,b\n", ("b", "a"), ("1", "a")),
        ("l.csv", "label,name\n1,a\n0,b\n", ("b", "a"), ("1", "a")),
        ("l.csv", "class,label\n1,a\n0,b\n", ("b", "a"), ("1", "a")),
        ("l.csv", "label,name\nn1,b\nn2,a\n", ("b", "a"), ("n2", "a")),
    ],
)
def test_label_files(tmp_path: Path, name: str, text: str, names: tuple[str, ...], word: tuple[str, str]):
    (tmp_path / name).write_text(text, encoding="utf-8")
    found = read_labels(tmp_path / name)
    assert found.names == names
    assert found.words[word[0]] == word[1]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("l.csv", "index,name\n0,a\n2,b\n", "'index' must hold the numbers 0 to 1, each once"),
        ("l.csv", "a,b,c,d\n", "rows must be index,name or word,name or index,word,name"),
        ("l.txt", "", "it is empty"),
        ("l.csv", "index,name\n0,a\n1,a\n", "the name 'a' stands more than once"),
        ("l.json", "[1, 2]", "every class name must be text"),
        ("l.json", '{"a": 0, "b": 0, "c": 1}', "two of the names have the same number"),
    ],
)
def test_wrong_label_files(tmp_path: Path, name: str, text: str, said: str):
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=re.escape(said)):
        read_labels(tmp_path / name)


@pytest.mark.parametrize(
    ("names", "classes"),
    [("1 2 3", "0 1 2 3"), ("1 2 3", "0 1 2"), ("10 2 1", "0 1 2"), ("3 2 1 0", "0 1 2 3")],
)
def test_a_number_means_no_place_where_names_are_numbers(tmp_path: Path, names: str, classes: str):
    (tmp_path / "names.txt").write_text(names.replace(" ", "\n"))
    found = read_labels(tmp_path / "names.txt")
    assert found.rename(found.names) == found.rename(classes.split()) == {}


def test_names_that_lines_cannot_hold(tmp_path: Path):
    names = ("a", " b ", "猫")
    with pytest.raises(UsageError, match=r"' b ' does not survive in a list of lines; write \.json or \.csv"):
        as_lines(names)
    assert difference(("a", "c"), ("a", "b")) == "other names: c only there; b only in the model"
    write_labels(tmp_path / "l.json", ("猫", "x\ny"))
    assert read_labels(tmp_path / "l.json").names == ("猫", "x\\ny"), "as a data set with that name is read"


def test_evaluate_says_where_pictures_came_to_a_data_set_whose_split_was_drawn(tmp_path: Path):
    root = make(tmp_path / "data", {"a": "1", "b": "2", "c": "3"}, 5)
    (tmp_path / "names.txt").write_text("b\na\n")
    result = quick(root, tmp_path / "run", labels=tmp_path / "names.txt", unknown="drop")
    (root / "a" / "4.png").write_bytes(b"")  # pictures that cannot be read are no others

    def said() -> bool:
        return any("since the training" in note for note in evaluate(result.run, root, device="cpu").notes)

    before = said()
    make(tmp_path / "more", {"a": "1"}, 9)
    for i in range(5, 9):
        (tmp_path / "more" / "a" / f"{i}.png").rename(root / "a" / f"{i}.png")
    assert (before, said()) == (False, True)
