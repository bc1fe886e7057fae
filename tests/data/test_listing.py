"""Which pictures become validation: shares, rare labels, and what moves when the data changes."""

from collections import Counter

import numpy as np
import pytest

from mixwise.data.listing import Row, held_out, numbered


def rows(labels: list[tuple[str, ...]]) -> list[Row]:
    return [Row(f"{i}.png", f"{i}.png", each) for i, each in enumerate(labels)]


def random_labels(seed: int, count: int = 300) -> list[tuple[str, ...]]:
    """Six labels, from one in two pictures to a handful, some pictures without any."""
    draws = np.random.default_rng(seed).random((count, 6)) < (0.5, 0.3, 0.2, 0.1, 0.05, 0.015)
    return [tuple("abcdef"[i] for i in np.flatnonzero(row)) for row in draws]


@pytest.mark.parametrize("seed", range(5))
def test_several_labels_keep_their_shares_and_stand_in_both_parts(seed: int):
    labels = random_labels(seed)
    chosen, single = held_out(rows(labels), 0.2, seed)
    total = Counter(label for each in labels for label in each)
    held = Counter(label for i in chosen for label in labels[i])
    assert abs(len(chosen) - 60) <= 15
    for label, count in total.items():
        if count > 1:
            assert 1 <= held[label] < count
            assert abs(held[label] - 0.2 * count) <= max(2, 0.05 * count)
    assert single == [label for label, count in total.items() if count == 1]
    assert any(not labels[i] for i in chosen)  # pictures without a label are held out as well
    assert held_out(rows(labels), 0.2, seed)[0] == chosen
    assert held_out(rows(labels), 0.2, seed + 1)[0] != chosen


@pytest.mark.parametrize(
    ("names", "order"), [("10 9 -2", "-2 9 10"), ("b 10 9", "10 9 b"), ("--1 2 10", "--1 10 2"), ("² 10 9", "10 9 ²")]
)
def test_names_that_are_numbers_stand_in_their_order(names: str, order: str):
    assert " ".join(numbered(names.split())) == order


def test_every_label_keeps_one_picture_for_training():
    labels = [("a", "b"), ("b", "c"), ("a", "c")]
    for seed in range(20):
        chosen, _ = held_out(rows(labels), 0.5, seed)
        assert len(chosen) == 1
        left = {label for i, each in enumerate(labels) if i not in chosen for label in each}
        assert left == {"a", "b", "c"}


def test_one_more_picture_moves_no_other_one_except_at_the_border():
    labels = [("a",), ("b",)] * 100
    before, _ = held_out(rows(labels), 0.2, 0)
    after, _ = held_out(rows([*labels, ("a",)]), 0.2, 0)
    assert len(before ^ after) <= 2
    assert [sum(labels[i] == (name,) for i in before) for name in "ab"] == [20, 20]
