"""What goes wrong in the middle of a training: the message, what is kept, and how it goes on."""

import errno
import os
import re
import resource
import subprocess
import sys

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from mixwise import MixwiseError, UsageError, info, train
from mixwise.cli import app, main
from mixwise.data.dataset import ImageDataset
from mixwise.model import Model
from mixwise.training import workers
from mixwise.training.keep import Keeper
from mixwise.training.loop import determined
from mixwise.training.module import Trainable
from mixwise.training.run import Run
from mixwise.weights import load_file, weights_hash


def last_hash(run) -> str:
    return weights_hash(load_file(Run(run).last)[0].state_dict())


def test_tr03_the_learning_rate_follows_the_batch_and_is_printed(draw, learn):
    _, said = learn(draw("data", a=8, b=8), **{"recipe.batch_size": 8, "recipe.optimizer.lr": 2e-3})
    assert "learning rate 0.00025 (= 0.002 × 8/64)" in said


@pytest.mark.parametrize("settings", [{"recipe.batch_size": 100_000}, {"recipe.accumulate": 5000}])
def test_tr03_the_learning_rate_follows_what_a_batch_can_hold(settings, draw, learn):
    """32 of 40 pictures are trained on; without a warm-up the first epoch, of one step, has the peak rate."""
    more = {"recipe.optimizer.lr": 2e-3, "recipe.warmup": 0, "recipe.epochs": 1}
    made, said = learn(draw("data", a=20, b=20), **settings, **more)
    assert "batch 32, learning rate 0.001 (= 0.002 × 32/64)" in said
    state = torch.load(Run(made.run).state, weights_only=True)
    assert state["lr_schedulers"][0]["base_lrs"] == pytest.approx([1e-3, 1e-3])


def test_tr03_a_rate_of_100_stops_with_a_sentence_and_exit_code_1(draw, tmp_path, capsys, monkeypatch):
    data, out = draw("data", a=40, b=40), tmp_path / "run"
    arguments = ["train", data, "--model", "pool_nano", "--lr", 1e9, "--out", out, "--device", "cpu", "--batch-size", 8]
    settings = ("recipe.optimizer.clip=0", "recipe.warmup=0", "precision=fp32")
    arguments += [word for setting in settings for word in ("--set", setting)]
    monkeypatch.setattr("sys.argv", ["mixwise", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        main()
    message = " ".join(capsys.readouterr().err.split())
    assert stop.value.code == 1
    assert "training diverged in epoch 1, step " in message
    assert "Try a lower learning rate (--lr 3.3e+08)" in message
    assert "Traceback" not in message


def test_what_was_kept_is_called_what_it_is(draw, learn):
    run = Run(learn(draw("data", a=8, b=8), **{"recipe.epochs": 1})[0].run)
    kept = Keeper(run, lambda: info(run.best), 0).kept
    assert f"the best weights so far (epoch 1, {info(run.best).weights}) and those after epoch 1; --init" in kept()
    run.best.unlink()
    assert kept() == f"Kept in {run.folder}: the weights after epoch 1; --init {run.last} starts from them"
    run.last.unlink()
    assert kept() == "Nothing was kept: no epoch was finished"


@pytest.mark.parametrize("kind", ["pictures", "loss", "gradient"])
def test_numbers_that_are_not_finite_stop_at_their_step(kind, draw, learn, tmp_path, monkeypatch):
    """What there was before is kept: the best weights, and a state that leads to the same step again."""
    data = draw("data", a=20, b=20)  # 32 of them to train on: two steps an epoch
    calls = {"n": 0}
    if kind == "pictures":
        whole = ImageDataset.__getitem__

        def item(self, key):
            image, label, index = whole(self, key)
            bad = self.train and key[0] == 1 and index == 7
            return (image * float("inf") if bad else image), label, index

        monkeypatch.setattr(ImageDataset, "__getitem__", item)
    elif kind == "loss":
        from mixwise.tasks import Classify

        plain = Classify.loss

        def loss(self, *values, smoothing=0.0, weight=None):
            calls["n"] += smoothing > 0
            return plain(self, *values, smoothing=smoothing) * (float("nan") if calls["n"] == 4 else 1)

        monkeypatch.setattr(Classify, "loss", loss)
    else:

        class Bad(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, gradient):
                calls["n"] += 1
                return gradient * (float("inf") if calls["n"] == 4 else 1)

        whole_call = Model.__call__
        monkeypatch.setattr(
            Model, "__call__", lambda self, x: Bad.apply(whole_call(self, x)) if self.training else whole_call(self, x)
        )
    with pytest.raises(MixwiseError) as stop:
        learn(data, **{"recipe.epochs": 5})
    text = str(stop.value)
    step = r"[34]" if kind == "pictures" else "4"
    assert re.search(rf"diverged in epoch 2, step {step}: values of the {kind} are not finite", text), text
    assert bool(re.search(r"Remove or repair these pictures: a/\d+\.png\.", text)) == (kind == "pictures"), text
    assert f"Kept in {tmp_path / 'run'}: the best weights so far (epoch 1" in text
    assert torch.load(Run(tmp_path / "run").state, weights_only=True)["epoch"] == 0
    for tensor in load_file(Run(tmp_path / "run").last)[0].state_dict().values():
        assert tensor.isfinite().all()
    monkeypatch.undo()
    assert info(train(resume=tmp_path / "run").run).epoch <= 5


@pytest.mark.parametrize("settings", [{"recipe.epochs": 5}, {"recipe.epochs": 1, "recipe.batch_size": 100_000}])
def test_weights_that_validation_finds_not_finite_are_no_result(settings, draw, learn, tmp_path, monkeypatch):
    """Steps that are finite may lead to weights that are not: here after the last step of the last epoch."""
    data, epochs = draw("data", a=20, b=20), settings["recipe.epochs"]
    plain = Trainable.on_validation_epoch_end

    def spoil(self):
        if self.current_epoch + 1 == epochs:
            self.sums |= {name: self.sums[name] * float("nan") for name in self.candidates()}
        plain(self)

    monkeypatch.setattr(Trainable, "on_validation_epoch_end", spoil)
    with pytest.raises(MixwiseError) as stop:
        learn(data, **settings)
    text = str(stop.value)
    assert f"diverged in epoch {epochs}: its validation loss is not a finite number. Try a lower learning" in text
    assert stop.value.exit_code == 1
    if epochs == 1:
        assert "Nothing was kept" in text
        assert not Run(tmp_path / "run").best.exists()
    else:
        assert "the best weights so far (epoch " in text
        assert info(tmp_path / "run").epoch < epochs
        monkeypatch.undo()
        assert train(resume=tmp_path / "run").epoch <= epochs


@pytest.mark.parametrize("bad", ["raw", "ema"])
def test_only_weights_with_a_finite_validation_loss_are_kept_as_best(bad, draw, learn, monkeypatch):
    plain = Trainable.on_validation_epoch_end

    def spoil(self):
        self.sums[bad] = self.sums[bad] * float("nan")
        plain(self)

    monkeypatch.setattr(Trainable, "on_validation_epoch_end", spoil)
    made, _ = learn(draw("data", a=20, b=20), **{"recipe.ema": 0.5})
    assert info(made.run).weights == ("ema" if bad == "raw" else "raw")
    for path in (Run(made.run).best, Run(made.run).last):
        assert all(np.isfinite(value) for value in info(path).metrics.values())


class LittleMemory:
    """Makes a model raise as a GPU does when more pictures than fit are passed through it in training."""

    def __init__(self, monkeypatch, *, training: int = 10**9, validation: int = 10**9, error=None):
        whole = Model.__call__
        self.sizes = []
        error = error or torch.OutOfMemoryError("CUDA out of memory")

        def call(model, images):
            if len(images) > (training if model.training else validation):
                raise error
            self.sizes.append(len(images))
            return whole(model, images)

        monkeypatch.setattr(Model, "__call__", call)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_out_of_memory_takes_fewer_pictures_at_a_time_and_the_same_step(accumulate, draw, learn, monkeypatch):
    data = draw("data", a=40, b=40)
    settings = {"recipe.accumulate": accumulate}
    whole, _ = learn(data, out="whole", **settings)
    LittleMemory(monkeypatch, training=5)
    made, said = learn(data, **settings)
    assert "out of memory in training with 16 pictures at a time: from now on 2 × 8" in said
    assert "out of memory in training with 8 pictures at a time: from now on 4 × 4" in said
    assert said.count("out of memory") == 2
    assert "the effective batch stays" in said
    steps = [torch.load(Run(r.run).state, weights_only=True)["global_step"] for r in (whole, made)]
    assert steps[0] == steps[1] == 8 // accumulate
    assert [r["lr"] for r in Run(whole.run).read_metrics()] == [r["lr"] for r in Run(made.run).read_metrics()]


def test_a_step_in_parts_is_the_step_of_the_whole(draw, learn, monkeypatch):
    """Without batch statistics the weights are the same up to rounding."""
    data = draw("data", a=20, b=20)
    settings = {"model": "pool_nano", "changes": {"norm": "layer"}, "recipe.augment.mixup": 0.5}
    whole, _ = learn(data, out="whole", **settings)
    LittleMemory(monkeypatch, training=4)
    made, _ = learn(data, **settings)
    for ours, theirs in zip(*(load_file(Run(r.run).last)[0].parameters() for r in (whole, made)), strict=True):
        assert torch.allclose(ours, theirs, atol=2e-5)


def test_a_run_short_of_memory_resumes_like_unbroken(draw, learn, monkeypatch):
    data = draw("data", a=20, b=20)
    LittleMemory(monkeypatch, training=8)
    run = Run(learn(data, **{"recipe.epochs": 3})[0].run)
    wanted = last_hash(run.folder)
    run.previous_state.replace(run.state)
    run.last.unlink()
    train(resume=run.folder)
    assert last_hash(run.folder) == wanted


def test_out_of_memory_in_validation_changes_no_score(draw, learn, monkeypatch):
    data = draw("data", a=40, b=40)
    whole, _ = learn(data, out="whole")
    LittleMemory(monkeypatch, validation=6, error=RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    made, said = learn(data)
    assert "out of memory in validation with 16 pictures at a time: from now on 2 × 8" in said
    assert made.weights_hash == whole.weights_hash
    rows = [Run(whole.run.parent / name).read_metrics() for name in ("whole", "run")]
    assert [r["raw_val_accuracy"] for r in rows[0]] == [r["raw_val_accuracy"] for r in rows[1]]


def test_memory_for_less_than_two_pictures_is_an_error(draw, learn, monkeypatch):
    LittleMemory(monkeypatch, training=1)
    with pytest.raises(MixwiseError, match="out of memory in training with 2 pictures at a time: take a smaller model"):
        learn(draw("data", a=20, b=20))


def test_other_runtime_errors_pass(draw, learn, monkeypatch):
    LittleMemory(monkeypatch, training=1, error=RuntimeError("something else"))
    with pytest.raises(RuntimeError, match="something else"):
        learn(draw("data", a=20, b=20))


@pytest.mark.parametrize("edit", [("ema = 0.5", "ema = 0.0"), ("pool_nano", "pool_tiny")])
def test_a_state_that_the_edited_settings_do_not_fit_is_an_error(edit, draw, learn):
    run = Run(learn(draw("data", a=10, b=10), **{"recipe.ema": 0.5})[0].run)
    text = run.config_file.read_text()
    assert edit[0] in text
    run.config_file.write_text(text.replace(*edit))
    with pytest.raises(MixwiseError, match="does not fit the config"):
        train(resume=run.folder)


@pytest.mark.parametrize("name", ["state.ckpt", "model.safetensors", "last.safetensors", "metrics.csv"])
def test_a_full_disk_loses_nothing_and_goes_on(name, draw, learn, tmp_path, monkeypatch):
    """The second time that this file is written, there is no room."""
    import mixwise.files as files

    data = draw("data", noise=0.6, a=20, b=20)
    wanted = last_hash(learn(data, out="unbroken", **{"recipe.epochs": 4})[0].run)
    replace, count = os.replace, {"n": 0}

    def full(source, target):
        if str(target).endswith(name) and "run" in str(target):
            count["n"] += 1
            if count["n"] == 2:
                raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(files.os, "replace", full)
    run = Run(tmp_path / "run")
    with pytest.raises(MixwiseError) as stop:
        learn(data, **{"recipe.epochs": 4})
    assert f"cannot write to {run.folder} (No space left on device)" in str(stop.value)
    assert f"mixwise train --resume {run.folder}" in str(stop.value)
    assert info(run.best).epoch
    assert load_file(run.best)
    assert not list(run.folder.glob("*.part"))
    monkeypatch.undo()
    assert last_hash(train(resume=run.folder).run) == wanted


def test_a_real_write_that_fails_is_a_sentence(draw, tmp_path):
    """No file may grow beyond 200 KB, so weights fit nowhere: as a full disk does it, not as a test imagines it."""
    data, out = draw("data", a=8, b=8), tmp_path / "run"
    code = (
        "import resource, sys; from mixwise.cli import main\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))\n"
        f"sys.argv = 'mixwise train {data} --model pool_nano --epochs 2 --device cpu --out {out}'.split(); main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert f"cannot write to {out}" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (out / "model.safetensors").exists()
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 200_000


@pytest.mark.parametrize(("free", "count"), [(None, 4), (10**9, 4), (60_000, 2), (1000, 0)])
def test_loader_processes_that_do_not_fit_into_shared_memory_are_left_out(free, count, monkeypatch):
    from mixwise.config import Preprocess

    monkeypatch.setattr(workers, "shared_memory", lambda: free)
    pre = Preprocess(image=(8, 8), channels=1, mean=(0.5,), std=(0.5,))
    got, text = workers.fitting_workers(4, (16, 16), pre)  # 3 × 32 pictures of 256 bytes a process
    assert got == count
    assert ("4 loader processes need up to" in text) == (count < 4)


def test_a_small_dev_shm_changes_no_result(draw, learn, monkeypatch):
    data = draw("data", a=20, b=20)
    wanted = last_hash(learn(data, **{"data.workers": 2})[0].run)
    monkeypatch.setattr(workers, "shared_memory", lambda: 1000)
    made, said = learn(data, out="small", **{"data.workers": 2})
    assert "loader processes need up to" in said
    assert last_hash(made.run) == wanted


def test_tr09_deterministic_names_what_cannot_comply(draw, learn, monkeypatch):
    data = draw("data", a=8, b=8)
    one, two = (learn(data, out=name, deterministic=True)[0] for name in ("one", "two"))
    assert one.weights_hash == two.weights_hash
    assert not torch.are_deterministic_algorithms_enabled()
    whole = Model.__call__

    def call(model, images):
        images.put_(torch.tensor([0]), torch.zeros(1))  # has no deterministic form anywhere
        return whole(model, images)

    monkeypatch.setattr(Model, "__call__", call)
    with pytest.raises(MixwiseError, match=r"--deterministic: put_ does not have a deterministic"):
        learn(data, out="three", deterministic=True)
    with pytest.raises(RuntimeError, match="mine"), determined():
        raise RuntimeError("mine")


def test_tr18_without_a_gpu_everything_works_and_asking_for_one_says_what_there_is(draw, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    data = draw("data", a=8, b=8)
    common = ["--model", "pool_nano", "--epochs", "1", "--set", "precision=fp32"]
    run = tmp_path / "run"
    for arguments in (["train", data, "--out", run, *common], ["evaluate", run, data], ["predict", run, data]):
        result = CliRunner().invoke(app, [str(a) for a in arguments])
        assert result.exit_code == 0, result.output
    with pytest.raises(UsageError, match="device 'cuda' is not available here; available: cpu"):
        train(data, out=tmp_path / "gpu", device="cuda")


def test_tr04_averaged_weights_are_within_a_few_points_of_the_raw_ones(draw, learn):
    """60 pictures, 20 epochs, a decay of 0.998 for 60 steps: the warm-up of the decay makes the average follow."""
    data = draw("data", noise=0.4, a=30, b=30)
    made, said = learn(data, **{"recipe.epochs": 20, "recipe.ema": 0.998})
    row = Run(made.run).read_metrics()[-1]
    assert abs(float(row["ema_val_accuracy"]) - float(row["raw_val_accuracy"])) <= 0.1
    other = "raw" if made.weights == "ema" else "ema"
    assert f"({made.weights} weights; {other} " in said, "both scores are printed"


def test_tr05_averaged_weights_far_below_the_raw_ones_are_warned_of_once(draw, learn, monkeypatch):
    from mixwise.training import module

    monkeypatch.setattr(module.ModelEmaV3, "update", lambda self, model, step=None: None)  # never follows
    data = draw("data", noise=0.2, a=60, b=60, c=60)
    made, said = learn(data, **{"recipe.epochs": 8, "recipe.ema": 0.998, "recipe.optimizer.lr": 0.01})
    rows = Run(made.run).read_metrics()
    far = [float(r["ema_val_accuracy"]) < float(r["raw_val_accuracy"]) - 0.1 for r in rows if r["raw_val_accuracy"]]
    assert sum(far) >= 3, "the input does not provoke what is reported"
    assert said.count("averaged weights were far below the trained ones in 3 validations") == 1
    assert made.weights == "raw"


@pytest.mark.parametrize("kind", ["raw", "ema"])
def test_tr06_a_checkpoint_says_which_weights_it_holds(kind, draw, learn):
    made, _ = learn(draw("data", a=10, b=10), **{"recipe.ema": 0.5 if kind == "ema" else 0.0})
    header = info(made.run)
    assert (header.weights, header.epoch, header.metrics["val_accuracy"]) == (made.weights, made.epoch, made.value)
    text = CliRunner().invoke(app, ["info", str(made.run)]).stdout
    for part in (header.weights, str(header.epoch), "val_accuracy"):
        assert part in text
    assert info(Run(made.run).last).weights == kind


@pytest.mark.parametrize("on", ["metric", "loss"])
def test_tr11_a_plateau_stops_early_with_the_reason(on, draw, learn):
    data = draw("data", noise=1.0, a=20, b=20)
    settings = {"recipe.patience": 2, "recipe.patience_on": on, "recipe.min_delta": 0.9, "recipe.epochs": 20}
    made, said = learn(data, **settings)
    epochs = len(Run(made.run).read_metrics())
    assert epochs < 8
    what = "accuracy" if on == "metric" else "loss"
    assert (
        f"stopped after epoch {epochs} of 20: the validation {what} did not improve by more than 0.9 in 2 epochs"
        in said
    )
