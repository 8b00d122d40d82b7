"""Link object files and the C source of a model to a library, for this system or for another."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from superopt.compilation.cpu.c_compiler import MAX_ERROR_LINES, find_c_compiler
from superopt.errors import UsageError
from superopt.kernels.runtime.systems import System, host_system

LINK_OPTIONS = {
    "linux": ("-std=gnu11", "-O2", "-fPIC", "-pthread", "-shared"),
    "windows": ("-std=gnu11", "-O2", "-shared"),
    # a module without `main`; memory grows as the model needs it
    "wasm": ("-std=gnu11", "-O2", "-mexec-model=reactor", "-mcpu=generic+simd128+bulk_memory"),
}
LIBRARIES = {"linux": ("-lm",), "windows": ("-lapi-ms-win-core-synch-l1-2-0",), "wasm": ()}
WASM_STACK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class LinkerInput:
    """What is linked. sources: the C header, model.h, and the source. prefix: of the exported
    symbols; functions: those of them that are functions, without it. library: the file's name."""

    sources: tuple[str, str]
    objects: Sequence[bytes]
    prefix: str
    functions: Sequence[str]
    library: str


def find_linker(system: System) -> list[str]:
    """Return the command of a C compiler that also links for a system: $CC if it makes code for
    it, a cross-compiler as aarch64-linux-gnu-gcc, or that of the package ziglang.

    Raises UsageError if there is none.
    """
    if system.name == host_system():
        return find_c_compiler()
    architecture, _, kernel = system.name.partition("-")
    own = shlex.split(os.environ.get("CC", ""))
    if own and _compiles_for(own, architecture, kernel):
        return own
    if system.gcc and shutil.which(system.gcc):
        return [system.gcc]
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "cc", "-target", system.zig_target]
    cross = f", {system.gcc}" if system.gcc else ""
    raise UsageError(
        f"there is no linker for {system.title}",
        f"looked for CC{cross}, and the Python package ziglang",
        "pip install ziglang, or set CC to a cross-compiler",
    )


def _compiles_for(command: Sequence[str], architecture: str, kernel: str) -> bool:
    """Return whether a compiler says that it makes code for a system."""
    try:
        done = subprocess.run(
            [*command, "-dumpmachine"], capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    names = {"windows": ("windows", "mingw"), "": ("wasm",)}.get(kernel, (kernel,))
    said = done.stdout.strip()
    return said.startswith(architecture) and any(name in said for name in names)


def link_library(command: Sequence[str], system: System, folder: Path, x: LinkerInput) -> bytes:
    """Compile the source and link it with the objects; return the library. folder: for temporary
    files. Raises UsageError if the linker fails."""
    for suffix, text in zip("hc", x.sources, strict=True):
        (folder / f"model.{suffix}").write_text(text, "utf-8")
    for n, each in enumerate(x.objects):
        (folder / f"{n}.o").write_bytes(each)
    given = ["model.c", *(f"{n}.o" for n in range(len(x.objects)))]
    seen = _export_options(system, folder, x)
    words = [*command, *LINK_OPTIONS[system.platform], *given, *seen]
    words += [*LIBRARIES[system.platform], "-o", "library"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, errors="replace")
    if done.returncode:
        said = "\n".join(done.stderr.splitlines()[:MAX_ERROR_LINES])
        todo = "install all of it, or set CC to another compiler"
        raise UsageError(f"{shlex.join(command)} cannot make a library", said, todo)
    return (folder / "library").read_bytes()


def _export_options(system: System, folder: Path, x: LinkerInput) -> list[str]:
    """Return the options, or files, by which the library exports the model's symbols, and no
    others: kernels and `run` of several libraries have the same names."""
    if system.platform == "linux":
        (folder / "seen").write_text(f"{{ global: {x.prefix}_*; local: *; }};")
        options = ["-soname", x.library, "--version-script=seen", "-Bsymbolic", "-z", "defs",
                   "-z", "noexecstack"]  # fmt: skip
        return [word for o in options for word in ("-Xlinker", o)]
    if system.platform == "windows":
        names = [f"{x.prefix}_{f}" for f in x.functions]
        data = [f"{x.prefix}_{name} DATA" for name in ("inputs", "outputs", "interface")]
        lines = [f"LIBRARY {x.library}", "EXPORTS", *names, *data]
        (folder / "model.def").write_text("\n".join([*lines, ""]))
        return ["model.def"]
    names = [f"{x.prefix}_{f}" for f in (*x.functions, "allocate", "free")]
    return [f"-Wl,--export={name}" for name in names] + [f"-Wl,-z,stack-size={WASM_STACK_BYTES}"]
