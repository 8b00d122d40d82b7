"""The C compiler of this system, which also links."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys

from superopt.errors import UsageError

COMPILER_NAMES = ("cc", "gcc", "clang")
MAX_ERROR_LINES = 4  # of a compiler's error output


def find_c_compiler() -> list[str]:
    """Return the command: $CC, the first compiler found, or that of the package ziglang. Raises
    UsageError if there is none."""
    own = shlex.split(os.environ.get("CC", ""))
    if own:
        if shutil.which(own[0]) is None:
            raise UsageError(f"there is no {own[0]}", "CC is set to it", "install it, or unset CC")
        return own
    for name in COMPILER_NAMES:
        if shutil.which(name):
            return [name]
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "cc"]
    raise UsageError(
        "there is no C compiler",
        f"looked for {', '.join(COMPILER_NAMES)}, and the Python package ziglang",
        "install one (apt install gcc libc6-dev, or pip install ziglang), or set CC",
    )
