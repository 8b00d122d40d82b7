"""The C compiler, which also links."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from superopt.errors import UsageError

COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-pthread", "-shared")
LINES = 4  # of a compiler's error output


def compiler() -> list[str]:
    """Return the command: $CC, or the first compiler found. Raises UsageError if there is none."""
    own = shlex.split(os.environ.get("CC", ""))
    if own:
        if shutil.which(own[0]) is None:
            raise UsageError(f"there is no {own[0]}", "CC is set to it", "install it, or unset CC")
        return own
    for name in COMPILERS:
        if shutil.which(name):
            return [name]
    raise UsageError(
        "there is no C compiler",
        f"looked for {', '.join(COMPILERS)}",
        "install one (apt install gcc libc6-dev), or set CC",
    )


def shared_object(
    cc: Sequence[str],
    folder: Path,
    texts: tuple[str, str],
    code: Sequence[bytes],
    name: str,
    file: str,
) -> bytes:
    """Compile and link C sources (model.h and the file that includes it) and object files. folder:
    for temporary files. symbol_prefix: of the exported symbols; file_stem: of the library.

    Raises UsageError if the compiler fails.
    """
    for suffix, text in zip("hc", texts, strict=True):
        (folder / f"model.{suffix}").write_text(text, "utf-8")
    for n, each in enumerate(code):
        (folder / f"{n}.o").write_bytes(each)
    # Other libraries have functions of the same names: kernels, `run`, and an older version has
    # all.
    (folder / "seen").write_text(f"{{ global: {name}_*; local: *; }};")
    out = folder / "model.so"
    options = ["-soname", f"lib{file}.so", "--version-script=seen", "-Bsymbolic", "-z", "defs",
               "-z", "noexecstack"]  # fmt: skip
    given = ["model.c", *(f"{n}.o" for n in range(len(code)))]
    passed = [word for o in options for word in ("-Xlinker", o)]
    command = [*cc, *FLAGS, *given, *passed, "-lm", "-o", out.name]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace")
    if done.returncode:
        said = "\n".join(done.stderr.splitlines()[:LINES])
        todo = "install all of it, or set CC to another compiler"
        raise UsageError(f"{shlex.join(cc)} cannot make a shared object", said, todo)
    return out.read_bytes()
