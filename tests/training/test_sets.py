"""Sets of pictures as people have them: few, one class, unbalanced. Ids are rows of the collected user reports."""

import io
import json

import numpy as np
import pytest
import torch
from rich.console import Console
from sklearn.metrics import recall_score
from typer.testing import CliRunner

from mixwise import UsageError, evaluate, info, train
from mixwise.cli import app
from mixwise.data.dataset import AddressedSampler
from mixwise.tasks import task
from mixwise.training.balance import picture_weights
from mixwise.training.run import Run
from mixwise.weights import load_file, weights_hash


def call(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("counts", [{"only": 8}, {"a": 8, "b": 8}, {"a": 5, "b": 5, "c": 5}])
def test_tr01_few_classes_through_every_verb(counts, draw, learn):
    data = draw("data", **counts)
    made, said = learn(data)
    assert made.value >= 0
    scores = json.loads(call("evaluate", made.run, data, "--topk", 5, "--json"))
    assert scores["k"] == len(counts)
    rows = [json.loads(line) for line in call("predict", made.run, data, "--topk", 5, "--json").splitlines()]
    assert all(len(row["top"]) == len(counts) for row in rows)
    assert "top-5" not in call("evaluate", made.run, data, "--topk", 5)
    assert ("only one class" in said) == (len(counts) == 1)


@pytest.mark.parametrize("workers", [0, 1])
def test_tr02_a_last_batch_of_one_picture(workers, draw, learn):
    """33 pictures, batches of 32, batch norm in front of every branch."""
    data = draw("data/train", a=17, b=16)
    draw("data/val", a=2, b=2)
    settings = {"model": "repmlp_nano", "recipe.batch_size": 32, "data.workers": workers}
    made, _ = learn(data.parent, **settings)
    assert len(Run(made.run).read_metrics()) == 2


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_set_smaller_than_a_batch(count, draw, learn):
    data = draw("data/train", a=count, b=count)
    draw("data/val", a=1, b=1)
    made, said = learn(data.parent, **{"recipe.batch_size": 64})
    assert f"smaller than a batch of 64: each epoch is one step with all {2 * count} images" in said
    assert torch.load(Run(made.run).state, weights_only=True)["global_step"] == 2
    assert f"batch {2 * count}, learning rate" in said


def test_a_val_split_that_is_not_used_is_told(draw, learn):
    data = draw("data/train", a=8, b=8)
    draw("data/val", a=2, b=2)
    told = "DATA has its own val split: val_split is not used"
    given = {"data.val_split": 0.4, "recipe.epochs": 1}
    assert learn(data.parent, out="own", **given)[1].count(told) == 1
    assert told not in learn(data.parent, out="silent", **{"recipe.epochs": 1})[1]
    assert told not in learn(data, out="used", **given)[1]
    both = given | {"data.split_seed": 3}
    assert "val_split and split_seed are not used" in learn(data.parent, out="both", **both)[1]


def test_one_class_is_counted_as_one(draw, learn):
    _, said = learn(draw("data", a=8), **{"recipe.epochs": 1})
    assert ": 1 class, " in said


def test_tr13_the_baseline_stands_beside_the_accuracy(draw, learn):
    data = draw("data", a=40, b=10)
    made, said = learn(data)
    assert made.baseline == pytest.approx(0.8)
    assert "always the commonest class: 80.00%" in said
    assert "recall" in said


def test_tr14_the_preset_beats_the_majority_on_300_shapes(draw, tmp_path):
    data = draw("data", noise=0.55, a=150, b=150)
    made = train(data, out=tmp_path / "run", epochs=6, changes={"precision": "fp32"})
    assert Run(made.run).read_config().recipe.name == "tiny pictures"
    assert made.value > made.baseline + 0.3
    assert not made.warnings


def test_tr14_one_class_for_everything_is_said(draw, learn):
    data = draw("data", noise=1.0, a=60, b=6)
    made, said = learn(data, **{"recipe.optimizer.lr": 1e-7, "recipe.epochs": 1})
    scores = evaluate(made.run, data).scores
    assert (scores.confusion.sum(axis=0) > 0).sum() == 1, "the input does not provoke what is reported"
    answer = scores.constant
    assert f"answers '{answer}' for every picture" in made.warnings[0]
    assert " ".join(made.warnings[0].split()) in " ".join(said.split())


def test_a_first_validation_without_error_is_suspected(draw, learn):
    data = draw("data", noise=0.0, a=100, b=100)
    _, said = learn(data, **{"recipe.augment.scale": 1, "recipe.augment.shift": 0, "recipe.ema": 0.0})
    assert said.count("the first validation, after epoch 1, reached 100 % accuracy") == 1
    _, said = learn(draw("noise", noise=1.0, a=100, b=100), out="other")
    assert "first validation" not in said


def test_tr15_the_defaults_learn_from_100_pictures(draw, tmp_path):
    data = draw("data", noise=0.4, a=25, b=25, c=25, d=25)
    made = train(data, out=tmp_path / "run", epochs=10)
    assert made.value > made.baseline + 0.2


@pytest.mark.parametrize("way", ["loss", "sampler"])
def test_da23_balance_raises_the_recall_of_a_rare_class(way, draw, learn):
    """95 to 5: without balance the rare class is hardly found."""
    data = draw("data/train", noise=0.6, common=285, rare=15)
    draw("data/val", noise=0.6, common=50, rare=50)
    fixed = {"recipe.epochs": 4, "recipe.batch_size": 32, "recipe.ema": 0.0, "recipe.label_smoothing": 0.0}

    def recall(out: str, **settings: object) -> tuple[float, str]:
        made, said = learn(data.parent, out=out, **fixed, **settings)
        scores = evaluate(Run(made.run).last, data.parent, split="val").scores
        truth = np.repeat([0, 1], scores.confusion.sum(axis=1))
        answers = np.concatenate([np.repeat([0, 1], row) for row in scores.confusion])
        return recall_score(truth, answers, average="macro"), said

    plain, said = recall("plain")
    assert "recall" in said, "the recall of each class is printed where classes are unbalanced"
    balanced, said = recall(way, **{"recipe.balance": way})
    assert balanced > plain + 0.05
    assert ("balance  loss: rare ×10, common ×0.53" if way == "loss" else "balance  sampler:") in said


def test_weights_of_classes_have_mean_one_over_the_pictures():
    counts = np.array([90, 0, 10])
    weights = task("classify").balance(counts, 100).numpy()
    assert weights @ counts == pytest.approx(100)
    assert weights[0] * 90 == pytest.approx(weights[2] * 10)
    assert weights[1] == 1
    assert task("multilabel").balance(np.array([50, 0, 1, 10]), 100).tolist() == [1, 1, 99, 9]


@pytest.mark.parametrize("name", ["classify", "multilabel"])
def test_weights_reach_the_loss(name):
    generator = torch.Generator().manual_seed(0)
    logits, kind = torch.randn(12, 3, generator=generator), task(name)
    target = torch.arange(12) % 3
    target = torch.nn.functional.one_hot(target, 3).float() if name == "multilabel" else target
    weight = torch.tensor([3.0, 1.0, 0.5])
    plain = kind.loss(logits, target, smoothing=0.1)
    assert torch.allclose(kind.loss(logits, target, smoothing=0.1, weight=torch.ones(3)), plain)
    weighted = kind.loss(logits, target, smoothing=0.1, weight=weight)
    assert not torch.allclose(weighted, plain)
    halves = [kind.loss(logits[rows], target[rows], smoothing=0.1, weight=weight) for rows in torch.arange(12).split(6)]
    assert torch.allclose(sum(halves) / 2, weighted), "a batch in parts has the loss of the whole"
    if name == "classify":
        mixed = torch.nn.functional.one_hot(target, 3).float()
        assert torch.allclose(kind.loss(logits, mixed, smoothing=0.1, weight=weight), weighted)


def test_pictures_are_drawn_so_that_every_class_comes_as_often():
    labels = np.repeat([0, 1], [950, 50])
    sampler = AddressedSampler(1000, 7, weights=picture_weights(labels, 2))
    keys = list(sampler)
    drawn = np.bincount([labels[key[1]] for key in keys])
    assert abs(drawn[0] - 500) < 60
    assert len(set(keys)) == len(keys), "a picture that comes again has another key, and so another augmentation"
    assert keys == list(sampler)
    sampler.set_epoch(1)
    assert keys != list(sampler)
    rows = np.zeros((10, 2), np.float32)
    rows[0], rows[1:4, 1] = (1, 1), 1
    assert picture_weights(rows, 2).tolist() == pytest.approx([1] + [1 / 4] * 3 + [1 / 6] * 6)


def test_a_balanced_sampler_resumes_like_unbroken_with_any_workers(draw, learn, tmp_path):
    data = draw("data", a=40, b=8)
    settings = {"recipe.balance": "sampler", "recipe.epochs": 3, "recipe.augment.scale": 0.5}
    hashes = []
    for workers in (0, 2):
        run = Run(learn(data, out=f"run{workers}", **settings, **{"data.workers": workers})[0].run)
        hashes.append(weights_hash(load_file(run.last)[0].state_dict()))
    run.previous_state.replace(run.state)
    run.last.unlink()
    train(resume=run.folder)
    hashes.append(weights_hash(load_file(run.last)[0].state_dict()))
    assert len(set(hashes)) == 1


def test_tr16_weights_of_another_class_count_get_a_new_head(draw, learn):
    old = learn(draw("old", a=10, b=10, c=10))[0]
    made, said = learn(draw("new", x=10, y=10), out="new_run", init=old.run)
    assert f"{old.run / 'model.safetensors'}, all but the head, which is new for 2 classes (3 classes there)" in said
    assert info(made.run).classes == ("x", "y")
    assert info(made.run).config.classes == 2


def test_init_keeps_how_the_weights_saw_their_pictures(draw, learn, tmp_path):
    data, turned = draw("data", a=10, b=10), tmp_path / "labels.txt"
    turned.write_text("b\na\n")
    own = {"preprocess.background": (1, 2, 3), "preprocess.fit": "pad", "preprocess.crop_pct": 0.9}
    own |= {"preprocess.filter": "nearest", "preprocess.mean": (0.3,), "preprocess.std": (0.2,)}
    old = learn(data, **own)[0]
    text = io.StringIO()
    changes = {"recipe.epochs": 1}
    console = Console(file=text, width=300)
    made = train(data, out=tmp_path / "new", init=old.run, labels=turned, changes=changes, console=console)
    assert info(made.run).preprocess == info(old.run).preprocess
    assert "new for 2 classes (the classes stand in another order there)" in text.getvalue()


def test_init_at_another_image_size_carries_the_weights_over(draw, learn, tmp_path):
    data = draw("old", a=10, b=10)
    old = learn(data, model="linear_nano")[0]
    settings = {"preprocess.image": 16, "recipe.optimizer.lr": 1e-9}
    made, said = learn(data, out="larger", init=old.run, **settings)
    assert "head and all; carried over from 8×8 pixels" in said
    assert info(made.run).config.image == (16, 16)
    whole = weights_hash(load_file(Run(made.run).last)[0].state_dict())
    for state in (Run(made.run).state, Run(made.run).previous_state):
        state.unlink()
    train(resume=made.run)
    assert weights_hash(load_file(Run(made.run).last)[0].state_dict()) == whole


def test_init_and_pretrained_are_one_choice(draw):
    with pytest.raises(UsageError, match="give one of them"):
        train(draw("data", a=4, b=4), init="x.safetensors", pretrained=True)


def test_weights_that_are_not_finite_are_refused(draw, learn, tmp_path):
    from mixwise import MixwiseError
    from mixwise.weights import save

    old = learn(draw("data", a=6, b=6))[0]
    model, header = load_file(Run(old.run).best)
    with torch.no_grad():
        model.head.weight[0, 0] = float("nan")
    save(tmp_path / "bad.safetensors", model.state_dict(), header)
    with pytest.raises(MixwiseError, match=r"bad.safetensors cannot be started from: head.weight"):
        learn(tmp_path / "data", out="next", init=tmp_path / "bad.safetensors")


def test_freeze_backbone_trains_the_head_alone(draw, learn, tmp_path):
    """Weights and running statistics stay to the bit; drop path is off, so the features stay too."""
    data = draw("data", a=12, b=12)
    old = learn(data, model="repmlp_nano")[0]
    settings = {"recipe.freeze": "backbone", "changes": {"drop_path": 0.5}, "recipe.epochs": 3, "recipe.ema": 0.9}
    made, said = learn(data, out="head", init=old.run, **settings)
    assert "only the head is trained" in said
    before, after = (load_file(path)[0].state_dict() for path in (Run(old.run).best, Run(made.run).last))
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name]) != name.startswith("head."), name
    with pytest.raises(UsageError, match="trains the head alone, on weights to start from"):
        learn(data, out="fresh", **{"recipe.freeze": "backbone"})
    assert not (tmp_path / "fresh").exists()
