"""How many pictures of classes that a model was never shown does `--reject` withhold?

    python benchmarks/reject.py digits --foreign 7 8 9 --seeds 3
    python benchmarks/reject.py photos --foreign scorpion starfish sunflower watch --image-size 96 --epochs 80

Trains on DATA without the foreign classes; the last split (test, else val) is kept for testing. Where that leaves no
validation split, a fifth of the training pictures is held out, as `mixwise train` does. All pictures of the foreign
classes are asked, and those of the folders `--others`.
"""

import argparse
import shutil
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from rich.console import Console

from mixwise import Predictor, evaluate, train
from mixwise.data import discover
from mixwise.prediction import find_images
from mixwise.tasks.classify import ClassScores


def lay_out(data: str, foreign: list[str], root: Path) -> None:
    """root/known/{train,val}/<class>, root/test/<class> and root/foreign."""
    catalog = discover(data, split_single=False)
    for split, items in catalog.splits.items():
        for source, label, name in zip(items.sources, items.labels, items.names, strict=True):
            known = catalog.classes[label] not in foreign
            last = split == list(catalog.splits)[-1]
            folder = root / "test" if last else root / "known" / split
            file = (folder / catalog.classes[label] if known else root / "foreign") / name.replace("/", "_")
            file.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(source, np.ndarray):
                Image.fromarray(source).save(f"{file}.png")
            else:
                shutil.copy(str(source), file)


def answered(predictor: Predictor, folder: Path) -> tuple[int, float]:
    """Pictures, and the share that gets a name."""
    found = list(predictor.stream(find_images([folder])))
    return len(found), sum(bool(p.labels) for p in found) / len(found)


def main() -> None:
    """Train, ask, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--foreign", nargs="+", required=True)
    parser.add_argument("--others", nargs="*", default=[], type=Path)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--epochs", type=int)
    args = parser.parse_args()
    print(
        "seed  threshold  accuracy  of the answered  answered: "
        + "  ".join(["known", "foreign", *map(str, args.others)])
    )
    for seed in range(args.seeds):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            lay_out(args.data, args.foreign, root)
            options = {"image": args.image_size, "epochs": args.epochs, "seed": seed}
            run = train(root / "known", out=root / "run", console=Console(quiet=True), **options).run
            scores = evaluate(run, root / "test", reject="stored").scores
            assert isinstance(scores, ClassScores)
            predictor = Predictor(run, reject="stored")
            asked = [answered(predictor, place) for place in (root / "test", root / "foreign", *args.others)]
            shares = "  ".join(f"{share:.1%} of {count}" for count, share in asked)
            first = f"{scores.reject:9.1%}  {scores.value:8.1%}  {scores.answered_top1:15.1%}"
            print(f"{seed:4d}  {first}  {shares}", flush=True)


if __name__ == "__main__":
    main()
