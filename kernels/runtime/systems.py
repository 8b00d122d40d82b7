"""Systems that code is compiled for: this one, and others for which `export` cross-compiles."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from superopt.errors import UsageError
from superopt.kernels.runtime.target_cpu import LEVELS, Level


@dataclass(frozen=True, slots=True)
class System:
    """An operating system on an architecture.

    title: for messages. triple: LLVM's. zig_target: that of `zig cc -target`. platform: the C file
    of what a library needs of it (report/export). library: the file's name, for a stem. cpus: by
    name, the default first. gcc: the usual name of a cross-compiler. max_threads: that a library
    can use; 0 for no limit.
    """

    name: str
    title: str
    triple: str
    zig_target: str
    platform: str
    library: str
    cpus: Mapping[str, Level]
    gcc: str = ""
    max_threads: int = 0

    @property
    def architecture(self) -> str:
        return self.triple.partition("-")[0]


_NEON = ("neon", "fp-armv8")
_NEOVERSE_N1 = (*_NEON, "crc", "dotprod", "fullfp16", "lse", "rdm")
_NEOVERSE_V1 = (*_NEOVERSE_N1, "bf16", "i8mm", "sve")
_SIMD128 = ("simd128", "bulk-memory", "nontrapping-fptoint", "sign-ext")

# SVE is compiled for vectors of one length, which is tested when a model is opened.
AARCH64_CPUS = {
    "armv8-a": Level(_NEON, 16, "generic"),
    "neoverse-n1": Level(_NEOVERSE_N1, 16),
    "neoverse-v1": Level(_NEOVERSE_V1, 32),
}
WASM_CPUS = {
    "simd128": Level(_SIMD128, 16, "generic"),
    "relaxed-simd": Level((*_SIMD128, "relaxed-simd"), 16, "generic"),
}
X86_64_CPUS = {"x86-64-v3": LEVELS["x86-64-v3"]} | LEVELS

SYSTEMS = {
    s.name: s
    for s in (
        System(
            "x86_64-linux", "Linux on x86-64", "x86_64-unknown-linux-gnu", "x86_64-linux-gnu",
            "linux", "lib{}.so", X86_64_CPUS, "x86_64-linux-gnu-gcc",
        ),
        System(
            "aarch64-linux", "Linux on AArch64", "aarch64-unknown-linux-gnu", "aarch64-linux-gnu",
            "linux", "lib{}.so", AARCH64_CPUS, "aarch64-linux-gnu-gcc",
        ),
        System(
            "x86_64-windows", "Windows on x86-64", "x86_64-w64-windows-gnu", "x86_64-windows-gnu",
            "windows", "{}.dll", X86_64_CPUS, "x86_64-w64-mingw32-gcc",
        ),
        System(
            "wasm", "WebAssembly", "wasm32-unknown-unknown", "wasm32-wasi", "wasm", "{}.wasm",
            WASM_CPUS, max_threads=1,
        ),
    )
}  # fmt: skip


def host_system() -> str:
    """Return the name of this system, as "x86_64-linux", which may be none of SYSTEMS."""
    machine = platform.machine().lower()
    name = "windows" if sys.platform == "win32" else sys.platform
    return f"{_ARCHITECTURES.get(machine, machine)}-{name}"


_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}


def find_system(target: str | None, cpu: str | None) -> System:
    """Return the system of this name; by default the one that has the CPU, or this one.

    Raises UsageError for another name.
    """
    here = host_system()
    if target is None:
        others = (name for name, s in SYSTEMS.items() if cpu in s.cpus)
        own = here in SYSTEMS and (cpu in (None, "native") or cpu in SYSTEMS[here].cpus)
        target = here if own else next(others, here)
    if target in SYSTEMS:
        return SYSTEMS[target]
    raise UsageError(
        f"unknown target {target!r}" if target != here else f"this system is {here}",
        f"code is exported for {', '.join(SYSTEMS)}",
        "name one of these: --target, or target= in Python",
    )
