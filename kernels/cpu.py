"""The CPU target: LLVM's text to machine code, in this process."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from superopt.kernels.cpu_text import chunks, workspace, written
from superopt.kernels.tile import Kernel
from superopt.te.dtype import to_numpy

# Kernels are written as they are to run: tiles in registers, addresses in few instructions. What is
# more of LLVM's middle end takes time and finds nothing.
PASSES = ("sroa", "simplify_cfg", "instruction_combine")
ALIGNED = 64


@dataclass(frozen=True, slots=True)
class Machine:
    """What code is for: LLVM's names of a processor and of its features, and a vector's bytes."""

    cpu: str
    features: str
    width: int


def host() -> Machine:
    """This machine."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    has = llvm.get_host_cpu_features()
    width = 64 if has.get("avx512f") else 32 if has.get("avx") else 16
    return Machine(llvm.get_host_cpu_name(), has.flatten(), width)


@dataclass(frozen=True, slots=True)
class Loaded:
    """Machine code of a kernel; `engine` owns it."""

    kernel: Kernel
    run: Callable[..., None]
    scratch: np.ndarray
    engine: Any

    def __call__(self, *arrays: np.ndarray) -> None:
        """Compute the last arrays from the first ones: contiguous, and of the parameters' types.

        Raises TypeError or ValueError where they are not. Not to be called twice at a time.
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
    """The kernel, compiled for this machine (or one that it can stand for).

    Raises NotImplementedError where no kernel computes an element type.
    """
    machine = machine or host()
    module = llvm.parse_assembly(written(kernel, machine.width))
    module.verify()
    target = llvm.Target.from_default_triple().create_target_machine(
        cpu=machine.cpu, features=machine.features, opt=3
    )
    _optimized(module, target, PASSES)
    engine = llvm.create_mcjit_compiler(module, target)
    engine.finalize_object()
    kinds = [ctypes.c_void_p] * (len(kernel.params) + 1) + [ctypes.c_int64]
    run = ctypes.CFUNCTYPE(None, *kinds)(engine.get_function_address(kernel.name))
    return Loaded(kernel, run, np.empty(workspace(kernel) + ALIGNED, np.uint8), engine)


def _optimized(module: Any, target: Any, passes: Sequence[str]) -> None:
    builder = llvm.create_pass_builder(target, llvm.create_pipeline_tuning_options(speed_level=3))
    manager = llvm.create_new_module_pass_manager()
    for name in passes:
        getattr(manager, f"add_{name}_pass")()
    manager.run(module, builder)
