"""How the provider's library is built from C. setup.py reads this file, which imports nothing."""

from __future__ import annotations

from collections.abc import Sequence

LIBRARY_NAME = "libsuperopt_ort.so"
SOURCES = ("provider.c", "partition.c", "context_file.c", "host_compiler.c")
HEADERS = (
    "ort_api.h", "partition.h", "context_file.h", "host_compiler.h",
    "../report/export/model_interface.h",
)  # fmt: skip
BUILD_FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-pthread", "-Wl,-z,noexecstack")


def build_command(compiler: Sequence[str], version: str, output: str) -> list[str]:
    """Return the command that builds the library, for the folder of its sources."""
    defined = f'-DSUPEROPT_VERSION="{version}"'
    return [*compiler, *BUILD_FLAGS, defined, *SOURCES, "-ldl", "-o", output]
