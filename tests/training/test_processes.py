"""Several processes that train one run together: here two on the CPU, with gloo."""

import json
import os
from pathlib import Path

import pytest
import torch

from mixwise import MixwiseError, UsageError, info, train
from mixwise.training import processes
from mixwise.training.run import Run
from mixwise.weights import load_file, weights_hash

SPY = """
import json, os, pathlib, torch
torch.set_num_threads(1)
import mixwise.trainer as trainer
from mixwise.weights import weights_hash

fit = trainer.fit

def spying(*arguments, **settings):
    module = fit(*arguments, **settings)
    lr = module.trainer.lr_scheduler_configs[0].scheduler.base_lrs[0]
    hashes = {name: weights_hash(model.state_dict()) for name, model in module.candidates().items()}
    seen = {"hashes": hashes, "validated": module.validated, "lr": lr, "world": module.trainer.world_size}
    pathlib.Path(os.environ["SPY"] + os.environ["LOCAL_RANK"]).write_text(json.dumps(seen))
    return module

trainer.fit = spying

def join(folder, *, quiet):
    trainer.join(folder, quiet=quiet)
"""

BROKEN = """
import os, sys, time

def join(folder, *, quiet):
    if os.environ["LOCAL_RANK"] == "1":
        print("a warning", "mixwise: something is wrong here", sep=os.linesep, file=sys.stderr)
        raise SystemExit(1)
    time.sleep(600)
"""


@pytest.fixture
def importable(tmp_path, monkeypatch):
    """A folder whose modules other processes can import."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    return tmp_path


@pytest.fixture
def spied(importable, tmp_path, monkeypatch):
    """Lets every process write down what it ends with; returns their reader."""
    (importable / "spy.py").write_text(SPY)
    monkeypatch.setenv("SPY", str(tmp_path / "seen."))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    launch = processes.launch
    monkeypatch.setattr("mixwise.trainer.launch", lambda _, *rest, **more: launch("spy:join", *rest, **more))
    return lambda: [json.loads(Path(f"{tmp_path}/seen.{rank}").read_text()) for rank in (0, 1)]


def test_two_processes_train_one_run_with_equal_weights_and_resume(draw, learn, spied):
    """An odd number of validation pictures, batch norms, averaged weights, two batches a step."""
    data = draw("data/train", a=25, b=24)
    draw("data/val", a=3, b=4)
    settings = {"devices": 2, "recipe.epochs": 4, "recipe.batch_size": 4, "recipe.accumulate": 2, "recipe.ema": 0.9}
    made, said = learn(data.parent, model="repmlp_nano", **settings)
    first, second = spied()
    assert first == second, "weights, running statistics, averages and scores are those of all processes"
    assert first["world"] == 2
    assert "batch 16, learning rate 0.0005 (= 0.002 × 16/64)" in said
    assert "device   2 × cpu" in said
    assert first["lr"] == pytest.approx(5e-4)
    run = Run(made.run)
    files = "config.toml labels.csv last.safetensors metrics.csv model.safetensors report.html state.ckpt"
    more = "state.previous.ckpt tensorboard verdicts.jsonl"
    assert {p.name for p in made.run.iterdir()} == {*files.split(), *more.split()}
    assert len(list((made.run / "tensorboard").glob("events*"))) == 1
    assert [row["epoch"] for row in run.read_metrics()] == ["1", "2", "3", "4"]
    assert torch.load(run.state, weights_only=True)["global_step"] == 4 * 3  # 24 pictures a process: 6 batches, 3 steps
    wanted = weights_hash(load_file(run.last)[0].state_dict())
    assert wanted == first["hashes"]["ema"]
    run.previous_state.replace(run.state)
    run.last.unlink()
    train(resume=made.run)
    assert weights_hash(load_file(run.last)[0].state_dict()) == wanted
    assert spied()[1]["hashes"]["ema"] == wanted


@pytest.mark.parametrize("several", [False, True])
def test_a_process_without_a_readable_validation_picture_takes_part(draw, learn, spied, several):
    """The second of two pictures has damage in its middle, which a glance does not see; one label each, or several."""
    draw("data/train", a=4, b=4)
    data = draw("data/val", a=1, b=1).parent
    damaged = data / "val" / "b" / "0.png"
    content = bytearray(damaged.read_bytes())
    content[content.index(b"IDAT") + 8] ^= 255
    damaged.write_bytes(content)
    if several:
        files = sorted(data.glob("*/*/*.png"))
        rows = [f"{f.relative_to(data)},{f.parent.name + ';c' * (f.stem < '2')},{f.parts[-3]}" for f in files]
        data = data / "labels.csv"
        data.write_text("\n".join(["path,labels,split", *rows]))
    made, _ = learn(data, devices=2, **{"recipe.epochs": 1, "data.max_bad": 1})
    first, second = spied()
    assert first == second
    assert info(made.run).epoch == 1


def test_a_process_that_fails_ends_all_with_its_sentence(importable, tmp_path, monkeypatch):
    (importable / "broken.py").write_text(BROKEN)
    monkeypatch.setattr(processes, "GRACE", 0.1)
    with pytest.raises(MixwiseError, match=r"^something is wrong here$"):
        processes.launch("broken:join", tmp_path, 2, device="cpu", quiet=True)


def test_more_devices_than_there_are(draw, learn, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    with pytest.raises(UsageError, match="devices is 2, and 1 cuda devices are available here"):
        train(draw("data", a=4, b=4), model="pool_nano", out=tmp_path / "run", device="cuda", devices=2)
    assert not (tmp_path / "run").exists()


def test_more_devices_than_validation_pictures(draw, learn, tmp_path):
    with pytest.raises(UsageError, match="devices is 2, and the val split has 1 for them: take fewer"):
        learn(draw("data", a=4, b=1), devices=2)
    assert not (tmp_path / "run").exists()
