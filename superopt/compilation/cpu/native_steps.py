"""The native segments among a compiled model's steps, and their memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from superopt.compilation.cpu.dynamic_if import DynamicIf
from superopt.compilation.runtime.native_segment import NativeSegment


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
