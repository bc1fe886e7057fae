"""Several processes that train one run together, one for each device."""

import contextlib
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO

from mixwise.errors import MixwiseError

GRACE = 20.0
"""Seconds that the others get to end after one of them failed."""

MARK = "mixwise: "
"""In front of the sentence of a process that failed, on its standard error."""


def rank() -> int:
    """Which of the processes this is, from 0; 0 where there is one."""
    return int(os.environ.get("LOCAL_RANK", 0))


def end_with_parent() -> None:
    """Let this process end when the one that launched it dies, however it dies."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def launch(entry: str, folder: Path, count: int, *, device: str, quiet: bool) -> None:
    """Run `entry` (module:function, called with the run folder) in `count` processes, and wait for all.

    They find each other through torch's environment variables. A failure of one ends the others and is raised as
    `MixwiseError` with its sentence; Ctrl-C and SIGTERM reach all of them.
    """
    module, _, function = entry.partition(":")
    code = f"from {module} import {function}; {function}({str(folder)!r}, quiet={quiet})"
    common = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    if device == "cpu":
        common.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // count)))
    asked: list[int] = []
    main = threading.current_thread() is threading.main_thread()  # elsewhere Python allows no handlers
    signals = (signal.SIGINT, signal.SIGTERM) if main else ()
    before = {s: signal.signal(s, lambda number, _: asked.append(number)) for s in signals}
    with contextlib.ExitStack() as stack:
        said = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(count)]
        children = [
            subprocess.Popen(
                [sys.executable, "-c", code],
                env=common | {"LOCAL_RANK": str(number)},
                stderr=said[number],
                start_new_session=True,  # a terminal's Ctrl-C comes here alone, and goes on to each of them once
            )
            for number in range(count)
        ]
        try:
            _wait(children, asked)
        finally:
            for child in children:
                child.kill()
            for number, handler in before.items():
                signal.signal(number, handler)
        if asked:
            raise KeyboardInterrupt
        failed = [number for number, child in enumerate(children) if child.wait() != 0]
        if failed:
            raise MixwiseError(_sentence([_text(said[number]) for number in failed]))


def _wait(children: list[subprocess.Popen], asked: list[int]) -> None:
    """Until all have ended, or one failed and the others had time to notice; signals are passed on."""
    passed, deadline = 0, math.inf
    while any(child.poll() is None for child in children) and time.monotonic() < deadline:
        if len(asked) > passed:
            passed = len(asked)
            for child in children:
                child.send_signal(asked[-1])
        if deadline == math.inf and any(child.poll() for child in children):
            deadline = time.monotonic() + GRACE
        time.sleep(0.05)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace").strip()


def _sentence(texts: list[str]) -> str:
    """What the processes that failed say: the sentence of one that had one, else the end of what was printed."""
    marked = [line for text in texts for line in text.splitlines() if line.startswith(MARK)]
    if marked:
        return marked[0].removeprefix(MARK)
    first = min(texts, key=lambda text: "closed by peer" in text)  # that is what the others then say
    return f"a training process failed: {first[-2000:]}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
