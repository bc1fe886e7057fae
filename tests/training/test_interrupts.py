"""Trainings that are interrupted: by Ctrl-C, by a signal, by death."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from mixwise import Predictor, train
from mixwise.training.run import Run
from mixwise.weights import load_file, weights_hash

SCRIPT = """
import sys, torch
torch.set_num_threads(1)
import mixwise.trainer, mixwise.training.keep as keep
from mixwise.cli import main
from mixwise.training.module import Trainable
import time, pathlib, os
step = Trainable.training_step
def slow(self, batch, index):
    step(self, batch, index)
    pathlib.Path({mark!r}).touch()
    time.sleep({seconds})
Trainable.training_step = slow
sys.argv = {arguments!r}
main()
"""


def start(data: Path, out: Path, mark: Path, *, seconds: float, workers: int = 0) -> subprocess.Popen:
    """The command line in a process group of its own; `mark` appears after the first step, each of which then waits."""
    arguments = ["mixwise", "train", data, "--model", "pool_nano", "--epochs", 3, "--out", out, "--device", "cpu"]
    arguments += ["--batch-size", 16, "--set", "precision=fp32", "--set", f"data.workers={workers}"]
    code = SCRIPT.format(mark=str(mark), seconds=seconds, arguments=list(map(str, arguments)))
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    deadline = time.monotonic() + 180
    while not mark.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert mark.exists(), process.communicate()
    return process


@pytest.fixture
def pictures(draw):
    return draw("data", a=40, b=40)


@pytest.mark.parametrize(("number", "workers"), [(signal.SIGINT, 2), (signal.SIGTERM, 0)])
def test_ctrl_c_leaves_a_run_that_predicts_and_resumes(number, workers, pictures, learn, tmp_path):
    """In the first epoch, as a terminal does it: the signal goes to the loader processes too."""
    out = tmp_path / "stopped"
    process = start(pictures, out, tmp_path / "mark", seconds=0.3, workers=workers)
    os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
    said, errors = process.communicate(timeout=120)
    assert process.returncode == 130, (said, errors)
    assert f"go on with: mixwise train --resume {out}" in said
    assert "stopping after this step; once more stops at once" in said
    assert "Traceback" not in said + errors
    assert Predictor(out)(str(pictures / "a" / "0.png"))[0].label in "ab"
    unbroken, _ = learn(pictures, **{"recipe.epochs": 3, "state_every": None})
    hashes = {weights_hash(load_file(Run(r).last)[0].state_dict()) for r in (train(resume=out).run, unbroken.run)}
    assert len(hashes) == 1


def test_a_second_ctrl_c_stops_at_once(pictures, tmp_path):
    process = start(pictures, tmp_path / "stopped", tmp_path / "mark", seconds=600)
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=1)  # the step goes on
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 130


def test_tr07_tr08_tr10_five_random_kills_end_as_the_unbroken_run(tmp_path):
    """benchmarks/soak_kill.py does it fifty times."""
    from soak_kill import soak

    ours, killed, done = soak(tmp_path, kills=5, seed=int(os.environ.get("SOAK_SEED", "0")))
    assert killed == ours
    assert len(done) == 5
    assert max(done) > 0, "no kill came after a finished epoch"


def test_da24_whole_training_with_spawned_workers(pictures, learn, tmp_path):
    """As on Windows and macOS: loader processes start anew and get the data set as bytes."""
    wanted = learn(pictures, **{"data.workers": 0})[0].weights_hash
    script = tmp_path / "own.py"
    script.write_text(
        "import multiprocessing, torch, mixwise\n"
        "if __name__ == '__main__':\n"
        "    torch.set_num_threads(1)\n"
        "    multiprocessing.set_start_method('spawn')\n"
        f"    r = mixwise.train({str(pictures)!r}, model='pool_nano', epochs=2, batch_size=16, device='cpu',\n"
        f"        out={str(tmp_path / 'spawned')!r}, changes={{'data.workers': 2, 'precision': 'fp32'}})\n"
        "    print(r.weights_hash)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == wanted
