"""Packed constants: each is held once in a process, whatever programs read it.

A program reads its constants through a table of pointers. A constant is identified by the digest of
its bytes in the layout in which kernels read it, so that uses, sizes and models share it. The pool
holds it by a weak reference: it is freed with the last program that reads it.
"""

from __future__ import annotations

import hashlib
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from superopt.plan.lowering.derived_constants import Load
from superopt.plan.program.call_context import ALIGNMENT_BYTES, aligned_zeros

content_hash = hashlib.sha256  # processors have instructions for it; others take twice the time
Writer = Callable[[np.ndarray], None]  # fills a constant's bytes


def padded_bytes(size: int) -> int:
    """The bytes that a constant of `size` bytes takes: a multiple of ALIGNED."""
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def content_digest(data: np.ndarray) -> str:
    """What identifies a packed constant: the digest of its padded bytes."""
    return content_hash(data.data).hexdigest()


@dataclass(slots=True)
class ConstantPool:
    """Arrays of bytes by digest, weakly held; and digests by what was packed and how, so that it is
    not packed again for each program. Safe to use from several threads."""

    digests: weakref.WeakKeyDictionary[Load, dict[str, str]] = field(
        default_factory=weakref.WeakKeyDictionary
    )
    arrays: weakref.WeakValueDictionary[str, np.ndarray] = field(
        default_factory=weakref.WeakValueDictionary
    )
    lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, digest: str) -> np.ndarray | None:
        with self.lock:
            return self.arrays.get(digest)

    def add(self, digest: str, data: np.ndarray) -> np.ndarray:
        """The array of this digest: the one that is held already, else `data`."""
        with self.lock:
            return self.arrays.setdefault(digest, data)

    def find_packed(self, load: Load, layout: str) -> tuple[str, np.ndarray] | None:
        """A constant that was packed before in this layout, and its digest."""
        with self.lock:
            digest = self.digests.get(load, {}).get(layout, "")
            found = self.arrays.get(digest)
        return None if found is None else (digest, found)

    def remember(self, load: Load, layout: str, digest: str) -> None:
        with self.lock:
            self.digests.setdefault(load, {})[layout] = digest

    def after_fork(self) -> None:
        """In a forked process, where another thread may have held the lock."""
        self.lock = threading.Lock()


CONSTANT_POOL = ConstantPool()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=CONSTANT_POOL.after_fork)


@dataclass(frozen=True, slots=True)
class PackedConstants:
    """The constants of a program in the order of its table. places: where each begins in a copy of
    all of them; size: the bytes of that copy; digests, arrays: of each, padded; table: pointers to
    the arrays."""

    offsets: tuple[int, ...]
    size: int
    digests: tuple[str, ...]
    arrays: tuple[np.ndarray, ...]
    table: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        pointers = [a.ctypes.data for a in self.arrays] or [0]
        object.__setattr__(self, "table", np.array(pointers, np.uintp))


def pool_arrays(writers: Sequence[tuple[int, Writer]]) -> list[tuple[str, np.ndarray]]:
    """Arrays, with their digests, of so many bytes, which are filled.

    All lie in one piece of memory; of what the process holds already no copy stays."""
    arena = aligned_zeros(sum(padded_bytes(exact) for exact, _ in writers))
    used = 0
    out = []
    for exact, write in writers:
        data = arena[used : used + padded_bytes(exact)]
        write(data[:exact])
        data[exact:] = 0
        digest = content_digest(data)
        if (found := CONSTANT_POOL.add(digest, data)) is data:
            used += len(data)  # else the next is written over it
        out.append((digest, found))
    return out
