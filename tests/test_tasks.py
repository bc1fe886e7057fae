"""Scores and choices against scikit-learn, scipy, torchmetrics and by hand."""

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn import metrics
from torchmetrics.functional.classification import binary_calibration_error, multiclass_calibration_error

from mixwise.config import Decision
from mixwise.errors import UsageError
from mixwise.tasks import TASKS, calibration_error, decide, task
from mixwise.tasks.calibration import FEW, bins
from mixwise.tasks.decide import fit_temperature
from mixwise.tasks.intervals import bootstrap, share_interval
from mixwise.tasks.ranking import Ranking, best_threshold

CLASSIFY, MULTILABEL = task("classify"), task("multilabel")
PLAIN = Decision()


@pytest.fixture
def answers():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(200, 7, generator=generator) * 2, torch.randint(7, (200,), generator=generator)


@pytest.fixture
def several():
    """Probabilities (60, 5) and labels; the last label never occurs."""
    generator = torch.Generator().manual_seed(2)
    logits, target = torch.randn(60, 5, generator=generator), labelled("multilabel", generator, 60)
    return (logits + 1.5 * target).sigmoid(), target


def labelled(name, generator, count):
    if name == "classify":
        return torch.randint(5, (count,), generator=generator)
    return torch.randint(2, (count, 5), generator=generator).float() * torch.tensor([1, 1, 1, 1, 0])


def test_scores_equal_sklearn(answers):
    logits, target = answers
    names = tuple("abcdefg")
    got = CLASSIFY.score(logits.softmax(1), target, names, PLAIN, topk=3)
    answer = logits.argmax(1).numpy()
    precision, recall, f1, support = metrics.precision_recall_fscore_support(target, answer, zero_division=0)
    assert got.top1 == pytest.approx(metrics.accuracy_score(target, answer))
    assert got.topk == pytest.approx(metrics.top_k_accuracy_score(target, logits.softmax(1), k=3))
    assert got.balanced == pytest.approx(metrics.balanced_accuracy_score(target, answer))
    assert np.array_equal(got.confusion, metrics.confusion_matrix(target, answer))
    for i, c in enumerate(got.classes):
        assert (c.precision, c.recall, c.f1, c.support) == pytest.approx(
            (precision[i], recall[i], f1[i], support[i]), abs=1e-6
        )
    assert got.loss == pytest.approx(metrics.log_loss(target, logits.double().softmax(1)), abs=1e-5)


def test_calibration_error_equals_torchmetrics(answers, several):
    logits, target = answers
    got = calibration_error(CLASSIFY.reliability(logits.softmax(1), target))
    assert got == pytest.approx(float(multiclass_calibration_error(logits.softmax(1), target, 7)), abs=1e-5)
    probabilities, labels = several
    got = calibration_error(MULTILABEL.reliability(probabilities, labels))
    wanted = binary_calibration_error(probabilities.flatten(), labels.flatten().long())
    assert got == pytest.approx(float(wanted), abs=1e-5)


def test_calibration_by_hand():
    probabilities = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.35, 0.65]])
    got = CLASSIFY.score(probabilities, torch.tensor([0, 1, 1]), ("a", "b"), PLAIN)
    assert got.calibration_error == pytest.approx((2 * abs(0.9 - 0.5) + abs(0.65 - 1)) / 3, abs=1e-5)
    assert [(b.count, b.share) for b in got.reliability] == [(1, 1), (2, 0.5)]
    assert got.k == 2
    assert bins(torch.tensor([0.0, 1.0]), torch.tensor([0, 1]))[-1].count == 1


def test_absent_classes_and_one_class():
    got = CLASSIFY.score(torch.eye(4)[[0, 0]], torch.tensor([0, 1]), tuple("abcd"), PLAIN)
    assert [c.support for c in got.classes] == [1, 1, 0, 0]
    assert got.classes[1].recall == got.classes[1].f1 == 0
    assert np.isnan(got.classes[2].recall)  # of no pictures
    assert np.isnan(got.classes[1].precision)  # never answered
    assert got.balanced == 0.5
    assert got.table().cells()[2] == ["c", "0", "–", "–", "–"]
    one = CLASSIFY.score(torch.ones(4, 1), torch.zeros(4, dtype=torch.long), ("only",), PLAIN)
    assert (one.top1, one.k, one.majority, one.calibration_error) == (1, 1, 1, 0)
    assert one.confusion.tolist() == [[4]]


@pytest.mark.parametrize(("classes", "asked", "told"), [(1, 5, None), (2, 5, None), (6, 1, None), (6, 5, 5), (6, 3, 3)])
def test_tr01_top_k_is_clamped_and_told_only_where_it_says_something(classes, asked, told):
    probabilities = torch.rand(20, classes).softmax(1)
    got = CLASSIFY.score(probabilities, torch.arange(20) % classes, tuple("abcdef"[:classes]), PLAIN, topk=asked)
    assert got.k == min(asked, classes)
    assert [what for what, _, _ in got.summary() if what.startswith("top-")] == (
        [f"top-{told} accuracy"] if told else []
    )


def test_loss_takes_indices_and_probabilities(answers):
    logits, target = answers
    soft = torch.nn.functional.one_hot(target, 7).float()
    assert torch.allclose(CLASSIFY.loss(logits, target, smoothing=0.1), CLASSIFY.loss(logits, soft, smoothing=0.1))


@pytest.mark.parametrize("name", TASKS)
def test_meter_in_batches_equals_score(name):
    generator = torch.Generator().manual_seed(1)
    logits, target = torch.randn(40, 5, generator=generator), labelled(name, generator, 40)
    meter = task(name).meter(5)
    for rows in torch.arange(40).split(16):
        meter.update(logits[rows], task(name).truth(target[rows]))
    got = task(name).score(task(name).probabilities(logits), target, tuple("abcde"), PLAIN)
    assert 0 < got.value < 1
    assert float(meter.compute()) == pytest.approx(got.value)
    assert got.loss == pytest.approx(float(task(name).loss(logits, target)), abs=1e-5)
    assert got.interval[0] < got.value < got.interval[1]


def test_meter_takes_outputs_between_zero_and_one_for_outputs():
    meter = MULTILABEL.meter(1)
    for outputs, truth in (([-3.0, 0.2], [0, 0]), ([0.1, 0.3], [0, 1])):
        meter.update(torch.tensor(outputs)[:, None], torch.tensor(truth)[:, None])
    assert float(meter.compute()) == 1


def test_meter_without_a_single_label_is_zero_so_that_weights_are_kept():
    meter = MULTILABEL.meter(3)
    meter.update(torch.randn(4, 3), torch.zeros(4, 3, dtype=torch.long))
    assert float(meter.compute()) == 0


@pytest.mark.parametrize("decimals", [6, 1])
def test_average_precision_of_a_sample_equals_sklearn_with_weights(several, decimals):
    probabilities, target = several
    p, truth = probabilities.numpy().round(decimals), target.numpy() > 0.5
    counts = np.random.default_rng(0).integers(0, 3, len(p))
    for weights in (np.ones(len(p)), counts):
        got = Ranking(p, truth)(weights)
        wanted = [metrics.average_precision_score(truth[:, i], p[:, i], sample_weight=weights) for i in range(4)]
        assert got[:4] == pytest.approx(wanted)
        assert np.isnan(got[4])


def test_label_scores_equal_sklearn(several):
    probabilities, target = several
    cut = np.array([0.3, 0.5, 0.7, 0.6, 0.8])
    got = MULTILABEL.score(probabilities, target, tuple("abcde"), Decision(thresholds=tuple(cut)))
    said, truth = probabilities.numpy() >= cut, target.numpy() > 0.5
    assert got.value == pytest.approx(
        metrics.average_precision_score(truth[:, :4], probabilities[:, :4], average="macro")
    )
    assert got.exact == pytest.approx(metrics.accuracy_score(truth, said))
    assert got.micro_f1 == pytest.approx(metrics.f1_score(truth, said, average="micro", zero_division=0))
    assert got.macro_f1 == pytest.approx(metrics.f1_score(truth[:, :4], said[:, :4], average="macro"))
    precision, recall, f1, support = metrics.precision_recall_fscore_support(truth, said, zero_division=0)
    for i, label in enumerate(got.labels[:4]):
        assert (label.precision, label.recall, label.f1) == pytest.approx((precision[i], recall[i], f1[i]))
        assert (label.support, label.threshold) == (support[i], pytest.approx(cut[i]))
    assert np.isnan(got.labels[4].average_precision)
    with pytest.raises(UsageError, match="top-k"):
        MULTILABEL.score(probabilities, target, tuple("abcde"), PLAIN, topk=3)


@pytest.mark.parametrize("decimals", [6, 1])
def test_best_threshold_is_best_among_all(several, decimals):
    p, truth = several[0].numpy().round(decimals)[:, 0], several[1].numpy()[:, 0] > 0.5
    tries = [metrics.f1_score(truth, p >= t, zero_division=0) for t in np.unique(p)]
    assert metrics.f1_score(truth, p >= best_threshold(p, truth)) == pytest.approx(max(tries))


def test_labels_that_too_few_pictures_have_or_lack_keep_one_half():
    target = torch.zeros(100, 3)
    target[:40, 0], target[:4, 1], target[:96, 2] = 1, 1, 1
    probabilities = torch.linspace(0.4, 0.1, 100)[:, None].repeat(1, 3)
    decision, notes = MULTILABEL.cutoffs(probabilities, target, ("often", "seldom", "nearly always"))
    assert decision.thresholds[1:] == (0.5, 0.5)
    assert float(probabilities[40, 0]) < decision.thresholds[0] < float(probabilities[39, 0])
    assert "seldom, nearly always" in notes[-1]
    assert "often" not in notes[-1]


def test_interval_of_an_accuracy_is_that_of_the_binomial_and_repeats():
    right = np.arange(400) < 300
    low, high = interval = bootstrap(400, lambda counts: counts @ right / 400)
    assert (low, high) == pytest.approx(stats.binom(400, 0.75).ppf([0.025, 0.975]) / 400, abs=0.006)
    assert interval == bootstrap(400, lambda counts: counts @ right / 400)
    assert interval != bootstrap(400, lambda counts: counts @ right / 400, seed=1)
    assert all(map(np.isnan, bootstrap(3, lambda counts: float("nan"))))


def test_interval_of_an_accuracy_without_mistakes_has_a_width():
    some = np.arange(400) < 300
    assert share_interval(some) == bootstrap(400, lambda counts: counts @ some / 400)
    (low, high), (least, most) = share_interval(np.ones(4)), share_interval(np.zeros(4))
    assert (low, high) == pytest.approx(stats.binomtest(4, 4).proportion_ci(method="wilson"))
    assert (least, most) == pytest.approx(stats.binomtest(0, 4).proportion_ci(method="wilson"))


def drawn(name, wrong, count=4000):
    """Outputs whose probabilities are true, multiplied by `wrong`, and labels drawn from them."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(count, 4, generator=generator) * 2
    if name == "classify":
        return logits * wrong, torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    return logits * wrong, torch.bernoulli(logits.sigmoid(), generator=generator)


@pytest.mark.parametrize("wrong", [3.0, 0.4])
@pytest.mark.parametrize("name", TASKS)
def test_temperature_undoes_what_made_the_probabilities_wrong(name, wrong):
    logits, target = drawn(name, wrong)
    decision, notes = decide(task(name), logits, target, tuple("abcd"))
    assert decision.temperature == pytest.approx(wrong, rel=0.06)
    before, after = (
        calibration_error(task(name).reliability(task(name).probabilities(outputs), target))
        for outputs in (logits, logits / decision.temperature)
    )
    assert after < before / 3
    assert f"{before:.1%} before, {after:.1%} after" in notes[0]


@pytest.mark.parametrize("name", TASKS)
def test_temperature_never_makes_the_loss_larger(name):
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        logits, target = torch.randn(60, 5, generator=generator), labelled(name, generator, 60)
        temperature = fit_temperature(task(name), logits, target)
        assert task(name).loss(logits / temperature, target) <= task(name).loss(logits, target)


def test_a_temperature_that_makes_the_probabilities_less_true_is_not_kept():
    """Of a label that few pictures have, dividing draws the probability towards one half."""
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(400, 3, generator=generator) - 2
    target = (torch.rand(400, 3, generator=generator) < 0.1).float()
    temperature = fit_temperature(MULTILABEL, logits, target)
    assert MULTILABEL.loss(logits / temperature, target) < 0.8 * MULTILABEL.loss(logits, target)
    decision, notes = decide(MULTILABEL, logits, target, tuple("abc"))
    assert decision.temperature == 1
    assert len(decision.thresholds) == 3
    assert "no temperature" in notes[0]


def test_all_right_does_not_make_certain():
    target = torch.arange(60) % 3
    temperature = fit_temperature(CLASSIFY, 2.0 * torch.eye(3)[target], target)
    assert 0.05 < temperature < 1
    assert float((2 * torch.eye(3) / temperature).softmax(1).max()) < 0.999


@pytest.mark.parametrize("name", TASKS)
def test_too_few_pictures_choose_nothing_and_say_so(name):
    logits, target = drawn(name, 3.0, FEW - 1)
    decision, notes = decide(task(name), logits, target, tuple("abcd"))
    assert decision == PLAIN
    assert f"{FEW - 1} validation pictures are too few" in notes[0]


def test_one_class_chooses_nothing():
    decision, notes = decide(CLASSIFY, torch.randn(80, 1), torch.zeros(80, dtype=torch.long), ("only",))
    assert decision == PLAIN
    assert "one class" in notes[0]


def test_reject_threshold_keeps_just_the_right_answers_that_it_should(answers):
    logits, target = drawn("classify", 1.0, 1000)
    probabilities = logits.softmax(1)
    decision, notes = CLASSIFY.cutoffs(probabilities, target, tuple("abcd"))
    confidence, answer = probabilities.max(1)
    right = confidence[answer == target]
    assert 0.95 <= float((right >= decision.reject).float().mean()) < 0.955
    withheld = int((confidence[answer != target] < decision.reject).sum())
    assert f"withholds {withheld} of the {int((answer != target).sum())} wrong" in notes[0]
    got = CLASSIFY.score(probabilities, target, tuple("abcd"), decision)
    kept = confidence >= decision.reject
    assert got.coverage == pytest.approx(float(kept.float().mean()))
    assert got.answered_top1 == pytest.approx(float((answer == target)[kept].float().mean()))
    assert got.answered_top1 > got.top1
    everything = CLASSIFY.score(probabilities, target, tuple("abcd"), PLAIN)
    assert (everything.coverage, everything.answered_top1) == (1, pytest.approx(got.top1))


def test_reject_threshold_needs_right_answers():
    wrong = torch.eye(4)[torch.zeros(60, dtype=torch.long)]
    decision, notes = CLASSIFY.cutoffs(wrong, torch.ones(60, dtype=torch.long), tuple("abcd"))
    assert decision.reject is None
    assert "too few" in notes[0]


def test_answers_by_hand():
    row = torch.tensor([0.2, 0.7, 0.1])
    assert CLASSIFY.chosen(row, PLAIN) == [1]
    assert CLASSIFY.chosen(row, Decision(reject=0.71)) == []
    assert MULTILABEL.chosen(row, PLAIN) == [1]
    assert MULTILABEL.chosen(row, Decision(thresholds=(0.2, 0.3, 0.2))) == [1, 0]
    assert MULTILABEL.chosen(row, Decision(thresholds=(0.3, 0.8, 0.2))) == []


def test_worst_mistakes_come_first_and_withheld_answers_are_none():
    p, names = torch.tensor([[0.6, 0.4], [0.9, 0.1], [0.8, 0.2]]), ("a", "b")
    found = CLASSIFY.mistakes(p, torch.tensor([1, 1, 0]), names, PLAIN)
    assert [(m.index, m.said) for m in found] == [(1, "b taken for a (90%)"), (0, "b taken for a (60%)")]
    assert [m.index for m in CLASSIFY.mistakes(p, torch.tensor([1, 1, 0]), names, Decision(reject=0.7))] == [1]
    found = MULTILABEL.mistakes(p, torch.tensor([[0.0, 1], [0, 0], [1, 0]]), names, PLAIN)
    assert [(m.index, m.said) for m in found] == [(1, "added a (90%)"), (0, "added a (60%), missed b (40%)")]
    many = MULTILABEL.mistakes(torch.full((1, 6), 0.6), torch.zeros(1, 6), tuple("abcdef"), PLAIN)
    assert many[0].said.endswith("added d (60%), 2 more")


def test_unknown_task_names_the_nearest():
    with pytest.raises(UsageError, match="multilabel"):
        task("multi-label")
