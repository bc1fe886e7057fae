"""Pictures as people have them, through train, evaluate and predict: the rows of the user reports about reading."""

import base64
import csv
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw
from typer.testing import CliRunner

from mixwise import Predictor, evaluate, train
from mixwise.cli import app, main
from mixwise.data import BadImage
from mixwise.errors import MixwiseError
from mixwise.training.run import Run
from mixwise.weights import load_file, weights_hash

TINY = {"recipe.batch_size": 16, "precision": "fp32", "recipe.ema": 0.0}
COLOURS = {"red": (220, 30, 30), "blue": (30, 30, 220)}


def write_colours(folder: Path, count: int, names: tuple[str, ...] = ("red", "blue")) -> Path:
    """DATA/<class>/<i>.png: noisy pictures of one colour a class, 16 × 16."""
    draw = np.random.default_rng(0)
    for name, colour in zip(names, COLOURS.values(), strict=True):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            pixels = np.array(colour) + draw.integers(-25, 26, (16, 16, 3))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / name / f"{i:03d}.png")
    return folder


def damage(path: Path) -> None:
    """Spoil the pixels of a PNG whose header and end stay whole: only the loader finds out."""
    data = bytearray(path.read_bytes())
    start = data.index(b"IDAT") + 10
    data[start : start + 60] = bytes(255 - value for value in data[start : start + 60])
    path.write_bytes(data)


def tiny(data: Path, out: Path, *, epochs: int = 1, model: str = "pool_nano", **changes):
    settings = TINY | {name.replace("__", "."): value for name, value in changes.items()}
    return train(data, model=model, out=out, epochs=epochs, changes=settings, device="cpu")


def call(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == code, result.output
    return " ".join(result.stdout.split())


def fails(capsys, monkeypatch, *arguments: object) -> tuple[int, str]:
    monkeypatch.setattr("sys.argv", ["mixwise", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0), capsys.readouterr().err


def last_hash(run: Path) -> str:
    return weights_hash(load_file(Run(run).last)[0].state_dict())


QUICK = ("--model", "pool_nano", "--device", "cpu", "--set", "recipe.batch_size=16", "--set", "precision=fp32")


def test_da12_one_empty_file_among_fifty_is_named_once_and_left_out(tmp_path):
    data = write_colours(tmp_path / "data", 25)
    (data / "red" / "007.png").write_bytes(b"")
    text = call("train", data, "--epochs", 3, "--out", tmp_path / "run", *QUICK)
    assert text.count("red/007.png (empty)") == 1


def test_da12_one_damaged_file_among_fifty_is_named_once_and_left_out(tmp_path):
    data = write_colours(tmp_path / "data", 25)
    bad = data / "red" / "007.png"
    damage(bad)
    text = call("train", data, "--epochs", 3, "--out", tmp_path / "run", *QUICK)
    assert text.count(f"cannot read image {bad}: unreadable") == 1
    assert "pictures that could not be read and were left out: 1 of" in text
    stopped = call("train", data, "--epochs", 1, "--out", tmp_path / "b", "--set", "data.max_bad=0", *QUICK, code=1)
    assert "left out" not in stopped


def test_da12_more_than_max_bad_stops_with_names(tmp_path):
    data = write_colours(tmp_path / "data", 10)
    for i in range(5):
        damage(data / "red" / f"{i:03d}.png")
    with pytest.raises(MixwiseError, match=r"could not be read so far, and max_bad allows a share of 0\.2: .*00.\.png"):
        tiny(data, tmp_path / "run")


@pytest.mark.parametrize("verb", ["train", "evaluate"])
def test_da13_on_bad_error_stops_with_path_and_reason(tmp_path, capsys, monkeypatch, verb):
    data = write_colours(tmp_path / "data", 10)
    if verb == "evaluate":
        tiny(data, tmp_path / "run")
    for bad in (data / "blue").iterdir():
        damage(bad)
    first = (
        ("train", data, "--out", tmp_path / "run", *QUICK) if verb == "train" else ("evaluate", tmp_path / "run", data)
    )
    code, message = fails(capsys, monkeypatch, *first, "--on-bad", "error")
    assert code == 1
    assert f"cannot read image {data / 'blue'}" in " ".join(message.split())
    assert ": unreadable, " in " ".join(message.split())
    assert "Traceback" not in message


def test_da14_half_written_pictures_are_skipped_as_truncated_by_every_verb(tmp_path):
    data = write_colours(tmp_path / "data", 20)
    bad = data / "red" / "003.jpg"
    Image.effect_noise((80, 80), 60).convert("RGB").save(bad, quality=95)
    bad.write_bytes(bad.read_bytes()[: bad.stat().st_size * 6 // 10])
    assert "003.jpg (truncated)" in call("train", data, "--epochs", 1, "--out", tmp_path / "run", *QUICK)
    (tmp_path / "other").mkdir()
    os.rename(data, tmp_path / "other" / "data")
    data = tmp_path / "other" / "data"
    scored = json.loads(call("evaluate", tmp_path / "run", data, "--json"))
    assert [(b["reason"], Path(b["image"]).name) for b in scored["bad"]] == [("truncated", "003.jpg")]
    assert scored["images"] == sum(map(sum, scored["confusion"])) == 40
    assert "1 of 41 pictures could not be read" in call("evaluate", tmp_path / "run", data)
    answers = Predictor(tmp_path / "run")([data / "red" / "003.jpg", data / "red" / "004.png"])
    assert "truncated" in answers[0].error
    assert not answers[1].error


def arrow(right: bool, draw: np.random.Generator) -> Image.Image:
    picture = Image.new("L", (16, 16), int(draw.integers(0, 60)))
    pen, x, y = ImageDraw.Draw(picture), *draw.integers(-2, 3, 2).tolist()
    pen.line([(3 + x, 8 + y), (12 + x, 8 + y)], fill=255, width=2)
    pen.polygon([(8 + x, 4 + y), (8 + x, 12 + y), (13 + x, 8 + y)], fill=255)
    return picture if right else picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


def test_da15_pictures_stored_sideways_are_learned_upright(tmp_path):
    """The class is an arrow's direction, and half of the files are stored upside down with the tag that says so."""
    draw = np.random.default_rng(0)
    exif = Image.Exif()
    exif[0x0112] = 3
    for name in ("right", "left"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for i in range(60):
            picture = arrow(name == "right", draw)
            place = tmp_path / "data" / name / f"{i}.jpg"
            if i % 2:
                picture.transpose(Image.Transpose.ROTATE_180).save(place, exif=exif, quality=95)
            else:
                picture.save(place, quality=95)
    result = tiny(tmp_path / "data", tmp_path / "run", epochs=12, recipe__augment__shift=0)
    assert result.value == 1


def ways(path: Path) -> list:
    """The same picture as a path, in a list, as bytes, as a Pillow image and as what Pillow makes of it."""
    upright = Image.open(path)
    exif = upright.getexif().get(0x0112)
    array = np.asarray(upright)
    return [path, str(path), path.read_bytes(), Image.open(path), np.rot90(array, -1).copy() if exif == 6 else array]


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_da16_the_same_picture_gives_the_same_answer_however_it_comes(tmp_path, channels):
    """A photo with a rotation tag, a grey picture, and one with alpha."""
    data = write_colours(tmp_path / "data", 6)
    run = tiny(data, tmp_path / "run", preprocess__channels=channels).run
    y, x = np.mgrid[:20, :30]
    scene = Image.fromarray(np.stack([x * 8, y * 12, (x * y) % 256], axis=2).astype(np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    scene.save(tmp_path / "tagged.jpg", exif=exif)
    scene.convert("L").save(tmp_path / "grey.png")
    clear = scene.copy()
    clear.putalpha(Image.fromarray((x * 8).astype(np.uint8)))
    clear.save(tmp_path / "alpha.png")
    predictor = Predictor(run)
    tops = set()
    for name in ("tagged.jpg", "grey.png", "alpha.png"):
        alone = {predictor(way)[0].top for way in ways(tmp_path / name)}
        listed = {answer.top for answer in predictor(ways(tmp_path / name))}
        assert len(alone) == len(listed) == 1
        tops |= alone
    assert len(tops) == 3


@pytest.mark.parametrize("channels", [1, 4])
def test_da18_channels_drive_decoding_and_normalisation(tmp_path, channels):
    data = write_colours(tmp_path / "data", 10)
    text = call(
        "train", data, "--epochs", 2, "--out", tmp_path / "run", "--set", f"preprocess.channels={channels}", *QUICK
    )
    assert "best validation accuracy" in text
    model, header = load_file(Run(tmp_path / "run").best)
    assert header.preprocess.channels == len(header.preprocess.mean) == len(header.preprocess.std) == channels
    assert next(p for p in model.parameters() if p.dim() == 4).shape[1] == channels
    Image.new("L", (9, 7), 90).save(tmp_path / "l.png")
    Image.new("RGB", (9, 7), (90, 90, 90)).save(tmp_path / "rgb.png")
    Image.new("RGBA", (9, 7), (90, 90, 90, 255)).save(tmp_path / "rgba.png")
    answers = Predictor(tmp_path / "run")([tmp_path / f"{name}.png" for name in ("l", "rgb", "rgba")])
    assert len({answer.top for answer in answers}) == 1
    assert evaluate(tmp_path / "run", data).scores.images == 4


NAMES = ("猫 Ünï", "x'y & a b")


def test_da19_names_in_any_script_through_training_and_csv(tmp_path):
    data = write_colours(tmp_path / "ordner ß" / "データ", 10, NAMES)
    run = tmp_path / "läufe" / "ラン"
    call("train", data, "--epochs", 2, "--out", run, *QUICK)
    assert Run(run).read_config().classes == tuple(sorted(NAMES))
    call("predict", run, data, "--csv", tmp_path / "ü.csv")
    with open(tmp_path / "ü.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 20
    assert {row["label"] for row in rows} <= set(NAMES)
    assert {Path(row["image"]).parent.name for row in rows} == set(NAMES)
    assert json.loads(call("evaluate", run, data, "--json"))["images"] == 4


@pytest.mark.parametrize(("fit", "learned"), [("pad", True), ("crop", False)])
def test_da22_what_lies_at_the_edge_of_wide_pictures_is_learned_with_pad(tmp_path, fit, learned):
    """A mark in the right tenth of 4:1 pictures; the crop cuts it away, and the model keeps the choice."""
    draw = np.random.default_rng(0)
    for name, value in (("dark", 0), ("light", 255)):
        (tmp_path / "data" / name).mkdir(parents=True)
        for i in range(30):
            pixels = draw.integers(90, 160, (16, 64), np.uint8)
            pixels[:, 58:] = value
            Image.fromarray(pixels).save(tmp_path / "data" / name / f"{i}.png")
    changes = {"preprocess__fit": fit, "preprocess__image": 16, "recipe__optimizer__lr": 0.01}
    result = tiny(tmp_path / "data", tmp_path / "run", epochs=20, **changes)
    assert (result.value == 1) is learned
    predictor = Predictor(result.run)
    assert predictor.preprocess.fit == fit
    page = Run(result.run).report_file.read_text(encoding="utf-8")
    assert "What the network sees" in page
    shown = re.search(r'<div class="seen">.*?base64,([^"]+)', page, re.S)
    seen = Image.open(io.BytesIO(base64.b64decode(shown[1])))
    marked = np.ptp(np.asarray(seen.convert("L"), int)[:, seen.width * 29 // 32 :])
    assert bool(marked > 90) is learned


SPAWN = """
import multiprocessing
import sys

if __name__ == "__main__":
    from mixwise import train

    multiprocessing.set_start_method("spawn")
    changes = {"recipe.batch_size": 16, "precision": "fp32", "recipe.ema": 0.0, "data.workers": 2}
    train(sys.argv[1], model="pool_nano", out=sys.argv[2], epochs=2, changes=changes, device="cpu")
"""


def test_da24_spawned_workers_change_nothing(tmp_path):
    """With the start method of Windows and macOS, two workers, and a picture that cannot be read."""
    data = write_colours(tmp_path / "data", 12)
    damage(data / "red" / "003.png")
    (tmp_path / "spawn.py").write_text(SPAWN, encoding="utf-8")
    command = [sys.executable, tmp_path / "spawn.py", data, tmp_path / "spawned"]
    subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    plain = tiny(data, tmp_path / "plain", epochs=2, data__workers=0)
    assert last_hash(tmp_path / "spawned") == last_hash(plain.run)


def test_bad_pictures_do_not_depend_on_workers_or_interruptions(tmp_path):
    data = write_colours(tmp_path / "data", 20)
    (data / "red" / "001.png").write_bytes(b"x")
    for i in (5, 6):
        damage(data / "red" / f"{i:03d}.png")
    settings = {"state_every": 0, "recipe__batch_size": 4}
    plain = tiny(data, tmp_path / "plain", epochs=3, data__workers=0, **settings)
    busy = Run(tiny(data, tmp_path / "busy", epochs=3, data__workers=2, data__cache=0, **settings).run)
    assert last_hash(busy.folder) == last_hash(plain.run)
    os.replace(busy.previous_state, busy.state)
    train(resume=busy.folder)
    assert last_hash(busy.folder) == last_hash(plain.run)


@pytest.mark.parametrize("model", ["pool_nano", "repmlp_nano"])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_batches_of_which_all_fell_out_are_skipped(tmp_path, model, accumulate):
    """Batches of two, of which many have none or one picture left; the models have batch norm."""
    data = write_colours(tmp_path / "data", 12)
    for i in range(7):
        damage(data / "red" / f"{i:03d}.png")
    changes = {"recipe__batch_size": 2, "data__max_bad": 1.0, "recipe__accumulate": accumulate, "recipe__ema": 0.9}
    result = tiny(data, tmp_path / "run", epochs=2, model=model, **changes)
    rows = Run(result.run).read_metrics()
    assert [float(row["train_loss"]) > 0 for row in rows] == [True, True]
    assert evaluate(result.run, data).scores.images + 7 >= 4


def test_nothing_readable_stops(tmp_path):
    data = write_colours(tmp_path / "data", 4)
    run = tiny(data, tmp_path / "run").run
    for path in data.rglob("*.png"):
        path.write_bytes(b"")
    with pytest.raises(MixwiseError, match="2 of the 2 pictures of the val split could not be read"):
        evaluate(run, data)
    with pytest.raises(MixwiseError, match=r"none of its 6 train pictures can be read"):
        tiny(data, tmp_path / "again", data__max_bad=1)


def test_max_pixels_reaches_every_verb(tmp_path):
    data = write_colours(tmp_path / "data", 6)
    Image.new("RGB", (40, 40)).save(data / "red" / "000.png")
    text = call("train", data, "--epochs", 1, "--out", tmp_path / "run", "--max-pixels", 1599, *QUICK)
    assert "000.png (too large)" in text
    (tmp_path / "all").mkdir()
    data = data.rename(tmp_path / "all" / "data")
    few = json.loads(call("evaluate", tmp_path / "run", data, "--max-pixels", 1599, "--json"))
    assert (few["images"], [b["reason"] for b in few["bad"]]) == (11, ["too large"])
    assert json.loads(call("evaluate", tmp_path / "run", data, "--json"))["images"] == 12
    assert "too large" in call("predict", tmp_path / "run", data, "--max-pixels", 1599, "--json", code=1)
    with pytest.raises(BadImage, match="too large"):
        evaluate(tmp_path / "run", data, max_pixels=1599, on_bad="error")


def test_sv05_bad_files_are_rows_with_their_reason(tmp_path):
    data = write_colours(tmp_path / "data", 4)
    run = tiny(data, tmp_path / "run").run
    for name, content in (
        ("empty.png", b""),
        ("text.jpg", b"hello"),
        ("cut.png", (data / "red" / "000.png").read_bytes()[:200]),
    ):
        (data / "red" / name).write_bytes(content)
    call("predict", run, data / "red", "--csv", tmp_path / "out.csv", code=1)
    with open(tmp_path / "out.csv", encoding="utf-8", newline="") as file:
        rows = {Path(row["image"]).name: row for row in csv.DictReader(file)}
    assert len(rows) == 7
    errors = {name: row["error"].split(": ")[1].split(",")[0] for name, row in rows.items() if row["error"]}
    assert errors == {"empty.png": "empty", "text.jpg": "unreadable", "cut.png": "truncated"}
    assert all((row["label"] == row["probability"] == "") == bool(row["error"]) for row in rows.values())


def test_names_that_are_no_text_do_not_stop_anything(tmp_path):
    """Bytes of another encoding in a file name, in every output."""
    data = write_colours(tmp_path / "data", 6)
    os.rename(data / "red" / "000.png", os.fsencode(data / "red") + b"/caf\xe9.png")
    Path(os.fsdecode(os.fsencode(data / "red") + b"/na\xefve.png")).write_bytes(b"x")
    assert "na\\xefve.png (not an image)" in call("train", data, "--epochs", 1, "--out", tmp_path / "run", *QUICK)
    for form in ([], ["--json"], ["--csv", "-"]):
        assert "caf" in call("predict", tmp_path / "run", data / "red", *form, code=1)
