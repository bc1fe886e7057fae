"""Training: the same seed gives the same weights, however it is interrupted."""

import functools
import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from PIL import Image
from rich.console import Console

from mixwise import UsageError, train
from mixwise.errors import MixwiseError
from mixwise.training import run as run_module
from mixwise.training.run import Run
from mixwise.training.settings import parse_changes
from mixwise.weights import info, load_file, weights_hash

QUICK = {
    "recipe.epochs": 3,
    "recipe.batch_size": 100,
    "recipe.augment.mixup": 0.2,
    "recipe.augment.cutmix": 1.0,
    "recipe.ema": 0.9,
    "changes": {"drop_path": 0.2},
    "precision": "fp32",
    "state_every": 0,
}


def quick(out: Path, **settings):
    changes = QUICK | settings.pop("changes", {})
    return train("digits", model="pool_nano", out=out, changes=changes, device="cpu", **settings)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    return quick(tmp_path_factory.mktemp("runs") / "unbroken")


def last_hash(run: Path) -> str:
    return weights_hash(load_file(Run(run).last)[0].state_dict())


def test_run_folder_is_complete(unbroken):
    run = Run(unbroken.run)
    for path in (run.best, run.last, run.config_file, run.metrics_file, run.report_file, run.state):
        assert path.is_file(), path
    rows = run.read_metrics()
    assert [r["epoch"] for r in rows] == ["1", "2", "3"]
    assert rows[-1]["raw_val_accuracy"]
    assert rows[-1]["ema_val_accuracy"]
    header = info(unbroken.run)
    assert header.classes == tuple("0123456789")
    assert header.metrics["val_accuracy"] == unbroken.value
    assert header.epoch == unbroken.epoch
    assert run.read_config().recipe.epochs == 3
    assert list((unbroken.run / "tensorboard").glob("events*"))
    assert torch.load(run.state, weights_only=True)["epoch"] == 2


def test_tr08_same_seed_same_weights_and_workers_change_nothing(unbroken, tmp_path):
    again = quick(tmp_path / "again", changes={"data.workers": 2})
    assert last_hash(again.run) == last_hash(unbroken.run)
    assert again.weights_hash == unbroken.weights_hash


def test_another_seed_other_weights(unbroken, tmp_path):
    assert last_hash(quick(tmp_path / "other", seed=1).run) != last_hash(unbroken.run)


def start(out: Path, before: str = "") -> subprocess.Popen:
    code = (
        f"{before}\n"
        "import torch; torch.set_num_threads(1)\n"
        "import sys; sys.path.insert(0, 'tests')\n"
        f"from test_train import quick; quick(__import__('pathlib').Path({str(out)!r}))"
    )
    return subprocess.Popen([sys.executable, "-c", code], env=os.environ | {"OMP_NUM_THREADS": "1"})


def test_tr07_killed_in_mid_epoch_then_resumed_equals_unbroken(unbroken, tmp_path):
    out = tmp_path / "killed"
    process = start(out)
    deadline = time.monotonic() + 120
    while not Run(out).state.is_file() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(Run(out).read_metrics()) < 3
    text = io.StringIO()
    resumed = train(resume=out, console=Console(file=text))
    assert "going on after epoch 1 (state.ckpt)" in text.getvalue() or "after epoch 2 (" in text.getvalue()
    assert last_hash(resumed.run) == last_hash(unbroken.run)
    assert [r["epoch"] for r in Run(out).read_metrics()] == ["1", "2", "3"]


@pytest.mark.parametrize("replacements", [4, 9])
def test_tr10_killed_inside_a_save_then_resumed_equals_unbroken(unbroken, tmp_path, replacements):
    """The process dies right before a finished temporary file takes its name."""
    out = tmp_path / "killed"
    code = (
        "import os, signal, mixwise.files as files, itertools\n"
        f"count, replace = itertools.count(1), os.replace\n"
        "def dying(*names):\n"
        f"    if next(count) == {replacements}: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    replace(*names)\n"
        "files.os.replace = dying"
    )
    assert start(out, code).wait() == -signal.SIGKILL
    assert last_hash(train(resume=out).run) == last_hash(unbroken.run)


def test_tr10_damaged_state_falls_back_to_the_one_before(unbroken, tmp_path):
    run = Run(quick(tmp_path / "run").run)
    whole = run.state.read_bytes()
    run.state.write_bytes(whole[: len(whole) // 2])
    assert last_hash(train(resume=run.folder).run) == last_hash(unbroken.run)
    for state in (run.state, run.previous_state):
        state.unlink(missing_ok=True)
    assert last_hash(train(resume=run.folder).run) == last_hash(unbroken.run)


def test_resuming_a_finished_run_changes_nothing(unbroken):
    before = unbroken.weights_hash
    assert train(resume=unbroken.run).weights_hash == before


def test_divergence_stops_with_advice_and_keeps_the_last_good_weights(tmp_path):
    with pytest.raises(MixwiseError, match=r"diverged in epoch .*lower learning rate"):
        quick(tmp_path / "run", changes={"recipe.optimizer.lr": 1e9, "recipe.optimizer.clip": 0, "recipe.warmup": 0})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "pol_nano"}, "did you mean 'pool_nano'"),
        ({"device": "cuda"}, "not available here"),
        ({"changes": {"recipe.epoch": 3}}, "did you mean 'epochs'"),
        ({"changes": {"precision": "fp16"}, "model": "pool_nano"}, "needs a CUDA device"),
        ({"recipe": "nowhere.toml"}, "no recipe file at nowhere.toml"),
    ],
)
def test_wrong_requests_say_what_is_allowed(settings, message, tmp_path):
    if settings.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    with pytest.raises(UsageError, match=message):
        train("digits", out=tmp_path / "run", **settings)


def test_a_used_folder_is_not_overwritten(unbroken):
    with pytest.raises(UsageError, match="not empty"):
        train("digits", model="pool_nano", out=unbroken.run)
    for extra in ({"data": "digits"}, {"epochs": 9}, {"seed": 0}, {"device": "cpu"}, {"compile": True}, {"out": "x"}):
        with pytest.raises(UsageError, match="give nothing else"):
            train(resume=unbroken.run, **extra)
    with pytest.raises(UsageError, match="which pictures"):
        train()


def test_a_refused_run_leaves_no_folder(tmp_path):
    with pytest.raises(UsageError):
        train("digits", model="pool_nano", out=tmp_path / "run", changes={"precision": "fp16"}, device="cpu")
    assert not (tmp_path / "run").exists()


def test_what_follows_the_pictures_cannot_be_set(tmp_path):
    for changes in (
        {"classes": list("9876543210")},
        {"data.source": "x"},
        {"changes": {"classes": 3}},
        {"changes.image": 9},
    ):
        with pytest.raises(UsageError, match="follows"):
            train("digits", out=tmp_path / "run", changes=changes)


def test_the_config_of_another_run_is_a_recipe(unbroken, tmp_path):
    """Its model and settings are taken, its pictures and classes are not."""
    recipe = tmp_path / "other.toml"
    text = Run(unbroken.run).config_file.read_text(encoding="utf-8")
    recipe.write_text(
        text.replace('source = "digits"', 'source = "/nowhere"').replace('"3"', '"three"'), encoding="utf-8"
    )
    run = Run(train("digits", out=tmp_path / "run", recipe=recipe, seed=5).run)
    config = run.read_config()
    assert config.classes == tuple("0123456789")
    assert config.data.source == "digits"
    assert (config.model, config.seed, config.recipe.epochs) == ("pool_nano", 5, 3)


def test_resume_notices_other_pictures(tmp_path):
    for name in "ab":
        (tmp_path / "data" / name).mkdir(parents=True)
        for i in range(6):
            Image.new("L", (8, 8), 40 * i).save(tmp_path / "data" / name / f"{i}.png")
    changes = {"recipe.batch_size": 4, "state_every": 0}
    run = train(tmp_path / "data", model="pool_nano", out=tmp_path / "run", epochs=1, changes=changes).run
    (tmp_path / "data" / "a" / "1.png").unlink()
    with pytest.raises(MixwiseError, match="not those that"):
        train(resume=run)


def test_recipe_file_and_single_settings(tmp_path):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        'model = "pool_nano"\nseed = 3\n[recipe]\nepochs = 2\nbatch_size = 400\n[recipe.optimizer]\nlr = 0.01\n'
    )
    result = train(
        "digits", out=tmp_path / "run", recipe=recipe, changes=parse_changes(["recipe.epochs=1", "state_every=0"])
    )
    config = Run(result.run).read_config()
    assert (config.model, config.seed, config.recipe.epochs, config.recipe.batch_size) == ("pool_nano", 3, 1, 400)
    assert config.recipe.optimizer.lr == 0.01


def test_accumulation_takes_the_same_number_of_pictures_for_fewer_steps(tmp_path):
    changes = {"recipe.accumulate": 3, "recipe.epochs": 1}
    run = Run(quick(tmp_path / "run", changes=changes).run)
    state = torch.load(run.state, weights_only=True)
    assert state["global_step"] == 4  # 12 batches of 100 pictures, three a step


def test_tr11_early_stopping_writes_the_end_and_resumes_to_the_same_end(tmp_path):
    changes = {"recipe.patience": 2, "recipe.epochs": 20, "recipe.optimizer.lr": 1e-9, "recipe.ema": 0.0}
    stopped = Run(quick(tmp_path / "run", changes=changes | {"state_every": 1000}).run)
    epochs = len(stopped.read_metrics())
    assert 3 <= epochs < 10
    assert load_file(stopped.last)[1].epoch == epochs
    before = last_hash(stopped.folder)
    train(resume=stopped.folder)  # nothing is left to do
    assert (len(stopped.read_metrics()), last_hash(stopped.folder)) == (epochs, before)
    again = Run(quick(tmp_path / "again", changes=changes).run)
    os.replace(again.previous_state, again.state)
    train(resume=again.folder)
    assert len(again.read_metrics()) == epochs
    assert last_hash(again.folder) == last_hash(stopped.folder)


def test_trainings_that_start_at_one_moment_have_folders_of_their_own(tmp_path, monkeypatch):
    """The second one looked for a free name before the first one made its folder."""
    monkeypatch.chdir(tmp_path)
    free = run_module.free_folder
    names = [free("x"), free("x")]
    monkeypatch.setattr(run_module, "free_folder", lambda name: names.pop() if names else free(name))
    made = [Run.create(None, "x", "digits").folder for _ in range(2)]
    assert [str(folder) for folder in made] == ["runs/x-1", "runs/x-2"]


def test_compile_trains(tmp_path, monkeypatch):
    """Through the tracer of torch.compile; generating code takes minutes and is the benchmark's affair."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    result = quick(tmp_path / "run", changes={"recipe.epochs": 1}, compile=True)
    assert load_file(Run(result.run).best)[1].epoch == 1
