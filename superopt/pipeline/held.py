"""The machine code among a compiled model's steps, and the memory that it holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from superopt.pipeline.branch import Branch
from superopt.pipeline.native import Native


def natives(steps: Iterable[object]) -> Iterator[Native]:
    """The steps that are machine code, those of branches that were compiled included."""
    for s in steps:
        if isinstance(s, Native):
            yield s
        elif isinstance(s, Branch):
            for part in s.parts:
                for inner in part.variants.values():
                    yield from natives(inner)


def held_bytes(variants: Iterable[Iterable[object]]) -> int:
    """Bytes that these hold together, but for machine code; constants that they share count
    once."""
    codes = [s.code for steps in variants for s in natives(steps)]
    constants = {id(a): a.nbytes for c in codes for a in c.constants.arrays}
    return sum(c.own_bytes for c in codes) + sum(constants.values())
