"""Pages and plots with awkward names and numbers."""

import jinja2
import numpy as np
import pytest
from PIL import Image

from mixwise.report.plots import confusion_matrix, curves, png, reliability, svg
from mixwise.tasks.calibration import Bin


def test_class_names_are_text_not_markup():
    names = ["a$b_{$", "猫", "<b>", "x'y"]
    text = svg(confusion_matrix(np.eye(4, dtype=int), names))
    assert text.startswith("<svg")
    assert "猫" in text
    assert "<b>" not in text


def test_only_the_most_confused_classes_are_drawn_when_there_are_many():
    counts = np.eye(50, dtype=int) * 5
    counts[7, 9] = 3
    text = svg(confusion_matrix(counts, [f"class{i:02d}" for i in range(50)], limit=4))
    assert "class07" in text
    assert "class09" in text
    assert text.count("class") <= 40


def test_a_part_of_the_classes_is_called_one():
    counts = np.eye(50, dtype=int)
    names = [f"class{i:02d}" for i in range(50)]
    assert confusion_matrix(counts, names, limit=50).axes[0].get_title() == ""
    assert confusion_matrix(counts, names, limit=4).axes[0].get_title().startswith("the 4 of 50 classes")


def test_long_class_names_leave_room_and_differ_at_both_ends():
    long = [f"{start}{'x' * 80}{end}" for start in "ab" for end in "yz"]
    labels = [tick.get_text() for tick in confusion_matrix(np.eye(4, dtype=int), long).axes[0].get_yticklabels()]
    assert max(map(len, labels)) <= 40
    assert len(set(labels)) == 4


def test_epochs_are_whole():
    rows = [{"epoch": str(n), "train_loss": "1"} for n in (1, 2)]
    assert all(tick == int(tick) for tick in curves(rows, "accuracy").axes[0].get_xticks())


def test_parts_of_a_path_keep_their_order_in_any_script():
    loader = jinja2.PackageLoader("mixwise.report", "templates")
    path = jinja2.Environment(loader=loader, autoescape=True).get_template("path.html").module.path
    assert path("نجم/<5>.png") == "<bdi>نجم</bdi>/<bdi>&lt;5&gt;.png</bdi>"


@pytest.mark.parametrize("metric", ["accuracy", "mAP"])
def test_curves_skip_epochs_without_validation(metric):
    rows = [
        {"epoch": "1", "train_loss": "2.0", f"train_{metric}": "0.1", "raw_val_loss": "", f"raw_val_{metric}": ""},
        {"epoch": "2", "train_loss": "1", f"train_{metric}": "0.5", "raw_val_loss": "1", f"raw_val_{metric}": "0.4"},
    ]
    figure = curves(rows, metric)
    assert [len(line.get_xdata()) for line in figure.axes[1].lines] == [2, 1]
    assert metric in svg(figure)
    assert svg(curves([], metric)).startswith("<svg")


def test_reliability_draws_every_bin():
    figure = reliability([Bin(3, 0.2, 1.0), Bin(90, 0.95, 0.9)])
    assert figure.axes[0].collections[0].get_offsets().tolist() == [[0.2, 1.0], [0.95, 0.9]]
    assert [bar.get_height() for bar in figure.axes[1].patches] == [3, 90]
    assert svg(figure).startswith("<svg")


def test_png_is_a_picture_on_white(tmp_path):
    png(confusion_matrix(np.eye(3, dtype=int), ["a", "猫", "c"]), tmp_path / "new" / "x.png")
    with Image.open(tmp_path / "new" / "x.png") as picture:
        assert picture.convert("RGB").getpixel((0, 0)) == (255, 255, 255)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["x.png"]
