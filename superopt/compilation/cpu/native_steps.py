"""The native segments among a compiled model's steps, and the limit of their memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from superopt.compilation.cpu.dynamic_if import DynamicIf
from superopt.compilation.runtime.native_segment import NativeSegment
from superopt.cost import machine
from superopt.cost.machine import PROGRAM_MEMORY_DIVISOR, UNKNOWN_MEMORY_BYTES

if TYPE_CHECKING:
    from superopt.compilation.cpu.executable import Sizes, Steps


def native_segments(steps: Iterable[object]) -> Iterator[NativeSegment]:
    """Yield the steps that are machine code, including those of compiled branches."""
    for s in steps:
        if isinstance(s, NativeSegment):
            yield s
        elif isinstance(s, DynamicIf):
            for part in s.executables:
                for inner in part.variants.values():
                    yield from native_segments(inner)


def variant_bytes(variants: Iterable[Iterable[object]]) -> int:
    """Return the bytes that these variants hold together, without machine code; shared constants
    count once."""
    codes = [s.code for steps in variants for s in native_segments(steps)]
    constants = {id(a): a.nbytes for c in codes for a in c.constants.arrays}
    return sum(c.own_bytes for c in codes) + sum(constants.values())


def drop_least_recent(variants: dict[Sizes, Steps]) -> list[Sizes]:
    """Drop the first variants if all of them take too much memory. Return the sizes of these."""
    most = (machine.memory_bytes() or UNKNOWN_MEMORY_BYTES) // PROGRAM_MEMORY_DIVISOR
    dropped = []
    while len(variants) > 1 and variant_bytes(variants.values()) > most:
        old = next(iter(variants))
        del variants[old]
        dropped.append(old)
    return dropped
