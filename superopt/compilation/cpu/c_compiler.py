"""The C compiler, which also links."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from superopt.errors import UsageError

COMPILER_NAMES = ("cc", "gcc", "clang")
COMPILE_FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-pthread", "-shared")
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


def link_shared_object(
    compiler_command: Sequence[str],
    folder: Path,
    sources: tuple[str, str],
    object_files: Sequence[bytes],
    symbol_prefix: str,
    file_stem: str,
) -> bytes:
    """Compile and link C sources (model.h and the file that includes it) and object files. folder:
    for temporary files. symbol_prefix: of the exported symbols; file_stem: of the library.

    Raises UsageError if the compiler fails.
    """
    for suffix, text in zip("hc", sources, strict=True):
        (folder / f"model.{suffix}").write_text(text, "utf-8")
    for n, each in enumerate(object_files):
        (folder / f"{n}.o").write_bytes(each)
    # Other libraries have functions of the same names: kernels, `run`, and an older version has
    # all.
    (folder / "seen").write_text(f"{{ global: {symbol_prefix}_*; local: *; }};")
    out = folder / "model.so"
    options = ["-soname", f"lib{file_stem}.so", "--version-script=seen", "-Bsymbolic", "-z", "defs",
               "-z", "noexecstack"]  # fmt: skip
    given = ["model.c", *(f"{n}.o" for n in range(len(object_files)))]
    passed = [word for o in options for word in ("-Xlinker", o)]
    command = [*compiler_command, *COMPILE_FLAGS, *given, *passed, "-lm", "-o", out.name]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace")
    if done.returncode:
        said = "\n".join(done.stderr.splitlines()[:MAX_ERROR_LINES])
        todo = "install all of it, or set CC to another compiler"
        raise UsageError(f"{shlex.join(compiler_command)} cannot make a shared object", said, todo)
    return out.read_bytes()
