"""How fast is `mixwise check`, compared with decoding every file once with the same decoder and as many threads?

    python benchmarks/check.py --files 10000

Makes JPEG files of about 200 kB in a temporary folder (500 of them drawn, the others the same with another comment, so
that no two are equal) and removes it afterwards. They lie in ten data folders that are decoded, checked, checked and
decoded in turn, so that whatever else the machine does falls on both; --parts 1 is one large folder.
"""

import argparse
import io
import os
import resource
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image
from rich.progress import Progress

from mixwise import check
from mixwise.data import decode
from mixwise.screening import Verdict
from mixwise.screening.scan import scan
from mixwise.screening.verdict import HINT


def drawn(seed: int) -> bytes:
    """A JPEG of 1024 x 768 pixels and about 200 kB: soft shapes with a little noise."""
    generator = np.random.default_rng(seed)
    soft = Image.fromarray(generator.normal(128, 60, (96, 128, 3)).clip(0, 255).astype(np.uint8))
    pixels = np.asarray(soft.resize((1024, 768), Image.Resampling.BICUBIC)) + generator.normal(0, 6, (768, 1024, 1))
    stream = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(stream, "JPEG", quality=80)
    return stream.getvalue()


def make(folders: list[Path], files: int, distinct: int) -> None:
    """Ten classes in a train and a val split, in every folder."""
    base = [drawn(seed) for seed in range(min(distinct, files))]
    for index in range(files):
        comment = f"{index:08d}".encode()
        data = base[index % len(base)]
        folder = folders[index * len(folders) // files]
        path = folder / ("val" if index % 5 == 0 else "train") / f"class{index // 5 % 10}" / f"{index:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data[:2] + b"\xff\xfe" + (len(comment) + 2).to_bytes(2, "big") + comment + data[2:])


def timed(work: Callable[[], object]) -> np.ndarray:
    """Seconds of wall clock and of the processor."""
    wall, processor = time.perf_counter(), time.process_time()
    work()
    return np.array([time.perf_counter() - wall, time.process_time() - processor])


def main() -> None:
    """Decode, check, check, decode, part by part, and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--distinct", type=int, default=500)
    parser.add_argument("--parts", type=int, default=10, help="folders, decoded and checked in turn")
    parser.add_argument("--workers", type=int, default=min(8, os.cpu_count() or 1))
    arguments = parser.parse_args()
    files, workers = arguments.files, arguments.workers

    def once(path: str) -> Verdict:
        decode(path, hint=HINT)
        return Verdict()

    with tempfile.TemporaryDirectory() as place, Progress(transient=True) as bar:
        folders = [Path(place) / f"part{part}" for part in range(arguments.parts)]
        task = bar.add_task("", total=None)
        make(folders, files, arguments.distinct)
        paths = {folder: sorted(str(path) for path in folder.rglob("*.jpg")) for folder in folders}
        size = sum(os.path.getsize(path) for part in paths.values() for path in part) / files
        print(f"{files} files of {size / 1000:.0f} kB, {workers} threads")
        before = memory()
        times: dict[str, list[np.ndarray]] = {"decode": [], "check": []}

        def progress(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        for folder in folders:
            decoding, checking = partial(scan, paths[folder], once, workers=workers), partial(check, folder)
            times["decode"].append(timed(decoding))
            times["check"].append(timed(partial(checking, workers=workers, progress=progress)))
            times["check"].append(timed(partial(checking, workers=workers, progress=progress)))
            times["decode"].append(timed(decoding))
        ends = {what: sum(rows) / 2 for what, rows in times.items()}
        for what, row in ends.items():
            wall, processor = np.asarray(row)
            print(f"{what:8s}{1000 * wall / files:.2f} ms a file, processor {1000 * processor / files:.2f} ms")
        wall, processor = np.divide(ends["decode"], ends["check"])
        print(f"check runs at {wall:.0%} of the speed of decoding (processor time: {processor:.0%})")
        print(f"largest memory {memory():.0f} MB; before the first picture {before:.0f} MB")


def memory() -> float:
    """Largest resident memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
