"""The machine-code entry of a program, called with a tuple of numpy arrays.

    void enter(PyObject *arrays, ptr fixed)

It reads each array's data address and calls `run` with the table of addresses; Python's own ways to
get one take a microsecond each. fixed: a table of memory, constants, workspace and state. The
offsets within tuple and array objects are found by probing; if that fails, there is no `enter`.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache

import numpy as np

FIXED_POINTERS = ("memory", "constants", "workspace", "state")
_MIN_OFFSET, _MAX_OFFSET = 8, 40  # bytes into an object, where to probe


@cache
def object_offsets() -> tuple[int, int] | None:
    """Return the byte offsets of the first item in a tuple, and of the data pointer in an array;
    None if they are not as in CPython."""
    if sys.implementation.name != "cpython":
        return None
    some = tuple(np.zeros(n) for n in (1, 2, 3))
    other = some[1:]
    items = _find_offset([(id(some), id(some[0])), (id(other), id(some[1]))])
    data = _find_offset([(id(a), a.ctypes.data) for a in some])
    if items is None or data is None:
        return None
    words = [ctypes.c_void_p.from_address(id(some) + items + 8 * n).value for n in range(3)]
    return (items, data) if words == [id(a) for a in some] else None


def _find_offset(samples: list[tuple[int, int]]) -> int | None:
    """Return the byte offset from each first address at which the second one is stored."""
    for n in range(_MIN_OFFSET, _MAX_OFFSET, 8):
        if all(ctypes.c_void_p.from_address(at + n).value == wanted for at, wanted in samples):
            return n
    return None


def entry_text(count: int, items: int, data: int) -> str:
    """Return the LLVM text of `enter` for `count` arrays."""
    lines = [
        "declare void @run(ptr, ptr, ptr, ptr, ptr)",
        "define void @enter(ptr %arrays, ptr %fixed) {",
        f"  %args = alloca [{max(count, 1)} x ptr]",
    ]
    for n in range(count):
        lines += [
            f"  %item{n} = getelementptr i8, ptr %arrays, i64 {items + 8 * n}",
            f"  %array{n} = load ptr, ptr %item{n}",
            f"  %place{n} = getelementptr i8, ptr %array{n}, i64 {data}",
            f"  %data{n} = load ptr, ptr %place{n}",
            f"  %arg{n} = getelementptr ptr, ptr %args, i64 {n}",
            f"  store ptr %data{n}, ptr %arg{n}",
        ]
    for n, name in enumerate(FIXED_POINTERS):
        lines += [
            f"  %at.{name} = getelementptr ptr, ptr %fixed, i64 {n}",
            f"  %{name} = load ptr, ptr %at.{name}",
        ]
    given = ", ".join(f"ptr %{name}" for name in ("args", *FIXED_POINTERS))
    return "\n".join([*lines, f"  call void @run({given})", "  ret void\n}\n"])
