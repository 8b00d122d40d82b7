"""The classes of sizes of a model in the cache (entries.py): one entry has the formulas of all, and
each has its program. Large packed constants are separate files (constant_files.py), which programs
share; small ones follow the program's texts."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from superopt.compilation.cache import constant_files, entries
from superopt.kernels.runtime import file_cache as files
from superopt.plan.program.call_context import aligned_zeros
from superopt.plan.program.constant_pool import CONSTANT_POOL, PackedConstants
from superopt.plan.program.size_formulas import SizeFormulas

CLASSES_KIND = "classes"  # kind of the entry with the formulas of all classes
MAX_INLINE_BYTES = 1 << 14  # of a constant that is stored with its program's description
# of a constant: its offset, digest, length, and the checksum of its file; empty if it is inline
ConstantEntry = tuple[int, str, int, str]
WriteConstants = Callable[[PackedConstants], "tuple[list[ConstantEntry], list[bytes], int] | None"]
ReadConstants = Callable[[list[list[Any]], int, bytes], PackedConstants | None]


def read_class_formulas(key: str) -> list[SizeFormulas] | None:
    """Return the formulas of a model's classes; None if the model is known to have none. key: the
    model's."""

    def parse_classes(data: bytes) -> list[SizeFormulas]:
        return [*map(SizeFormulas.from_json, json.loads(data))]

    found = entries.read_entry(_classes_key(key), CLASSES_KIND, parse_classes)
    return None if found == [] else found or []


def write_class_formulas(key: str, formulas: Sequence[SizeFormulas]) -> None:
    """Write the formulas of a model's classes; none if the model has none."""
    data = json.dumps([each.as_json() for each in formulas]).encode()
    files.write(entries.cache_folder(), _classes_key(key), data, CLASSES_KIND)


def _classes_key(key: str) -> str:
    return entries.digest_json((key, CLASSES_KIND))


def class_key(key: str, formulas: SizeFormulas) -> str:
    """Return the key of the program of a class."""
    return entries.digest_json((key, CLASSES_KIND, formulas.as_json()))


def write_constants(
    constants: PackedConstants,
) -> tuple[list[ConstantEntry], list[bytes], int] | None:
    """Write the large constants of a program; return the entries of all, the bytes of the small
    ones, and the bytes that were written. None if they cannot be written."""
    large = [a for a in constants.arrays if len(a) > MAX_INLINE_BYTES]
    if not entries.is_cacheable(sum(map(len, large))):
        return None
    described: list[ConstantEntry] = []
    size = 0
    small: list[bytes] = []
    for at, digest, a in zip(constants.offsets, constants.digests, constants.arrays, strict=True):
        check = ""
        if len(a) > MAX_INLINE_BYTES:
            check = constant_files.checksum(a)
            if not constant_files.write_constant(digest, a):
                return None
            size += len(a)
        else:
            small.append(a.tobytes())
        described.append((at, digest, len(a), check))
    return described, small, size


def read_constants(
    entries_data: list[list[Any]], size: int, inline_bytes: bytes
) -> PackedConstants | None:
    """Return a program's constants; None if one of them is damaged; all such files are removed.
    size: of all of them."""
    arrays: list[np.ndarray | None] = []
    inline = aligned_zeros(len(inline_bytes))
    inline[:] = np.frombuffer(inline_bytes, np.uint8)
    at = 0
    for _, digest, length, check in entries_data:
        if check:
            found = constant_files.read_constant(digest, length, check)
        else:
            found = CONSTANT_POOL.add(digest, inline[at : at + length])
            at += length
        arrays.append(found)
    known = tuple(a for a in arrays if a is not None)
    if len(known) < len(arrays):
        return None
    places, digests = (tuple(c[n] for c in entries_data) for n in (0, 1))
    return PackedConstants(places, size, digests, known)
