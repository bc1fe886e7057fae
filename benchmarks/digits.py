"""Every token mixer on the built-in digits, in the house nano skeleton: what accuracy does each reach?

    python benchmarks/digits.py [--seeds 1] [--epochs 30] [--mixers pool linear …]

Isotropic and pyramid, each also with patches and pictures of unequal sides and with 4 channels (`odd`: the picture
drawn at 8 × 16, patch 1 × 2, RGBA). Prints a table of test accuracy.
"""

import argparse
import statistics
import tempfile
from pathlib import Path

from mixwise import evaluate, train
from mixwise.mixers import MIXERS

FORMS = {
    "pyramid": {"changes": {"layout": "pyramid"}},
    "isotropic": {"changes": {"layout": "isotropic"}},
    "pyramid odd": {
        "changes": {"layout": "pyramid", "patch": [1, 2]},
        "preprocess.image": [8, 16],
        "preprocess.fit": "squash",
        "preprocess.channels": 4,
    },
    "isotropic odd": {
        "changes": {"layout": "isotropic", "patch": [1, 2]},
        "preprocess.image": [8, 16],
        "preprocess.fit": "squash",
        "preprocess.channels": 4,
    },
}


def main() -> None:
    """Parse, train, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--mixers", nargs="+", default=sorted(MIXERS), choices=sorted(MIXERS))
    parser.add_argument("--forms", nargs="+", default=list(FORMS), choices=list(FORMS))
    arguments = parser.parse_args()
    print(f"{'mixer':28s}" + "".join(f"{form:>16s}" for form in arguments.forms), flush=True)
    for mixer in arguments.mixers:
        cells = []
        for form in arguments.forms:
            scores = []
            for seed in range(arguments.seeds):
                with tempfile.TemporaryDirectory() as folder:
                    out = Path(folder) / "run"
                    train(
                        "digits",
                        model=f"{mixer}_nano",
                        out=out,
                        seed=seed,
                        epochs=arguments.epochs,
                        changes=FORMS[form],
                    )
                    scores.append(evaluate(out, "digits").scores.top1)
            cells.append(f"{statistics.mean(scores):.1%}")
        print(f"{mixer:28s}" + "".join(f"{cell:>16s}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
