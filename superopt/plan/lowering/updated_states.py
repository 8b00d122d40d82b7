"""Outputs that are inputs with new elements at positions that the call is given, in the memory of
these inputs: caches of a fixed capacity (`Executable.bind_state`).

    present = TensorScatter(past, new, start)    =>    memory[start : start + n] = new

Only the new elements are written. That is right if nothing else reads the input: all other readers
of the cache read the output, after it was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from superopt.ir import graph as ir_graph
from superopt.te.expr import index as te_index
from superopt.te.expr.dtype import I64
from superopt.te.expr.node import Dim, Expr
from superopt.te.expr.tensor import Tensor, apply, cast, gather


@dataclass(frozen=True, slots=True)
class UpdatedState:
    """A state that is written at positions. input, output: their numbers."""

    input: int
    output: int


@dataclass(frozen=True, slots=True)
class CacheWrite:
    """A value that is `past` with `new` written along an axis. positions: of the elements, or of
    the first one of each batch element (`is_start`); None: from 0 on. is_circular: positions
    continue at the start of the axis."""

    past: ir_graph.Value
    new: ir_graph.Value
    positions: ir_graph.Value | None
    axis: int
    is_start: bool = True
    is_circular: bool = False

    def placement(self, positions: Tensor, size: Dim) -> Placement:
        """Return where new elements are stored. size: of the axis."""
        return Placement(self.axis, positions, size, self.is_start, self.is_circular)


def match_cache_write(v: ir_graph.Value) -> CacheWrite | None:
    """Return how a value is written into another one; None if it is not."""
    n = ir_graph.producer(v)
    if n is None or n.op.name != "TensorScatter" or n.op.domain:
        return None
    past, new, *rest = n.inputs
    axis = n.attr("axis")
    assert past is not None
    assert new is not None
    assert isinstance(axis, int)
    positions = rest[0] if rest else None
    return CacheWrite(past, new, positions, axis, is_circular=n.attr("mode") == "circular")


def is_updated_in_place(g: ir_graph.Graph, given: ir_graph.Value, v: ir_graph.Value) -> bool:
    """True if an output is an input with new elements, and nothing else reads the input."""
    write = match_cache_write(v)
    return (
        write is not None
        and write.past is given
        and given.type == v.type
        and given not in g.outputs
        and g.outputs.count(v) == 1
        and len(ir_graph.users(g).get(given, ())) == 1
    )


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the elements of a tensor are stored along an axis of a memory with `size` elements
    there: see CacheWrite."""

    axis: int
    positions: Tensor
    size: Dim
    is_start: bool
    is_circular: bool

    def place(self, index: Sequence[Expr], positions: Tensor) -> Expr:
        """Return the index along the axis of the element that has an index in the tensor.
        positions: the buffer that has them."""
        if not self.is_start:
            raise NotImplementedError("positions of elements")
        at = cast(positions[index[0]], I64) + cast(te_index.as_index(index[self.axis]), I64)
        if self.is_circular:
            at = apply("mod", at, cast(te_index.as_index(self.size), I64))
        return gather(at, self.size)
