"""Memory between pages that may not be touched, in which a segment is run."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Mapping

import numpy as np

from superopt.compilation.cpu.native_segment import NativeSegment
from superopt.plan.program.image import LoadedProgram, SizedCode

PAGE_BYTES = mmap.PAGESIZE
UNWRITTEN = 0xFF  # bytes of a NaN


def guarded_array(count: int, alignment: int = 64) -> np.ndarray:
    """Return bytes that end at a page that may not be touched, to the alignment; such a page is
    before them as well."""
    held = -(-count // alignment) * alignment
    inside = max(-(-held // PAGE_BYTES), 1) * PAGE_BYTES
    block = mmap.mmap(-1, inside + 2 * PAGE_BYTES)
    base = ctypes.addressof(ctypes.c_char.from_buffer(block))
    for at in (base, base + PAGE_BYTES + inside):
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(at), PAGE_BYTES, 0) == 0
    out = np.frombuffer(block, np.uint8, inside, PAGE_BYTES)[inside - held : inside - held + count]
    out[:] = UNWRITTEN
    return out


def guarded_like(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    count = int(np.prod(shape)) * dtype.itemsize
    return guarded_array(count, dtype.itemsize).view(dtype).reshape(shape)


def _guarded_copy(x: np.ndarray) -> np.ndarray:
    out = guarded_like(x.shape, x.dtype)
    out[...] = x
    return out


def run_guarded(step: NativeSegment, arrays: list[np.ndarray]) -> Mapping[str, np.ndarray]:
    """Return the outputs of a model of one segment. Its inputs, outputs, constants and memory are
    guarded: an access beyond them ends the process. The memory holds NaNs before."""
    code = step.code
    assert step.binding is not None
    program = code.loaded_program
    if isinstance(code, SizedCode):
        needs = code.memory_bytes, code.workspace_bytes
    else:
        needs = program.memory_bytes, program.workspace_bytes
    _guard_memory(program, *needs, clear=program is code)
    constants = [_guarded_copy(x) for x in program.constants.arrays]
    program.constants.table[: len(constants)] = [x.ctypes.data for x in constants]
    given = []
    for x in arrays:
        given.append(_guarded_copy(x))
    out = [guarded_like(*spec) for spec in step.output_specs]
    code.call((*(given[n] for n in step.binding.input_numbers), *out))
    return {name: out[n] for name, n in step.binding.output_numbers.items()}


def _guard_memory(p: LoadedProgram, memory_bytes: int, workspace_bytes: int, clear: bool) -> None:
    """Let the next call use guarded memory."""
    context = p.make_context()
    context.memory = guarded_array(memory_bytes)
    if clear:  # borders of zeros are written once
        context.memory[:] = 0
    context.workspaces = [guarded_array(workspace_bytes) for _ in context.workspaces]
    at = context.memory.ctypes.data, context.addresses[1], context.workspaces[0].ctypes.data
    context.addresses = at
    context.address_table[:3] = at
    p.idle[:] = [context]
