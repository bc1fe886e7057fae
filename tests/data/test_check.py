"""`mixwise check` and what `train` looks at first: every kind of trouble is found, named, and said what comes of it."""

import io
import json
import os
import shutil
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

from mixwise import MixwiseError, UsageError, check, train
from mixwise.cli import app
from mixwise.cli.shared import out
from mixwise.config import Data
from mixwise.data import BadImage, Catalog, Items, decode, discover
from mixwise.screening import Check, Finding, class_range, glance, look, screen
from mixwise.screening.findings import find
from mixwise.screening.near import look_alikes
from mixwise.training.choose import plan

RUNNER = CliRunner()
TWO = {"train/a": 12, "train/b": 12, "val/a": 5, "val/b": 5}


def draw(path: Path, seed: int, size: tuple[int, int] = (12, 10)) -> Path:
    """A picture like no other."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 255, (*size, 3), np.uint8)
    Image.fromarray(pixels).save(path, quality=95)
    return path


def make(root: Path, counts: dict[str, int], suffix: str = ".png") -> Path:
    for number, (folder, count) in enumerate(counts.items()):
        (root / folder).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            draw(root / folder / f"{i}{suffix}", 1000 * number + i)
    return root


def cut(path: Path, share: float = 0.6) -> Path:
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    return path


def only(result: Check, kind: str) -> Finding:
    found = [finding for finding in result.findings if finding.kind == kind]
    assert len(found) == 1, [finding.kind for finding in result.findings]
    return found[0]


def kinds(result: Check) -> set[str]:
    return {finding.kind for finding in result.findings}


def call(*arguments: object, code: int = 0) -> str:
    result = RUNNER.invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.stdout


def tree_hash(root: Path) -> str:
    """Of every name, time and byte below a folder."""
    digest = sha256()
    for path in sorted(root.rglob("*")):
        digest.update(f"{path} {path.stat().st_mtime_ns}".encode())
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()


def screened(data: Path, **settings: object) -> tuple[object, str]:
    """What `train` would use of a folder, and what it says."""
    text = io.StringIO()
    chosen = Data.parse({"source": str(data), **settings})
    return screen(discover(data), chosen, Console(file=text, width=10_000)), text.getvalue()


def test_nothing_wrong(tmp_path: Path):
    result = check(make(tmp_path, TWO))
    assert result.findings == ()
    assert result.runs
    assert result.clean
    assert result.summary.splits == {"train": {"a": 12, "b": 12}, "val": {"a": 5, "b": 5}}
    assert (result.summary.height, result.summary.width) == ((12, 12, 12), (10, 10, 10))
    assert (result.summary.formats, result.summary.modes) == ({"PNG": 34}, {"RGB": 34})


def test_summary_measures_the_pictures(tmp_path: Path):
    for name, mode, colour, size in (("a", "RGB", (255, 0, 51), (8, 4)), ("b", "L", 102, (6, 30))):
        for split, count in (("train", 5), ("val", 1)):
            for i in range(count):
                (tmp_path / split / name).mkdir(parents=True, exist_ok=True)
                Image.new(mode, size, colour).save(tmp_path / split / name / f"{i}.bmp")
    summary = check(tmp_path).summary
    assert summary.mean == pytest.approx((0.7, 0.2, 0.3), abs=1e-4)
    assert summary.std == pytest.approx((0.3, 0.2, 0.1), abs=1e-4)
    assert (summary.height, summary.width) == ((4, 17, 30), (6, 7, 8))
    assert (summary.formats, summary.modes) == ({"BMP": 12}, {"RGB": 6, "L": 6})


def test_sizes_are_upright(tmp_path: Path):
    make(tmp_path, TWO)
    sideways = Image.new("RGB", (640, 200))
    exif = sideways.getexif()
    exif[0x0112] = 6
    for suffix in ("jpg", "png", "webp"):
        sideways.save(tmp_path / "train" / "a" / f"x.{suffix}", exif=exif)
        for see in (look, glance):
            verdict = see(tmp_path / "train" / "a" / f"x.{suffix}")
            assert (verdict.height, verdict.width) == (640, 200), (see, suffix)


def test_da07_the_split_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(out, "width", 200)
    text = call("check", make(tmp_path, {"train/cat": 6, "train/dog": 7, "valid/cat": 5, "valid/dog": 8, "extra/x": 3}))
    rows = [line.split() for line in text.splitlines()]
    assert ["class", "train", "val"] in rows
    assert ["cat", "6", "5"] in rows
    assert ["dog", "7", "8"] in rows
    assert ["all", "13", "13"] in rows
    assert "valid/ is the val split" in text
    assert "extra/ was passed over" in text
    assert only(check(tmp_path), "outside").groups == (("extra/x/0.png",), ("extra/x/1.png",), ("extra/x/2.png",))


def catalog(labels: dict[str, list], classes: tuple[str, ...], task: str = "classify") -> Catalog:
    """Pictures in memory with these labels."""
    generator = np.random.default_rng(0)
    splits = {}
    for split, rows in labels.items():
        pixels = tuple(generator.integers(0, 255, (len(rows), 6, 6), np.uint8))
        kind = np.int64 if task == "classify" else np.float32
        splits[split] = Items(pixels, np.array(rows, kind), tuple(f"{split}/{i}" for i in range(len(rows))))
    return Catalog("memory", classes, splits, task=task)


def findings(data: Catalog) -> dict[str, Finding]:
    seen = {split: [look(source) for source in items.sources] for split, items in data.splits.items()}
    return {finding.kind: finding for finding in find(data, seen, on_bad="skip", max_bad=0.2)}


def test_da07_split_folders_taken_for_classes_are_a_warning():
    """What becomes of train/ and val/ with stray pictures in them, beside another folder."""
    found = findings(catalog({"train": [0, 1, 2] * 6, "val": [0, 1, 2]}, ("Train", "masks", "valid")))
    assert found["splits_as_classes"].text.startswith("the classes Train, valid have the names of splits")
    assert found["splits_as_classes"].level == "warning"
    assert findings(catalog({"train": [0, 1] * 6, "val": [0, 1]}, ("bus", "train"))) == {}


def test_several_labels_a_picture():
    rows = [[1, 0, 0], [1, 1, 0], [0, 0, 0], [1, 0, 1]] * 5
    data = catalog({"train": rows, "val": [[1, 1, 0]] * 3}, ("x", "y", "z"), "multilabel")
    train = data.splits["train"]
    copied = replace(train, sources=(*train.sources[:-1], train.sources[0]))  # [1, 0, 0] and [1, 0, 1]
    found = findings(replace(data, splits=data.splits | {"train": copied}))
    assert set(found) == {"same_picture_two_labels", "class_missing_in_val"}
    assert found["class_missing_in_val"].text == "val has no pictures of z"
    assert found["same_picture_two_labels"].text.endswith("such as x and z")
    assert class_range(train, 3) == "5 to 15 a class"


def test_what_only_the_decoder_can_read_is_looked_at_too(scene: Image.Image):
    assert (look(scene).height, look(scene).width) == scene.size[::-1]
    assert look(scene).digest == look(scene.copy()).digest != look(scene.rotate(180)).digest
    stream = io.BytesIO()
    scene.save(stream, "JPEG")
    for see in (look, glance):
        assert (see(stream.getvalue()).format, see(stream.getvalue()).height) == ("JPEG", scene.height)
        assert see(stream.getvalue()[:-200]).reason == "truncated"


def test_da12_one_empty_file_among_fifty(tmp_path: Path):
    make(tmp_path / "data", {"a": 25, "b": 25}, ".jpg")
    bad = tmp_path / "data" / "b" / "7.jpg"
    bad.write_bytes(b"")
    result = check(tmp_path / "data")
    finding = only(result, "empty")
    assert (finding.count, finding.groups, finding.level) == (1, (("b/7.jpg",),), "warning")
    assert finding.action == "leaves them out"
    assert result.runs
    text = io.StringIO()
    quick = {"recipe.epochs": 1, "recipe.batch_size": 16, "preprocess.image": 8, "precision": "fp32"}
    console = Console(file=text, width=10_000)
    run = train(tmp_path / "data", model="pool_nano", changes=quick, out=tmp_path / "run", console=console).run
    assert "1 of 50 cannot be read: b/7.jpg (empty)" in text.getvalue()
    lines = [json.loads(line) for line in (run / "verdicts.jsonl").read_text().splitlines()]
    assert len(lines) == 51
    assert (lines[1]["picture"], lines[1]["reason"]) == ("b/7.jpg", "empty")
    assert not any("reason" in line for line in lines[2:])
    draw(bad, 12345)  # mended meanwhile: a resumed run still leaves it out, and says what changed
    train(resume=run, console=console)
    assert "1 picture changed since the run was started: b/7.jpg" in text.getvalue()
    (run / "verdicts.jsonl").unlink()
    with pytest.raises(MixwiseError, match="are not those that"):
        train(resume=run)


def test_da12_too_many_bad_pictures_stop(tmp_path: Path):
    make(tmp_path, TWO)
    for i in range(4):
        (tmp_path / "train" / "a" / f"{i}.png").write_bytes(b"")
    assert check(tmp_path).runs
    with pytest.raises(MixwiseError, match=r"4 of 34 pictures \(12%\).*a/0.png \(empty.*above data.max_bad = 10%"):
        screened(tmp_path, max_bad=0.1)
    strict = check(tmp_path, settings=Data(source="", max_bad=0.1))
    assert only(strict, "too_many_bad").level == "stop"
    assert not strict.runs


def test_da13_on_bad_error_names_the_file_and_the_reason(tmp_path: Path):
    bad = make(tmp_path, TWO) / "val" / "b" / "3.png"
    bad.write_text("this is text")
    with pytest.raises(MixwiseError) as caught:
        screened(tmp_path, on_bad="error")
    assert f"{bad} (not an image" in str(caught.value)
    place = tmp_path / os.fsdecode(b"train/a/caf\xff.png")
    place.symlink_to("nowhere.png")
    (tmp_path / "train" / "a" / "0.png").write_bytes(b"")
    with pytest.raises(MixwiseError, match=r"^3 of 35 pictures cannot be read: ") as caught:
        screened(tmp_path, on_bad="error")
    assert all(f"{name} (" in str(caught.value) for name in (r"caf\xff.png", "0.png", "3.png"))
    assert str(caught.value).endswith("; training stops, as data.on_bad says")
    assert not check(tmp_path, settings=Data(source="", on_bad="error")).runs


@pytest.mark.parametrize("suffix", ["jpg", "png", "gif", "webp", "tif", "bmp", "ppm"])
@pytest.mark.parametrize("see", [look, glance])
def test_da14_truncated_is_named(tmp_path: Path, suffix: str, see):
    whole = draw(tmp_path / f"whole.{suffix}", 1, (300, 200))
    assert see(whole).reason == ""
    assert see(cut(draw(tmp_path / f"cut.{suffix}", 1, (300, 200)))).reason == "truncated"


def test_da14_truncated_is_apart_from_unreadable(tmp_path: Path):
    make(tmp_path, TWO, ".jpg")
    a = tmp_path / "train" / "a"
    cut(a / "0.jpg")
    (a / "1.jpg").write_text("<html>404</html>")
    (a / "2.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"\x07" * 100)
    (a / "3.jpg").unlink()
    (a / "3.jpg").symlink_to(tmp_path / "nowhere.jpg")
    result = check(tmp_path, settings=Data(source="", max_pixels=100_000))
    for kind, name in (
        ("truncated", "0.jpg"),
        ("not_an_image", "1.jpg"),
        ("unreadable", "2.png"),
        ("missing", "3.jpg"),
    ):
        assert only(result, kind).groups == ((f"train/a/{name}",),)
        assert only(result, kind).action == "leaves them out"
    assert result.summary.splits["train"]["a"] == 9
    left, text = screened(tmp_path)
    assert "4 of 35 cannot be read" in text
    assert not {"train/a/0.jpg", "train/a/1.jpg", "train/a/2.png", "train/a/3.jpg"} & set(left.splits["train"].names)
    assert (np.bincount(left.splits["train"].labels) == [9, 12]).all()


@pytest.mark.parametrize("see", [look, glance, decode])
@pytest.mark.parametrize("linked", [False, True])
def test_pipes_are_not_opened(tmp_path: Path, see, linked: bool):
    """To open one would wait for ever."""
    make(tmp_path, TWO)
    os.mkfifo(tmp_path / "pipe")
    place = tmp_path / "train" / "a" / "x.png"
    place.symlink_to(tmp_path / "pipe") if linked else os.rename(tmp_path / "pipe", place)
    os.mkfifo(tmp_path / "train" / "a" / "x.txt")
    assert only(check(tmp_path), "unreadable").groups == (("train/a/x.png",),)
    if see is decode:
        with pytest.raises(BadImage, match="unreadable, it is not a regular file"):
            decode(place)
    else:
        assert (see(str(place)).reason, see(place).detail) == ("unreadable", "it is not a regular file")


def test_names_with_control_characters_stay_on_their_line(tmp_path: Path):
    odd = os.fsdecode(b"b\n\x1b[1m\xff")
    make(tmp_path, {"a": 6, odd: 3, "empty\n": 0})
    (tmp_path / odd / "x\r\n.png").write_bytes(b"")
    result = check(tmp_path)
    assert result.summary.classes == ("a", r"b\n\x1b[1m\xff")
    assert only(result, "empty").groups == ((r"b\n\x1b[1m\xff/x\r\n.png",),)
    shown = RUNNER.invoke(app, ["check", str(tmp_path)], env={"COLUMNS": "200"}).output
    assert r"b\n\x1b[1m\xff" in shown
    assert r"empty\n" in shown
    assert not {"\r", "\x1b", "\udcff"} & set(shown + "".join(finding.text for finding in result.findings))


def test_huge_pictures_are_named(tmp_path: Path):
    make(tmp_path, TWO)
    Image.new("1", (300, 100)).save(tmp_path / "train" / "a" / "wide.png")
    assert check(tmp_path).clean
    assert only(check(tmp_path, settings=Data(source="", max_pixels=29_999)), "too_large").groups == (
        ("train/a/wide.png",),
    )
    assert [see(tmp_path / "train" / "a" / "wide.png", 29_999).reason for see in (look, glance)] == ["too large"] * 2


def test_da20_every_extension_is_counted_and_the_rest_is_told(tmp_path: Path):
    make(tmp_path, TWO)
    formats = ("jpg", "jpeg", "jfif", "png", "gif", "bmp", "tif", "tiff", "webp", "ppm", "tga", "ico", "jp2", "avif")
    for i, suffix in enumerate(formats):
        draw(tmp_path / "train" / "a" / f"x.{suffix}", i, (16, 16))
        draw(tmp_path / "train" / "a" / f"y.{suffix.upper()}", 50 + i, (16, 16))
    for name in ("notes.txt", "more.TXT", "README", "clip.mp4"):
        (tmp_path / "train" / "b" / name).write_text("nothing")
    shutil.copy(tmp_path / "train" / "a" / "x.jpg", tmp_path / "train" / "b" / "photo.jpg_large")
    result = check(tmp_path)
    assert result.summary.splits["train"]["a"] == 12 + 2 * len(formats)
    assert result.summary.others == {".txt": 2, "no extension": 1, ".mp4": 1, ".jpg_large": 1}
    assert only(result, "other_files").count == 5
    assert only(result, "disguised").groups == (("train/b/photo.jpg_large",),)


def test_da11_junk_of_a_mac_and_of_windows(tmp_path: Path):
    make(tmp_path, TWO)
    for name in (".DS_Store", "._0.png", "Thumbs.db", "desktop.ini", ".secret.png"):
        (tmp_path / "train" / "a" / name).write_bytes(b"junk")
    (tmp_path / "__MACOSX").mkdir()
    draw(tmp_path / ".git" / "x.png", 1)
    result = check(tmp_path)
    assert kinds(result) == {"hidden_files"}
    assert result.summary.hidden == {
        ".DS_Store": 1, "._*": 1, "Thumbs.db": 1, "desktop.ini": 1, "hidden file": 1, "__MACOSX": 1, "hidden folder": 1,
    }  # fmt: skip
    assert result.clean


def test_da21_five_pictures_copied_into_validation(tmp_path: Path):
    make(tmp_path, TWO)
    for i in range(5):
        shutil.copy(tmp_path / "train" / "a" / f"{i}.png", tmp_path / "val" / "a" / f"copy{i}.png")
    result = check(tmp_path)
    finding = only(result, "same_picture_two_splits")
    assert finding.groups == tuple((f"train/a/{i}.png", f"val/a/copy{i}.png") for i in range(5))
    assert (finding.level, finding.count) == ("warning", 5)
    assert "5 in train and val" in finding.text
    assert "learned by heart" in finding.action
    assert kinds(result) == {"same_picture_two_splits"}
    text = screened(tmp_path)[1]
    assert "5 pictures in more than one split: 5 in train and val" in text
    shown = call("check", tmp_path)
    assert all(f"val/a/copy{i}.png" in shown for i in range(5))


def test_da21_copies_in_a_split_that_was_drawn(tmp_path: Path):
    """One folder, no validation of its own: copies that the draw put on both sides count as well."""
    make(tmp_path, {"a": 40, "b": 40})
    for i in range(40):
        shutil.copy(tmp_path / "a" / f"{i}.png", tmp_path / "a" / f"copy{i}.png")
    result = check(tmp_path)
    apart = {frozenset(group) for group in only(result, "same_picture_two_splits").groups}
    together = {frozenset(group) for group in only(result, "same_picture_twice").groups}
    assert apart | together == {frozenset((f"a/{i}.png", f"a/copy{i}.png")) for i in range(40)}


def test_da21_digits_raise_no_false_alarm(tmp_path: Path):
    assert kinds(check("digits")) == set()
    assert look_alikes([picture.verdict for picture in check("digits", near=True).pictures]) == []


def test_da21_look_alikes_are_a_hint_on_demand(tmp_path: Path, scene: Image.Image):
    make(tmp_path, TWO)
    scene.resize((400, 240)).save(tmp_path / "train" / "a" / "scene.png")
    scene.resize((200, 120)).save(tmp_path / "val" / "a" / "again.jpg", quality=60)
    for name, grey in (("a", 90), ("b", 170)):  # nearly flat: the same one step of grey at the same place
        flat = Image.new("L", (32, 32), grey)
        flat.paste(grey + 1, (16, 0, 32, 32))
        flat.save(tmp_path / "train" / name / "flat.png")
    assert check(tmp_path).findings == ()
    finding = only(check(tmp_path, near=True), "look_alike")
    assert finding.groups == (("train/a/scene.png", "val/a/again.jpg"),)
    assert finding.level == "note"
    assert "1 across splits; a hint" in finding.text


def test_one_picture_under_two_labels(tmp_path: Path):
    make(tmp_path, TWO)
    shutil.copy(tmp_path / "train" / "a" / "3.png", tmp_path / "train" / "b" / "same.png")
    shutil.copy(tmp_path / "train" / "a" / "4.png", tmp_path / "train" / "a" / "twice.png")
    result = check(tmp_path)
    finding = only(result, "same_picture_two_labels")
    assert (finding.level, finding.groups) == ("warning", (("train/a/3.png", "train/b/same.png"),))
    assert "such as a and b" in finding.text
    assert only(result, "same_picture_twice").groups == (("train/a/4.png", "train/a/twice.png"),)
    assert "1 picture under more than one label, such as a and b" in screened(tmp_path)[1]


def test_da23_imbalance_is_shown(tmp_path: Path):
    make(tmp_path, {"train/a": 95, "train/b": 5, "val/a": 5, "val/b": 5})
    result = check(tmp_path)
    finding = only(result, "imbalance")
    assert "a has 19 times the training pictures of b: 95 and 5" in finding.text
    assert "always saying a is right 95%" in finding.action
    assert result.runs
    assert finding.text in screened(tmp_path)[1]
    assert "imbalance" not in kinds(check(make(tmp_path, {"train/b": 10})))


def test_tiny_and_lonely_classes(tmp_path: Path):
    result = check(make(tmp_path, {"train/a": 8, "train/b": 4, "train/c": 1, "val/a": 3}))
    assert only(result, "tiny_class").text.endswith("2 classes with fewer than 5 training pictures: b (4), c (1)")
    assert only(result, "one_class_in_val").text == "all pictures of val are of class a"
    assert only(result, "class_missing_in_val").text == "val has no pictures of b, c"
    alone = check(make(tmp_path / "alone", {"a": 10}))
    assert only(alone, "one_class_in_train").action == "runs: nothing can be told apart"
    assert alone.runs


def test_da04_a_class_missing_in_a_split(tmp_path: Path):
    result = check(make(tmp_path, {**TWO, "train/c": 6, "test/b": 3, "test/c": 3}))
    assert only(result, "class_missing_in_val").text == "val has no pictures of c"
    assert only(result, "class_missing_in_test").text == "test has no pictures of a"
    assert result.summary.splits["test"] == {"a": 0, "b": 3, "c": 3}
    assert result.runs


def test_da05_an_extra_class_stops_by_name(tmp_path: Path):
    make(tmp_path, {**TWO, "val/extra": 2})
    finding = only(check(tmp_path), "layout")
    assert (finding.level, finding.action) == ("stop", "stops")
    assert "'extra'" in finding.text
    text = call("check", tmp_path, code=1)
    assert "extra" in text
    assert "training would stop" in text


def test_da08_a_wrong_level_stops(tmp_path: Path):
    make(tmp_path, TWO)
    assert "holds 12 images directly" in only(check(tmp_path / "train" / "a"), "layout").text
    with pytest.raises(UsageError, match="no data folder"):
        check(tmp_path / "nowhere")


def test_da10_an_empty_class_folder_is_named(tmp_path: Path):
    make(tmp_path, {**TWO, "train/void": 0})
    result = check(tmp_path)
    assert result.runs
    assert any("train/void" in note for note in result.notes)
    assert "train/void" in call("check", tmp_path)
    assert result.summary.classes == ("a", "b")


def test_a_class_without_a_readable_training_picture_stops(tmp_path: Path):
    make(tmp_path, {**TWO, "train/c": 1, "val/c": 2})
    (tmp_path / "train" / "c" / "0.png").write_bytes(b"")
    finding = only(check(tmp_path), "class_missing_in_train")
    assert (finding.level, finding.text) == ("stop", "train has no pictures of c")
    with pytest.raises(MixwiseError, match=r"train has no pictures of c; training stops"):
        screened(tmp_path)


def test_no_pictures_to_learn_from(tmp_path: Path):
    result = check(make(tmp_path, {"test/a": 5, "test/b": 5}))
    assert {finding.kind for finding in result.findings if finding.level == "stop"} == {
        "no_train_pictures",
        "no_val_pictures",
    }
    assert not result.runs


def test_exit_codes(tmp_path: Path):
    make(tmp_path, TWO)
    call("check", tmp_path, "--strict")
    (tmp_path / "train" / "a" / "0.png").write_bytes(b"")
    call("check", tmp_path)
    call("check", tmp_path, "--strict", code=1)
    (tmp_path / "train" / "a").rename(tmp_path / "train" / "z")
    call("check", tmp_path, code=1)


def test_json_has_stable_keys(tmp_path: Path):
    make(tmp_path, TWO)
    cut(tmp_path / "train" / "a" / "0.png")
    found = json.loads(call("check", tmp_path, "--json"))
    assert list(found) == ["data", "runs", "summary", "findings", "bad", "notes"]
    assert list(found["findings"][0]) == ["kind", "level", "count", "text", "action", "groups"]
    assert found["bad"] == [
        {
            "picture": "train/a/0.png",
            "split": "train",
            "reason": "truncated",
            "detail": "the file ends before the picture does",
        }
    ]
    assert found["summary"]["splits"]["train"] == {"a": 11, "b": 12}
    assert found["summary"]["pictures"] == {"train": 23, "val": 10}


def test_page_stands_alone(tmp_path: Path):
    data = make(tmp_path / "data", {**TWO, "train/<i>é": 6, "val/<i>é": 5})
    cut(data / "train" / "a" / "0.png")
    shutil.copy(data / "train" / "a" / "1.png", data / "val" / "a" / "x.png")
    draw(data / "lost.png", 7)
    (data / "lost.tif").write_text("broken")
    call("check", data, "--html", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "http" not in page
    assert page.count("<img") == page.count('src="data:image/') == 3  # two equal ones, and the lost one
    assert "<i>é" not in page
    assert "&lt;i&gt;é" in page
    words = page.replace("<bdi>", "").replace("</bdi>", "")
    for text in ("train/a/0.png", "val/a/x.png", "lost.tif", "training would run"):
        assert text in words


@pytest.mark.parametrize(("option", "name"), [("--html", "page.html"), ("--cache", "seen.jsonl")])
def test_nothing_is_written_into_the_data(tmp_path: Path, option: str, name: str):
    make(tmp_path, TWO)
    before = tree_hash(tmp_path)
    for place in (tmp_path / name, tmp_path / "train" / name):
        result = RUNNER.invoke(app, ["check", str(tmp_path), option, str(place)])
        assert isinstance(result.exception, UsageError)
        assert "nothing is written" in str(result.exception)
    assert tree_hash(tmp_path) == before


def test_the_data_stays_as_it_is(tmp_path: Path):
    data = make(tmp_path / "data", TWO)
    cut(data / "train" / "a" / "0.png")
    for path in (data, *data.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = tree_hash(data)
    try:
        call("check", data, "--near", "--html", tmp_path / "page.html", "--cache", tmp_path / "seen.jsonl")
        screened(data)
        assert tree_hash(data) == before
    finally:
        for path in (data, *(path for path in data.rglob("*") if path.is_dir())):
            path.chmod(0o755)


def test_a_second_look_reads_only_what_changed(tmp_path: Path):
    data = make(tmp_path / "data", TWO)
    bad = data / "train" / "a" / "0.png"
    cut(bad)
    cache = tmp_path / "seen.jsonl"
    first = check(data, cache=cache)
    for path in data.rglob("*.png"):  # other bytes, the same size and time: only a reader would notice
        stat = path.stat()
        path.write_bytes(bytes(stat.st_size))
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    again = check(data, cache=cache)
    assert again == first
    assert only(again, "truncated").count == 1
    draw(bad, 77)
    mended = check(data, cache=cache)
    assert "truncated" not in kinds(mended)
    assert check(data).summary.splits["train"]["b"] == 0


def test_a_cache_knows_its_limit_and_its_kind(tmp_path: Path):
    data = make(tmp_path / "data", TWO)
    cache = tmp_path / "seen.jsonl"
    assert check(data, cache=cache).runs
    assert only(check(data, cache=cache, settings=Data(source="", max_pixels=10)), "too_large").count == 34
    assert check(data, cache=cache).clean
    cache.write_text('{"other": 1}\n')
    with pytest.raises(UsageError, match="holds no verdicts"):
        check(data, cache=cache)
    cache.write_bytes(b"\xff\xfe")
    with pytest.raises(MixwiseError, match="not a readable file of verdicts"):
        check(data, cache=cache)


def test_threads_change_nothing(tmp_path: Path):
    data = make(tmp_path, {"a": 150, "b": 150})
    shutil.copy(data / "a" / "0.png", data / "a" / "x.png")
    done: list[tuple[int, int]] = []
    assert check(data, workers=1) == check(data, workers=4, progress=lambda *now: done.append(now))
    assert done == [(256, 301), (301, 301)]


def test_train_says_in_three_lines_what_it_found(tmp_path: Path):
    text = screened(make(tmp_path, TWO))[1].splitlines()
    assert text[0] == "files    all 34 can be opened and end as they should"
    assert text[1].startswith("check    no picture under two labels or in two splits")
    from mixwise.training.choose import plan

    stream = io.StringIO()
    plan(tmp_path, {"model": "pool_nano"}, Console(file=stream, width=10_000))
    lines = stream.getvalue().splitlines()
    assert "2 classes, 24 train (12 a class), 10 val (5 a class)" in lines[0]
    assert lines[1:3] == text


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow warns of broken EXIF
def test_odd_images(odd_images: Path):
    """Driven by the manifest: what decodes is good, what does not is bad, and a glance sees the same."""
    for entry in json.loads((odd_images / "manifest.json").read_text())["files"]:
        path = odd_images / entry["file"]
        seen, glanced = look(path), glance(path)
        assert bool(seen.reason) != entry["decodes"], path.name
        assert glanced.reason == seen.reason, path.name
        if entry["decodes"]:
            assert [seen.width, seen.height] == entry["upright_size"], path.name
            assert (glanced.height, glanced.width) == (seen.height, seen.width), path.name
            assert (seen.format, seen.mode) == (entry["format"], entry["mode"]), path.name


@pytest.mark.parametrize(
    ("names", "unknown", "classes", "stops"),
    [
        ("b a", "error", ("b", "a"), ()),
        ("b a c", "error", ("b", "a", "c"), ("class_missing_in_train",)),
        ("b", "error", (), ("layout",)),
        ("b", "drop", ("b",), ()),
    ],
)
def test_a_list_of_labels_is_followed_as_in_training(
    tmp_path: Path, names: str, unknown: str, classes: tuple[str, ...], stops: tuple[str, ...]
):
    data = make(tmp_path / "data", TWO)
    (tmp_path / "names.txt").write_text(names.replace(" ", "\n"))
    options = ["--labels", str(tmp_path / "names.txt"), "--unknown", unknown]
    called = RUNNER.invoke(app, ["check", str(data), "--json", *options])
    found = json.loads(called.stdout)
    assert called.exit_code == int(bool(stops))
    assert tuple(found["summary"]["classes"]) == classes
    assert tuple(finding["kind"] for finding in found["findings"] if finding["level"] == "stop") == stops
    settings = {"model": "pool_nano", "data.unknown": unknown}
    quiet = Console(quiet=True)
    if stops:
        with pytest.raises(MixwiseError):
            plan(data, settings, quiet, labels=tmp_path / "names.txt")
    else:
        assert plan(data, settings, quiet, labels=tmp_path / "names.txt")[1].classes == classes
