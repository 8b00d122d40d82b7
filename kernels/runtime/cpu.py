"""The CPU target: compile LLVM text to machine code in this process."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from superopt.kernels.algorithms.digests import kernel_digest, sources_digest
from superopt.kernels.llvm.codegen import chunk_count, kernel_text, workspace_bytes
from superopt.kernels.loops.tile import Kernel
from superopt.kernels.runtime import file_cache
from superopt.kernels.runtime.engine import LLVMLITE_VERSION, create_target_machine, initialize_llvm
from superopt.kernels.runtime.engine import Machine as Machine
from superopt.kernels.runtime.engine import host as host
from superopt.kernels.runtime.engine import link_objects as link_objects
from superopt.kernels.runtime.engine import named_machine as named_machine
from superopt.kernels.runtime.feature_checks import X86_BITS
from superopt.kernels.runtime.memory_limit import require_address_space
from superopt.te.expr.dtype import to_numpy

# Kernels come with tiles in registers and addresses in few instructions; more of LLVM's middle end
# takes time and finds nothing.
LLVM_PASSES = ("sroa", "simplify_cfg", "instruction_combine")
WORKSPACE_ALIGNMENT = 64
BASELINE_FEATURES = ("64bit", "cmov", "cx8", "fxsr", "mmx", "sse", "sse2")  # of every x86-64
SVE_UNIT_BYTES = 16  # a register of SVE has a whole number of these
FUNCTION_HEAD = re.compile(r"^(define [^{]*?) \{", re.MULTILINE)


def checkable_target(machine: Machine) -> tuple[Machine, tuple[str, ...]]:
    """Return a machine reduced to features that C code can test at run time, and the features to be
    tested."""
    if machine.triple and "+sse2" not in machine.features.split(","):  # a CPU of a table: all are
        return machine, tuple(f[1:] for f in machine.features.split(","))
    there = {f[1:] for f in machine.features.split(",") if f.startswith("+")}
    needs = tuple(f for f in X86_BITS if f in there)
    kept = {*BASELINE_FEATURES, *needs} & there
    names = [f[1:] for f in machine.features.split(",")]
    # disabled features come last: LLVM then also disables what implies them
    features = [*(f"+{f}" for f in names if f in kept), *(f"-{f}" for f in names if f not in kept)]
    return replace(machine, features=",".join(features)), needs


def object_code(
    text: str, machine: Machine, folder: Path | None = None, shared: bool = False
) -> bytes:
    """Return the object file of a module's LLVM text, cached in `folder`. shared: for a shared
    object instead of this process."""
    return _cached_object_code(text, lambda: text, machine, folder, shared)


def kernel_object_code(
    kernel: Kernel, machine: Machine, folder: Path | None = None, shared: bool = False
) -> bytes:
    """Return the object file of a kernel, cached likewise."""
    return kernel_compiler(kernel, machine, folder, shared)()


def kernel_compiler(
    kernel: Kernel, machine: Machine, folder: Path | None = None, shared: bool = False
) -> Callable[[], bytes]:
    """Return a function that returns the object file of a kernel. The text of a kernel with
    symbolic sizes is generated now, each time, for the guards; that of another only if its object
    file is not cached."""
    if kernel.sizes:
        return partial(object_code, kernel_text(kernel, machine.width), machine, folder, shared)
    about = f"{kernel.name} {kernel_digest(kernel)} {machine.width} {sources_digest()}"
    return partial(
        _cached_object_code,
        about, partial(kernel_text, kernel, machine.width), machine, folder, shared,
    )  # fmt: skip


def _cached_object_code(
    key_text: str, text: Callable[[], str], machine: Machine, folder: Path | None, shared: bool
) -> bytes:
    kind = ("shared",) if shared else ()
    key_text = "\0".join(
        (
            key_text,
            machine.cpu,
            machine.features,
            machine.triple,
            LLVMLITE_VERSION,
            *LLVM_PASSES,
            *kind,
        )
    )
    key = blake2b(key_text.encode(), digest_size=20).hexdigest()
    found = file_cache.read(folder, key)
    if found is None:
        module, made = _optimized_module(text(), machine, shared)
        found = bytes(made.emit_object(module))
        file_cache.write(folder, key, found)
    return found


def optimized_text(text: str, machine: Machine) -> str:
    """Return a module's LLVM text after the optimization passes."""
    return str(_optimized_module(text, machine)[0])


def _optimized_module(text: str, machine: Machine, shared: bool = False) -> tuple[Any, Any]:
    initialize_llvm()
    if "half" in text and not converts_float16(machine):
        raise MissingFloat16("this processor has no float16 conversions (F16C)")
    require_address_space(len(text))
    if "+sve" in machine.features.split(","):  # vectors of a known length, in registers of SVE
        units = machine.width // SVE_UNIT_BYTES
        text = FUNCTION_HEAD.sub(rf"\1 vscale_range({units},{units}) {{", text)
    module = llvm.parse_assembly(text)
    module.verify()
    made = create_target_machine(machine, shared)
    if machine.triple:  # whose pointers may have another size
        module.triple, module.data_layout = machine.triple, str(made.target_data)
    _run_passes(module, made, LLVM_PASSES)
    return module, made


def converts_float16(machine: Machine) -> bool:
    """True unless the machine is x86 without F16C (`features` names SSE2 but not F16C)."""
    return "+sse2" not in machine.features or "+f16c" in machine.features


class MissingFloat16(NotImplementedError):
    """A float16 kernel was requested for a processor without conversions (x86 without F16C)."""


@dataclass(frozen=True, slots=True)
class LoadedKernel:
    """A kernel's machine code; `engine` owns it."""

    kernel: Kernel
    function: Callable[..., None]
    workspace: np.ndarray
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
        space = self.workspace.ctypes.data
        at = [a.ctypes.data for a in arrays]
        for chunk in range(chunk_count(self.kernel)):
            self.function(*at, space + -space % WORKSPACE_ALIGNMENT, chunk)


def load_kernel(kernel: Kernel, machine: Machine | None = None) -> LoadedKernel:
    """Compile and load the kernel for this machine (or for `machine`, if this processor can run
    it).

    Raises NotImplementedError for an unsupported element type.
    """
    machine = machine or host()
    engine = link_objects([object_code(kernel_text(kernel, machine.width), machine)], machine)
    kinds = [ctypes.c_void_p] * (len(kernel.params) + 1) + [ctypes.c_int64]
    run = ctypes.CFUNCTYPE(None, *kinds)(engine.get_function_address(kernel.name))
    return LoadedKernel(
        kernel, run, np.empty(workspace_bytes(kernel) + WORKSPACE_ALIGNMENT, np.uint8), engine
    )


def _run_passes(module: Any, target_machine: Any, passes: Sequence[str]) -> None:
    builder = llvm.create_pass_builder(
        target_machine, llvm.create_pipeline_tuning_options(speed_level=3)
    )
    manager = llvm.create_new_module_pass_manager()
    for name in passes:
        getattr(manager, f"add_{name}_pass")()
    manager.run(module, builder)
