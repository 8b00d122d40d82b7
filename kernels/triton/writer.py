"""The state of a function's Triton text: names, lines, and the current tile with its block."""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from superopt.kernels.loops.tile import Limits
from superopt.kernels.triton.functions import HELPERS
from superopt.te.expr.node import Axis
from superopt.te.expr.symbolic_int import ceil_power_of_two
from superopt.te.expr.tensor import Tensor

# An opaque 0. For small quotients LLVM emits 16-bit operations, two per register with one undefined
# half; ptxas 12.8 then drops what is added to the other.
ZERO_NAME = "zero"
MAX_BLOCK_ELEMENTS = 1 << 20  # Triton's limit


@dataclass(frozen=True, slots=True)
class Block:
    """A text, and the axes of the tile that it depends on."""

    text: str
    axes: frozenset[Axis] = frozenset()


@dataclass(slots=True)
class Writer:
    """The state of a function's text: names, body lines, and the current tile.

    registers: buffers that are variables; zeroed: those that only hold loads, which are 0 beyond
    extents. read_and_stored: buffers that a program stores to and reads. dot_precision,
    interpreted: see codegen.triton_text. known_loads: of a tile in this loop, since memory or their
    index was written; hoisted: loads before the first loop, by address; stored: buffers that the
    kernel writes.
    """

    registers: frozenset[Tensor]
    read_and_stored: frozenset[Tensor]
    dot_precision: str = "ieee"
    interpreted: bool = False
    limits: Limits = ()  # of the current statement
    sizes: dict[str, str] = field(default_factory=dict)  # parameters of symbolic sizes, by name
    names: dict[object, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=lambda: {"tl", "triton", "pid", ZERO_NAME, *HELPERS})
    ranges: dict[Axis, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    tile: tuple[Axis, ...] = ()
    known_loads: dict[tuple[tuple[Axis, ...], str], str] = field(default_factory=dict)
    hoisted: dict[tuple[str, str, tuple[Axis, ...]], Block] = field(default_factory=dict)
    stored: frozenset[Tensor] = frozenset()
    loads: int = 0
    zeroed: frozenset[Tensor] = frozenset()
    div_mod_depth: int = 0  # inside of which an index is printed

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def fresh(self, stem: str) -> str:
        """Return an unused Python name."""
        stem = re.sub(r"\W", "_", stem)
        stem = f"_{stem}" if stem[:1].isdigit() or keyword.iskeyword(stem) or not stem else stem
        name, n = stem, 1
        while name in self.taken:
            n += 1
            name = f"{stem}_{n}"
        self.taken.add(name)
        return name

    def buffer(self, t: Tensor) -> str:
        if t not in self.names:
            self.names[t] = self.fresh(t.name)
        return self.names[t]

    def size(self, name: str) -> str:
        """Return the parameter that has a symbolic size."""
        if name not in self.sizes:
            self.sizes[name] = self.fresh(f"size_{name}")
        return self.sizes[name]

    def begin_tile(self, axes: Sequence[Axis]) -> None:
        """Begin a tile over these axes. Raises NotImplementedError if its block is too large."""
        self.tile = non_unit_axes(axes)
        size = math.prod(block_shape(self.tile))
        if size > MAX_BLOCK_ELEMENTS:
            raise NotImplementedError(
                f"a block of {size} elements over {', '.join(a.name for a in self.tile)}: Triton's "
                f"have at most {MAX_BLOCK_ELEMENTS}; split an axis"
            )


def non_unit_axes(axes: Sequence[Axis]) -> tuple[Axis, ...]:
    """Return the axes of more than one step."""
    return tuple(a for a in axes if a.extent != 1)


def padded_extent(a: Axis) -> int:
    """Return the least power of two that is at least the extent; see `ceil_power_of_two`."""
    return ceil_power_of_two(a.size)


def block_shape(axes: Sequence[Axis]) -> tuple[int, ...]:
    return tuple(map(padded_extent, axes))
