"""The CPU target: compile LLVM text to machine code in this process."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from superopt.kernels import cache
from superopt.kernels.cpu_text import chunks, workspace, written
from superopt.kernels.engine import VERSION, initialized, target
from superopt.kernels.engine import Machine as Machine
from superopt.kernels.engine import host as host
from superopt.kernels.engine import linked as linked
from superopt.kernels.identity import identity, sources
from superopt.kernels.room import ask
from superopt.kernels.tile import Kernel
from superopt.te.dtype import to_numpy

# Kernels come with tiles in registers and addresses in few instructions; more of LLVM's middle end
# takes time and finds nothing.
PASSES = ("sroa", "simplify_cfg", "instruction_combine")
ALIGNED = 64
# Features of every x86-64 processor; those that C code can test (__builtin_cpu_supports); and those
# that imply others.
ALWAYS = ("64bit", "cmov", "cx8", "fxsr", "mmx", "sse", "sse2")
ASKED = (
    "sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "avx", "avx2", "fma", "bmi", "bmi2", "gfni",
    "avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl", "avx512ifma", "avx512vbmi",
    "avx512vbmi2", "avx512vnni", "avx512bitalg", "avx512vpopcntdq", "avx512bf16",
)  # fmt: skip
BESIDES = {"f16c": "avx2"}


def checkable(machine: Machine) -> tuple[Machine, tuple[str, ...]]:
    """Return an x86-64 machine, as `host` gives it, reduced to features that C code can test at run
    time, and the features to be tested."""
    there = {f[1:] for f in machine.features.split(",") if f.startswith("+")}
    needs = tuple(f for f in ASKED if f in there)
    kept = {*ALWAYS, *needs, *(f for f, other in BESIDES.items() if other in needs)} & there
    names = [f[1:] for f in machine.features.split(",")]
    # disabled features come last: LLVM then also disables what implies them
    features = [*(f"+{f}" for f in names if f in kept), *(f"-{f}" for f in names if f not in kept)]
    return Machine(machine.cpu, ",".join(features), machine.width), needs


def object_code(
    text: str, machine: Machine, folder: Path | None = None, shared: bool = False
) -> bytes:
    """Return the object file of a module's LLVM text, cached in `folder`. shared: for a shared
    object instead of this process."""
    return _kept(text, lambda: text, machine, folder, shared)


def kernel_code(
    kernel: Kernel, machine: Machine, folder: Path | None = None, shared: bool = False
) -> bytes:
    """Return the object file of a kernel, cached likewise; its text is generated only on a miss."""
    about = f"{kernel.name} {identity(kernel)} {machine.width} {sources()}"
    return _kept(about, lambda: written(kernel, machine.width), machine, folder, shared)


def _kept(
    about: str, text: Callable[[], str], machine: Machine, folder: Path | None, shared: bool
) -> bytes:
    kind = ("shared",) if shared else ()
    about = "\0".join((about, machine.cpu, machine.features, VERSION, *PASSES, *kind))
    key = blake2b(about.encode(), digest_size=20).hexdigest()
    found = cache.read(folder, key)
    if found is None:
        module, made = _module(text(), machine, shared)
        found = bytes(made.emit_object(module))
        cache.write(folder, key, found)
    return found


def optimized(text: str, machine: Machine) -> str:
    """Return a module's LLVM text after the optimization passes."""
    return str(_module(text, machine)[0])


def _module(text: str, machine: Machine, shared: bool = False) -> tuple[Any, Any]:
    initialized()
    if "half" in text and not converts_float16(machine):
        raise NoFloat16("this processor has no float16 conversions (F16C)")
    ask(len(text))
    module = llvm.parse_assembly(text)
    module.verify()
    made = target(machine, shared)
    _optimized(module, made, PASSES)
    return module, made


def converts_float16(machine: Machine) -> bool:
    """True unless the machine is x86 without F16C (`features` names SSE2 but not F16C)."""
    return "+sse2" not in machine.features or "+f16c" in machine.features


class NoFloat16(NotImplementedError):
    """A float16 kernel was requested for a processor without conversions (x86 without F16C)."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A kernel's machine code; `engine` owns it."""

    kernel: Kernel
    run: Callable[..., None]
    scratch: np.ndarray
    engine: Any

    def __call__(self, *arrays: np.ndarray) -> None:
        """Compute the result arrays (last) from the inputs: contiguous arrays of the parameters'
        dtypes and shapes.

        Raises TypeError or ValueError if they are not. Not reentrant.
        """
        if len(arrays) != len(self.kernel.params):
            raise TypeError(f"{len(arrays)} arrays for {len(self.kernel.params)} parameters")
        for p, a in zip(self.kernel.params, arrays, strict=True):
            if a.dtype != to_numpy(p.dtype) or a.shape != p.shape:
                raise TypeError(f"{p.name} is {a.dtype}{list(a.shape)}, not {p.type}")
            if not a.flags.c_contiguous:
                raise ValueError(f"{p.name} is not contiguous")
        space = self.scratch.ctypes.data
        at = [a.ctypes.data for a in arrays]
        for chunk in range(chunks(self.kernel)):
            self.run(*at, space + -space % ALIGNED, chunk)


def loaded(kernel: Kernel, machine: Machine | None = None) -> Loaded:
    """Compile and load the kernel for this machine (or for `machine`, if this processor can run
    it).

    Raises NotImplementedError for an unsupported element type.
    """
    machine = machine or host()
    engine = linked([object_code(written(kernel, machine.width), machine)], machine)
    kinds = [ctypes.c_void_p] * (len(kernel.params) + 1) + [ctypes.c_int64]
    run = ctypes.CFUNCTYPE(None, *kinds)(engine.get_function_address(kernel.name))
    return Loaded(kernel, run, np.empty(workspace(kernel) + ALIGNED, np.uint8), engine)


def _optimized(module: Any, made: Any, passes: Sequence[str]) -> None:
    builder = llvm.create_pass_builder(made, llvm.create_pipeline_tuning_options(speed_level=3))
    manager = llvm.create_new_module_pass_manager()
    for name in passes:
        getattr(manager, f"add_{name}_pass")()
    manager.run(module, builder)
