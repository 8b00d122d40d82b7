"""Instructions for products of bfloat16 and of integers, and the permission to use AMX."""

from __future__ import annotations

import ctypes
import sys
from functools import cache

from superopt.errors import UsageError
from superopt.kernels.processor import (
    AMX,
    AMX_INT8,
    AVX512_BF16,
    AVX512_VNNI,
    AVX_INT16,
    AVX_VNNI,
    TILE_INSTRUCTIONS,
)
from superopt.kernels.runtime.engine import Machine
from superopt.kernels.runtime.target_cpu import VARIABLE

SYS_ARCH_PRCTL = 158  # Linux on x86-64
ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA = 0x1023, 18


@cache
def request_amx() -> bool:
    """Ask Linux for AMX's tile registers, for all threads of this process and of those that it
    forks. Return False if they are not permitted, or this is another system."""
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.syscall(SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0)


# LLVM's names of the features that code with each of the instructions needs.
NEEDED_FEATURES = {
    AMX: ("amx-tile", "amx-bf16", "avx512bf16", "avx512f"),
    AVX512_BF16: ("avx512bf16", "avx512f"),
}


def bf16_instructions(machine: Machine) -> str:
    """Return the fastest instructions for products of bfloat16 that the machine has and this
    process may use; see `Kernel.instructions`.

    Raises UsageError if there are none.
    """
    there = {f[1:] for f in machine.features.split(",") if f.startswith("+")}
    for name, needed in NEEDED_FEATURES.items():
        if there.issuperset(needed) and (name != AMX or request_amx()):
            return name
    missing = ", ".join(f for f in NEEDED_FEATURES[AVX512_BF16] if f not in there)
    raise UsageError(
        f"precision 'bf16' on {machine.cpu}",
        f"the processor lacks {missing} and AMX, whose instructions multiply bfloat16 numbers",
        f'use precision="fp32", another machine, or unset {VARIABLE}',
    )


INTEGER_FEATURES = {
    AMX_INT8: ("amx-tile", "amx-int8", "avx512f"),
    AVX512_VNNI: ("avx512vnni", "avx512f"),
    AVX_VNNI: ("avxvnni", "avx2"),
    AVX_INT16: ("sse2",),
}


def integer_instructions(machine: Machine) -> str:
    """Return the fastest exact instructions for products of uint8 and int8 that the machine has and
    this process may use; empty if there are none, as on AArch64."""
    there = {f[1:] for f in machine.features.split(",") if f.startswith("+")}
    for name, needed in INTEGER_FEATURES.items():
        if there.issuperset(needed) and (name not in TILE_INSTRUCTIONS or request_amx()):
            return name
    return ""
