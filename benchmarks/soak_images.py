"""Damaged pictures against the decoder: no crash, no hang, no flood of memory.

    python benchmarks/soak_images.py FOLDER --count 10000 --seed 0

Each of the files below FOLDER (such as an unpacked odd_images.tar) is damaged in ways that the seed decides: bits
flipped, ends cut off, parts copied, moved and mixed with other files, numbers that may be lengths overwritten; the
checksums of PNG files are put right again half of the time, so that the damage gets past them. A child process reads
each result as training and evaluation do. A finding is any exception but `BadImage`, a death of the child, more than 10
seconds of processor time or 60 on the clock, or more than 1 GB in the whole process. The last line is the summary; the
exit code is 1 where something was found. `--keep DIR` writes the files of the findings there. Linux only: the memory
comes from /proc.
"""

import argparse
import collections
import json
import random
import resource
import select
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Literal

SECONDS = 10
BYTES = 10**9
CHANNELS: tuple[Literal[1, 3, 4], ...] = (1, 3, 4)
NUMBERS = (
    0,
    1,
    2,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0x8000,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    0x2000,
    0x3FFF,
    0x4000,
)


def damaged(files: list[bytes], seed: int, number: int) -> bytes:
    """The `number`-th damaged file."""
    draw = random.Random(f"{seed}/{number}")
    data = bytearray(draw.choice(files))
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        draw.choice((flip, cut, splice, mix, overwrite, overwrite))(data, files, draw)
    return repaired(bytes(data)) if draw.random() < 0.5 else bytes(data)


def place(data: bytearray, draw: random.Random) -> int:
    """A position in a file, half of the time near its beginning, where headers are."""
    return draw.randrange(min(len(data), 512) if draw.random() < 0.5 else len(data)) if data else 0


def flip(data: bytearray, files: list[bytes], draw: random.Random) -> None:
    for _ in range(draw.choice((1, 2, 8, 64)) if data else 0):
        data[place(data, draw)] ^= 1 << draw.randrange(8)


def cut(data: bytearray, files: list[bytes], draw: random.Random) -> None:
    del data[place(data, draw) :]


def splice(data: bytearray, files: list[bytes], draw: random.Random) -> None:
    start, end = sorted((place(data, draw), place(data, draw)))
    to = place(data, draw)
    data[to:to] = data[start : min(end, start + 65536)]
    if draw.random() < 0.5:
        del data[start:end]


def mix(data: bytearray, files: list[bytes], draw: random.Random) -> None:
    other = bytearray(draw.choice(files))
    start = place(other, draw)
    part = other[start : start + draw.choice((16, 256, 4096))]
    to = place(data, draw)
    data[to : to + len(part) * draw.randrange(2)] = part


def overwrite(data: bytearray, files: list[bytes], draw: random.Random) -> None:
    width = draw.choice((1, 2, 4))
    value = draw.choice((draw.choice(NUMBERS), draw.randrange(256**width))) % 256**width
    to = place(data, draw)
    data[to : to + width] = value.to_bytes(width, draw.choice(("big", "little")))


def repaired(data: bytes) -> bytes:
    """A PNG with the checksums that its chunks should have; anything else as it is."""
    if data[:8] != b"\x89PNG\r\n\x1a\n":
        return data
    whole, position = bytearray(data), 8
    while position + 12 <= len(whole):
        end = position + 8 + int.from_bytes(whole[position : position + 4], "big")
        if end + 4 > len(whole):
            break
        whole[end : end + 4] = zlib.crc32(whole[position + 4 : end]).to_bytes(4, "big")
        position = end + 4
    return bytes(whole)


def read_files(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix != ".json"]


def read(data: bytes, channels: Literal[1, 3, 4]) -> str:
    """Read a picture as evaluation and as training do; "read", or the reason why not."""
    from mixwise.config import Augment, Preprocess
    from mixwise.data import BadImage, decode, evaluation_transform, training_transform

    pre = Preprocess(image=(64, 64), channels=channels, mean=(0.5,) * channels, std=(0.5,) * channels)
    training = training_transform(pre, Augment())
    try:
        evaluated = evaluation_transform(pre)(decode(data, channels=channels))
        trained = training(decode(data, channels=channels, hint=training.hint))
    except BadImage as error:
        return error.reason
    assert evaluated.shape == trained.shape == (channels, 64, 64)
    assert evaluated.isfinite().all()
    return "read"


def child(folder: Path, seed: int, start: int, count: int) -> None:
    """Read damaged files one after the other; a line before and a line after each."""
    resource.setrlimit(resource.RLIMIT_AS, (8 * 10**9, 8 * 10**9))
    files = read_files(folder)
    read(b"", 3)  # imports everything
    for number in range(start, count):
        data = damaged(files, seed, number)
        print(json.dumps({"number": number}), flush=True)
        Path("/proc/self/clear_refs").write_text("5")
        began = time.process_time()
        try:
            outcome = read(data, CHANNELS[number % 3])
        except BaseException as error:
            outcome = f"CRASH {type(error).__name__}: {error}"
        status = Path("/proc/self/status").read_text()
        peak = int(status.split("VmHWM:")[1].split()[0]) * 1024
        seconds = time.process_time() - began
        print(json.dumps({"done": number, "outcome": outcome, "seconds": seconds, "bytes": peak}), flush=True)


def soak(folder: Path, seed: int, count: int, keep: Path | None) -> int:
    """Have a child read them, and another one from where it died; report; the exit code."""
    outcomes: collections.Counter[str] = collections.Counter()
    findings, slowest, largest, start = [], 0.0, 0, 0
    while start < count:
        command = [sys.executable, __file__, str(folder), "--seed", str(seed), "--count", str(count)]
        command += ["--child", str(start)]
        # Unbuffered, or `select` would not see lines that are here already. libtiff says much on stderr.
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0)
        assert process.stdout is not None
        current, died, patience = start, "DEATH", 120  # the imports come first
        while True:
            if not select.select([process.stdout], [], [], patience)[0]:
                died = "HANG"
                process.kill()
            line = process.stdout.readline()
            if not line:
                break
            record, patience = json.loads(line), 6 * SECONDS  # others may use the processor
            if "number" in record:
                current = record["number"]
                continue
            outcome = record["outcome"]
            slowest, largest = max(slowest, record["seconds"]), max(largest, record["bytes"])
            if record["bytes"] > BYTES:
                outcome = f"MEMORY {record['bytes'] / 1e9:.2f} GB ({outcome})"
            elif record["seconds"] > SECONDS:
                outcome = f"HANG for {record['seconds']:.0f} s"
            outcomes[outcome.split()[0] if outcome[0].isupper() else outcome] += 1
            if outcome[0].isupper():
                findings.append((current, outcome))
                print(f"{current}: {outcome}", flush=True)
            start = current + 1
            if start == count:
                patience = 120  # it may take its time to end
        if process.wait() != 0:
            outcome = f"{died} (exit {process.returncode})"
            outcomes[died] += 1
            findings.append((current, outcome))
            print(f"{current}: {outcome}", flush=True)
            start = current + 1
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        files = read_files(folder)
        for number, _ in findings:
            (keep / f"{seed}_{number}.bin").write_bytes(damaged(files, seed, number))
    summary = {"outcomes": dict(outcomes), "slowest_s": round(slowest, 2), "largest_gb": round(largest / 1e9, 3)}
    print(json.dumps({"count": count, "seed": seed, "findings": len(findings), **summary}))
    return 1 if findings else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--child", type=int, metavar="START", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        child(arguments.folder, arguments.seed, arguments.child, arguments.count)
    else:
        sys.exit(soak(arguments.folder, arguments.seed, arguments.count, arguments.keep))
