"""The command line in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager


@contextmanager
def superopt_process(
    arguments: Sequence[object], environment: Mapping[str, str], seconds: float
) -> Iterator[subprocess.Popen[str]]:
    """`superopt` with these arguments, its output as text; killed after so many seconds, and where
    the block ends."""
    process = subprocess.Popen(
        [sys.executable, "-m", "superopt", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    try:
        yield process
    finally:
        timer.cancel()
        process.kill()
        process.communicate()
