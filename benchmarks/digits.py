"""Every token mixer on the built-in digits, in the house nano skeleton: what accuracy does each reach?

    python benchmarks/digits.py [--seeds 1] [--epochs 12] [--mixers pool linear …] [--forms isotropic …]

Isotropic and pyramid, on the 8 × 8 pictures with one channel, and with unequal sides (`odd`: drawn at 8 × 16, patch
1 × 2) with one channel and with four (RGBA). Prints test accuracy in percent, the mean over the seeds.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from mixwise import evaluate, train
from mixwise.mixers import MIXERS

PICTURES: dict[str, dict[str, Any]] = {
    "": {"preprocess.channels": 1},
    " odd": {"preprocess.channels": 1, "preprocess.image": [8, 16], "preprocess.fit": "squash"},
    " odd rgba": {"preprocess.channels": 4, "preprocess.image": [8, 16], "preprocess.fit": "squash"},
}
PATCH = {"": [1, 1], " odd": [1, 2], " odd rgba": [1, 2]}
FORMS = [layout + pictures for layout in ("pyramid", "isotropic") for pictures in PICTURES]


def accuracy(mixer: str, form: str, seed: int, epochs: int) -> float:
    """Train one model in a folder that is thrown away; test accuracy."""
    layout, _, rest = form.partition(" ")
    pictures = f" {rest}" if rest else ""
    changes = PICTURES[pictures] | {"changes": {"layout": layout, "patch": PATCH[pictures]}}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        train("digits", model=f"{mixer}_nano", out=out, seed=seed, epochs=epochs, changes=changes)
        return evaluate(out, "digits").scores.value


def main() -> None:
    """Parse, train, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--mixers", nargs="+", default=sorted(MIXERS), choices=sorted(MIXERS))
    parser.add_argument("--forms", nargs="+", default=FORMS, choices=FORMS)
    arguments = parser.parse_args()
    print(f"{'mixer':28s}" + "".join(f"{form:>20s}" for form in arguments.forms) + "   seconds", flush=True)
    for mixer in arguments.mixers:
        print(f"{mixer:28s}", end="", flush=True)
        start = time.perf_counter()
        for form in arguments.forms:
            scores = [accuracy(mixer, form, seed, arguments.epochs) for seed in range(arguments.seeds)]
            print(f"{statistics.mean(scores):20.1%}", end="", flush=True)
        print(f"{time.perf_counter() - start:10.0f}", flush=True)


if __name__ == "__main__":
    main()
