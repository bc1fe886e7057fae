"""Scores against scikit-learn's."""

import numpy as np
import pytest
import torch
from sklearn import metrics

from mixwise.errors import UsageError
from mixwise.tasks import TASKS, task
from mixwise.tasks.classify import loss, score


@pytest.fixture
def answers():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(200, 7, generator=generator) * 2, torch.randint(7, (200,), generator=generator)


def test_scores_equal_sklearn(answers):
    logits, target = answers
    names = tuple("abcdefg")
    got = score(logits.softmax(1), target, names, topk=3)
    answer = logits.argmax(1).numpy()
    precision, recall, f1, support = metrics.precision_recall_fscore_support(target, answer, zero_division=0)
    assert got.top1 == pytest.approx(metrics.accuracy_score(target, answer))
    assert got.topk == pytest.approx(metrics.top_k_accuracy_score(target, logits.softmax(1), k=3))
    assert np.array_equal(got.confusion, metrics.confusion_matrix(target, answer))
    for i, c in enumerate(got.classes):
        assert (c.precision, c.recall, c.f1, c.support) == pytest.approx(
            (precision[i], recall[i], f1[i], support[i]), abs=1e-6
        )
    assert got.loss == pytest.approx(metrics.log_loss(target, logits.double().softmax(1)), abs=1e-5)


def test_calibration_by_hand():
    probabilities = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.35, 0.65]])
    got = score(probabilities, torch.tensor([0, 1, 1]), ("a", "b"))
    assert got.calibration_error == pytest.approx((2 * abs(0.9 - 0.5) + abs(0.65 - 1)) / 3, abs=1e-5)
    assert got.k == 2


def test_absent_classes_and_one_class():
    got = score(torch.eye(3)[[0, 0]], torch.tensor([0, 1]), ("a", "b", "c"))
    assert [c.support for c in got.classes] == [1, 1, 0]
    assert got.classes[2].recall == 0
    one = score(torch.ones(4, 1), torch.zeros(4, dtype=torch.long), ("only",))
    assert (one.top1, one.k, one.majority, one.calibration_error) == (1, 1, 1, 0)


def test_loss_takes_indices_and_probabilities(answers):
    logits, target = answers
    soft = torch.nn.functional.one_hot(target, 7).float()
    assert torch.allclose(loss(logits, target, smoothing=0.1), loss(logits, soft, smoothing=0.1))


def labelled(name, generator):
    if name == "classify":
        return torch.randint(5, (40,), generator=generator)
    return torch.randint(2, (40, 5), generator=generator).float() * torch.tensor([1, 1, 1, 1, 0])


@pytest.mark.parametrize("name", TASKS)
def test_meter_in_batches_equals_score(name):
    generator = torch.Generator().manual_seed(1)
    logits, target = torch.randn(40, 5, generator=generator), labelled(name, generator)
    meter = task(name).meter(5)
    for rows in torch.arange(40).split(16):
        meter.update(logits[rows], task(name).truth(target[rows]))
    got = task(name).score(task(name).probabilities(logits), target, tuple("abcde"))
    assert 0 < got.value < 1
    assert float(meter.compute()) == pytest.approx(got.value)
    assert got.loss == pytest.approx(float(task(name).loss(logits, target)), abs=1e-5)


def test_mean_average_precision_is_that_of_sklearn_over_labels_that_occur():
    generator = torch.Generator().manual_seed(2)
    logits, target = torch.randn(40, 5, generator=generator), labelled("multilabel", generator)
    got = task("multilabel").score(logits.sigmoid(), target, tuple("abcde"))
    assert got.value == pytest.approx(metrics.average_precision_score(target[:, :4], logits[:, :4], average="macro"))
    assert np.isnan(got.labels[4].average_precision)


def test_unknown_task_names_the_nearest():
    with pytest.raises(UsageError, match="multilabel"):
        task("multi-label")
