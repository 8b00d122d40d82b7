"""The native segments among a compiled model's steps, and their memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from superopt.pipeline.branch import Branch
from superopt.pipeline.native import Native


def natives(steps: Iterable[object]) -> Iterator[Native]:
    """Yield the steps that are machine code, including those of compiled branches."""
    for s in steps:
        if isinstance(s, Native):
            yield s
        elif isinstance(s, Branch):
            for part in s.parts:
                for inner in part.variants.values():
                    yield from natives(inner)


def held_bytes(variants: Iterable[Iterable[object]]) -> int:
    """Return the bytes that these variants hold together, without machine code; shared constants
    count once."""
    codes = [s.code for steps in variants for s in natives(steps)]
    constants = {id(a): a.nbytes for c in codes for a in c.constants.arrays}
    return sum(c.own_bytes for c in codes) + sum(constants.values())
