"""A short run of the soak test; benchmarks/soak_images.py does 10,000."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "soak_images.py"


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_three_hundred_damaged_pictures_do_no_harm(odd_images: Path):
    command = [sys.executable, str(SCRIPT), str(odd_images), "--count", "300", "--seed", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    summary = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == summary["findings"] == 0, done.stdout
    outcomes = summary["outcomes"]
    assert sum(outcomes.values()) == 300
    assert {"read", "truncated", "unreadable"} <= set(outcomes)


FAULTY = """
calls = itertools.count(-1)  # the first call is for the imports


def read(data, channels):
    import os, signal

    number = next(calls) + int(sys.argv[-1])  # where this child starts
    if not data and number < int(sys.argv[-1]):
        return ""
    if number == 2:
        raise KeyError("x")
    if number == 3:
        os.kill(os.getpid(), signal.SIGSEGV)
    if number == 4:
        time.sleep(600)
    if number == 5:
        b"x" * 1_100_000_000
    return "read"

"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_the_soak_test_sees_harm(odd_images: Path, tmp_path: Path):
    """With a decoder that raises, dies, hangs and takes too much memory."""
    script = SCRIPT.read_text(encoding="utf-8").replace("SECONDS = 10\n", "SECONDS = 3\n")
    place = tmp_path / "soak_images.py"
    place.write_text(f"import itertools\n{script}".replace("if __name__", FAULTY + "if __name__"), encoding="utf-8")
    command = [sys.executable, str(place), str(odd_images), "--count", "7", "--keep", str(tmp_path / "kept")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["outcomes"] == {"read": 3, "CRASH": 1, "DEATH": 1, "HANG": 1, "MEMORY": 1}
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [f"0_{i}.bin" for i in (2, 3, 4, 5)]
