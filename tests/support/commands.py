"""The command line in a process of its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from superopt.cost.cache_folders import rules_folder
from superopt.loading.rule_library import load_library


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


def share_rule_library(cache: Path) -> None:
    """Copy the parsed rule library into a cache folder of a test's own, where a command would
    otherwise parse it again: two seconds."""
    load_library()
    with suppress(FileNotFoundError):  # loaded while the cache was another test's
        shutil.copytree(rules_folder(), cache / rules_folder().name, dirs_exist_ok=True)
