"""Load machine code into this process: the processor's description, and linking of object files.
Programs loaded from disk import only this file, not the compiler."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from superopt.errors import UsageError
from superopt.kernels.processor import AARCH64, AVX2, WASM, XEON, ZEN4, ZEN5, Processor
from superopt.kernels.runtime.memory_limit import require_address_space
from superopt.kernels.runtime.systems import System, host_system
from superopt.kernels.runtime.target_cpu import (
    LEVELS,
    VARIABLE,
    MissingInstructions,
    missing_features,
    requested_level,
)

LLVMLITE_VERSION: str = llvmlite.__version__


@dataclass(frozen=True, slots=True)
class Machine:
    """What code is compiled for: LLVM's CPU and feature strings, the bytes of a vector, and LLVM's
    target triple; empty for this system."""

    cpu: str
    features: str
    width: int
    triple: str = ""

    @property
    def system(self) -> str:
        """The operating system on an architecture, as "x86_64-linux"."""
        if not self.triple:
            return host_system()
        architecture, _, name, *_ = self.triple.split("-")
        return f"{architecture}-{name}"

    @property
    def processor(self) -> Processor:
        """The kind of processor, whose costs decide. All with 512-bit vectors that AMD did not make
        are taken for a Xeon: LLVM names virtual ones by chance."""
        features = self.features.split(",")
        if "+simd128" in features:
            return WASM
        if self.width == AVX512_BYTES:
            found = AMD_PROCESSORS.get(self.cpu, ZEN5 if self.cpu.startswith("znver") else XEON)
            return replace(found, permutes_bytes=True) if "+avx512vbmi" in features else found
        return AARCH64 if "+neon" in features else AVX2


AMD_PROCESSORS = {"znver4": ZEN4}  # by LLVM's name
AVX512_BYTES = 64


def host() -> Machine:
    """Return what kernels are compiled for: the level that SUPEROPT_TARGET_CPU names, or this
    processor.

    Raises UsageError for an unknown level.
    """
    name = requested_level()
    return native_machine() if name is None else psabi_machine(name)


def psabi_machine(name: str) -> Machine:
    """Return any processor of this level of the x86-64 psABI ("x86-64-v3")."""
    level = LEVELS[name]
    return Machine(name, ",".join(f"+{f}" for f in level.features), level.width)


def named_machine(name: str, system: System | None = None) -> Machine:
    """Return the machine of "native", this processor, or of a CPU of a system, by default of a
    level of the x86-64 psABI.

    Raises UsageError for another name.
    """
    is_here = system is None or system.name == host_system()
    cpus = LEVELS if system is None else system.cpus
    if is_here and name == "native":
        return native_machine()
    if name not in cpus:
        raise UsageError(
            f"unknown processor {name!r}",
            f"it must be {'native or ' * is_here}one of {', '.join(cpus)}",
            "name one of these",
        )
    if system is None or is_here:
        return psabi_machine(name)
    level = cpus[name]
    features = ",".join(f"+{f}" for f in level.features)
    return Machine(level.cpu or name, features, level.width, system.triple)


@cache
def native_machine() -> Machine:
    """Return this processor."""
    initialize_llvm()
    has = llvm.get_host_cpu_features()
    width = 64 if has.get("avx512f") else 32 if has.get("avx") else 16
    return Machine(llvm.get_host_cpu_name(), has.flatten(), width)


def llvm_lock() -> AbstractContextManager[object]:
    """Return llvmlite's lock: no other thread is within LLVM while it is held, so that a process
    that forks meanwhile leaves the child a usable LLVM."""
    lock: AbstractContextManager[object] | None = getattr(llvm.ffi.lib, "_lock", None)
    return nullcontext() if lock is None else lock


def initialize_llvm() -> None:
    """Initialize LLVM for this processor."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


def create_target_machine(machine: Machine, shared: bool = False) -> Any:
    """Return an LLVM target machine. shared: for a shared object instead of this process."""
    kind = {"reloc": "pic", "codemodel": "default"} if shared else {"jit": True}
    if machine.triple:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        target = llvm.Target.from_triple(machine.triple)
    else:
        initialize_llvm()
        target = llvm.Target.from_default_triple()
    return target.create_target_machine(cpu=machine.cpu, features=machine.features, opt=3, **kind)


def can_link(machine: Machine) -> bool:
    """True if this process can run code for the machine."""
    return not machine.triple and not missing_features(machine.features, native_machine().features)


def link_objects(objects: Sequence[bytes], machine: Machine) -> Any:
    """Link object files into this process; the result has get_function_address.

    Raises MissingInstructions if this processor lacks an instruction set of the machine.
    """
    initialize_llvm()
    if missing := missing_features(machine.features, native_machine().features):
        raise MissingInstructions(
            f"code for {machine.cpu} does not run on this processor",
            f"it lacks {', '.join(missing)}",
            f"unset {VARIABLE}, or name an older processor",
        )
    require_address_space(sum(map(len, objects)))
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), create_target_machine(machine))
    for code in objects:
        engine.add_object_file(llvm.object_file.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine
