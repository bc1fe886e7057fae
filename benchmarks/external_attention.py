"""How time and memory grow with the number of tokens: external attention against attention with its matrix in memory.

    python benchmarks/external_attention.py [--dim 64] [--memory 64] [--most 65536] [--attention 8192] [--repeats 60]

Both are the core alone, between the projections, in float32 and without gradients: norm(x Mk^T) Mv with S slots, and
softmax(q k^T / sqrt(c)) v with one head. Time is that of the processor, one thread, the least of the repeats, so that
other work on the machine disturbs it little; memory is the most bytes of tensors alive at once besides the input. The
last lines fit log time and log memory against log N; 1 is linear, 2 quadratic.
"""

import argparse
import ctypes
import sys
import time
import weakref
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mixwise.mixers.external_attention import ExternalAttention


class Alive(TorchDispatchMode):
    """Counts the bytes of the tensors that operators make, and the most that were alive at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple) else (out,):
            storage = tensor.untyped_storage() if isinstance(tensor, Tensor) else None
            inputs = {t.untyped_storage().data_ptr() for t in args if isinstance(t, Tensor)}
            if storage is None or storage.data_ptr() in self.known | inputs:
                continue
            self.known.add(storage.data_ptr())
            self.now += storage.nbytes()
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self._freed, storage.data_ptr(), storage.nbytes())
        return out

    def _freed(self, place: int, size: int) -> None:
        self.known.discard(place)
        self.now -= size


def keep_pages() -> None:
    """Have glibc keep freed blocks of up to 32 MiB instead of asking the system for them again at each call."""
    if sys.platform == "linux":
        trim_threshold, mmap_threshold = -1, -3
        libc = ctypes.CDLL(None)
        libc.mallopt(trim_threshold, 2**31 - 1)
        libc.mallopt(mmap_threshold, 2**25)


def attention(x: Tensor) -> Tensor:
    """softmax(x x^T / sqrt(c)) x, every matrix written out."""
    return (x @ x.transpose(1, 2) / x.shape[2] ** 0.5).softmax(2) @ x


def measure(function: Callable[[Tensor], Tensor], x: Tensor, repeats: int) -> tuple[float, float]:
    """(milliseconds, MiB) of one call; no more than three repeats where they take longer than two seconds."""
    with Alive() as alive:
        function(x)
    best = float("inf")
    begin = time.process_time()
    for turn in range(repeats):
        if turn >= 3 and time.process_time() - begin > 2:
            break
        start, calls = time.process_time(), 0
        while calls == 0 or time.process_time() - start < 0.02:
            function(x)
            calls += 1
        best = min(best, (time.process_time() - start) / calls)
    return 1e3 * best, alive.most / 2**20


def slope(tokens: list[int], values: list[float]) -> float:
    """Of log value against log tokens."""
    return float(np.polyfit(np.log(tokens), np.log(values), 1)[0])


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dim", type=int, default=64, help="channels c")
    parser.add_argument("--memory", type=int, default=64, help="slots S")
    parser.add_argument("--most", type=int, default=65536, help="tokens up to which external attention is measured")
    parser.add_argument("--attention", type=int, default=8192, help="tokens up to which attention is measured")
    parser.add_argument("--repeats", type=int, default=60)
    arguments = parser.parse_args()
    keep_pages()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    mixer = ExternalAttention(arguments.dim, memory=arguments.memory, query=False).eval()
    kinds = {
        "external": (lambda x: mixer(x, (x.shape[1],)), arguments.most),
        "attention": (attention, arguments.attention),
    }
    found: dict[str, dict[int, tuple[float, float]]] = {kind: {} for kind in kinds}
    print("| tokens | external, ms | MiB | attention, ms | MiB | time | memory |\n|---|---|---|---|---|---|---|")
    with torch.inference_mode():
        for tokens in [2**i for i in range(10, arguments.most.bit_length())]:
            x = torch.randn(1, tokens, arguments.dim)
            cells = [f"{tokens:,}"]
            for kind, (function, most) in kinds.items():
                if tokens > most:
                    cells += ["", ""]
                    continue
                found[kind][tokens] = measure(function, x, arguments.repeats)
                cells += [f"{found[kind][tokens][0]:.2f}", f"{found[kind][tokens][1]:.1f}"]
            ours, theirs = found["external"][tokens], found["attention"].get(tokens)
            cells += ["", ""] if theirs is None else [f"{b / a:.1f} ×" for a, b in zip(ours, theirs, strict=True)]
            print(f"| {' | '.join(cells)} |", flush=True)
    for kind, values in ((k, v) for k, v in found.items() if len(v) > 1):
        fits = [slope(list(values), [v[i] for v in values.values()]) for i in (0, 1)]
        sides = f"{min(values):,} to {max(values):,} tokens"
        print(f"{kind}, {sides}: time ~ N^{fits[0]:.2f}, memory ~ N^{fits[1]:.2f}")


if __name__ == "__main__":
    main()
