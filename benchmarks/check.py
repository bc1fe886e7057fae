"""How fast is `mixwise check`, compared with decoding every file once with the same decoder and as many threads?

    python benchmarks/check.py --files 10000

Makes JPEG files of about 200 kB in a temporary folder (500 of them drawn, the others the same with another comment, so
that no two are equal) and removes it afterwards. Wall-clock time counts; the processor time beside it is less disturbed
by what else the machine does.
"""

import argparse
import io
import os
import resource
import tempfile
import time
from collections.abc import Callable
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


def make(folder: Path, files: int, distinct: int) -> None:
    """Ten classes in a train and a val split."""
    base = [drawn(seed) for seed in range(min(distinct, files))]
    for index in range(files):
        comment = f"{index:08d}".encode()
        data = base[index % len(base)]
        path = folder / ("val" if index % 5 == 0 else "train") / f"class{index // 5 % 10}" / f"{index:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data[:2] + b"\xff\xfe" + (len(comment) + 2).to_bytes(2, "big") + comment + data[2:])


def timed(what: str, work: Callable[[], object], files: int) -> tuple[float, float]:
    """Seconds of wall clock and of the processor, printed for each file."""
    wall, processor = time.perf_counter(), time.process_time()
    work()
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    print(f"{what:8s} {wall:7.1f} s, {1000 * wall / files:.2f} ms a file; processor {1000 * processor / files:.2f} ms")
    return wall, processor


def main() -> None:
    """Decode, check, decode again, and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--distinct", type=int, default=500)
    parser.add_argument("--workers", type=int, default=min(8, os.cpu_count() or 1))
    arguments = parser.parse_args()
    files, workers = arguments.files, arguments.workers

    def once(path: str) -> Verdict:
        decode(path, hint=HINT)
        return Verdict()

    with tempfile.TemporaryDirectory() as place, Progress(transient=True) as bar:
        folder = Path(place)
        make(folder, files, arguments.distinct)
        paths = sorted(str(path) for path in folder.rglob("*.jpg"))
        size = sum(os.path.getsize(path) for path in paths) / files
        print(f"{files} files of {size / 1000:.0f} kB, {workers} threads")
        task = bar.add_task("check", total=files)
        first = timed("decode", lambda: scan(paths, once, workers=workers), files)
        checked = timed(
            "check",
            lambda: check(folder, workers=workers, progress=lambda done, total: bar.update(task, completed=done)),
            files,
        )
        second = timed("decode", lambda: scan(paths, once, workers=workers), files)
        wall, processor = ((a + b) / 2 / c for a, b, c in zip(first, second, checked, strict=True))
        print(f"check runs at {wall:.0%} of the speed of decoding (processor time: {processor:.0%})")
        print(f"largest memory of the process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    main()
