"""How many loader processes fit: batches come from them through shared memory, which containers keep small."""

import shutil
from pathlib import Path

from mixwise.config import Preprocess

SHARED = Path("/dev/shm")
AHEAD = 3
"""Batches of a worker under way: two read ahead, and one being used."""


def shared_memory() -> int | None:
    """Free bytes of shared memory; None where it has no limit of its own."""
    return shutil.disk_usage(SHARED).free if SHARED.is_dir() else None


def fitting_workers(wanted: int, batches: tuple[int, ...], pre: Preprocess) -> tuple[int, str]:
    """(processes, a sentence where they are fewer than wanted).

    Args:
        batches: pictures a batch of each loader; every loader has so many processes.
    """
    free = shared_memory()
    if not wanted or free is None:
        return wanted, ""
    share = AHEAD * sum(batches) * pre.channels * pre.image[0] * pre.image[1] * 4
    count = min(wanted, free // share)
    if count == wanted:
        return wanted, ""
    return count, (
        f"{SHARED} has {free / 1e6:.0f} MB free, {wanted} loader processes need up to {wanted * share / 1e6:.0f} MB: "
        f"{count or 'none'} used, which changes no result (in a container: --shm-size 1g gives more)"
    )
