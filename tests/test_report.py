"""Pages and plots with awkward names and numbers."""

import numpy as np

from mixwise.report.plots import confusion_matrix, curves


def test_class_names_are_text_not_markup():
    names = ["a$b_{$", "猫", "<b>", "x'y"]
    svg = confusion_matrix(np.eye(4, dtype=int), names)
    assert svg.startswith("<svg")
    assert "猫" in svg
    assert "<b>" not in svg


def test_only_the_most_confused_classes_are_drawn_when_there_are_many():
    counts = np.eye(50, dtype=int) * 5
    counts[7, 9] = 3
    svg = confusion_matrix(counts, [f"class{i:02d}" for i in range(50)], limit=4)
    assert "class07" in svg
    assert "class09" in svg
    assert svg.count("class") <= 40


def test_curves_skip_epochs_without_validation():
    rows = [
        {"epoch": "1", "train_loss": "2.0", "train_accuracy": "0.1", "raw_val_loss": "", "raw_val_accuracy": ""},
        {"epoch": "2", "train_loss": "1.0", "train_accuracy": "0.5", "raw_val_loss": "1.5", "raw_val_accuracy": "0.4"},
    ]
    assert curves(rows).startswith("<svg")
    assert curves([]).startswith("<svg")
