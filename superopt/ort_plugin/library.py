"""The provider's library: the one in the package, or one that is built from its C sources."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

from superopt import __version__
from superopt.compilation.cpu.c_compiler import MAX_ERROR_LINES, find_c_compiler
from superopt.cost.cache_folders import default_folder
from superopt.errors import UsageError
from superopt.onnx_io.export.atomic_files import atomic_files
from superopt.ort_plugin.build import HEADERS, LIBRARY_NAME, SOURCES, build_command

PROVIDER_NAME = "SuperoptExecutionProvider"


def provider_library() -> Path:
    """Return the path of the library. A wheel has it; from a source checkout it is built once.

    Raises UsageError if this is not Linux, or if it must be built and there is no C compiler.
    """
    if sys.platform != "linux":
        raise UsageError(
            "the execution provider is unsupported here",
            f"this is {sys.platform} on {platform.machine()}",
            "use Linux",
        )
    here = Path(__file__).parent
    packaged = here / LIBRARY_NAME
    return packaged if packaged.exists() else _cached_library(here)


def _cached_library(here: Path) -> Path:
    texts = [(here / name).read_bytes() for name in (*SOURCES, *HEADERS)]
    digest = blake2b(b"\0".join((__version__.encode(), *texts)), digest_size=12).hexdigest()
    folder = default_folder() / "provider" / digest
    built = folder / LIBRARY_NAME
    if not built.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_files() as new:
            new(built).file.write(build_library(find_c_compiler(), here, folder))
    return built


def build_library(compiler: Sequence[str], sources: Path, scratch: Path) -> bytes:
    """Build the library; return its bytes. scratch: a folder for it. Raises UsageError."""
    made = scratch / f"{LIBRARY_NAME}.new"
    command = build_command(compiler, __version__, str(made))
    done = subprocess.run(command, cwd=sources, capture_output=True, text=True, errors="replace")
    if done.returncode:
        said = "\n".join(done.stderr.splitlines()[:MAX_ERROR_LINES])
        raise UsageError(
            f"{compiler[0]} cannot build the execution provider",
            said,
            "install the wheel, which has it, or another C compiler (pip install ziglang)",
        )
    try:
        return made.read_bytes()
    finally:
        made.unlink()
