"""Outputs that are inputs with more elements along one axis, in the memory of these inputs: the
caches of a decoder (`Executable.bind_state`).

    present = Concat(past, new)    =>    memory[past : past + n] = new; present = memory[: past + n]

The memory has `capacity` elements along the axis, so that elements stay where they are while the
state grows. It is the argument of both the input and the output.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from superopt.ir import graph as ir_graph
from superopt.te.expr import index
from superopt.te.expr.node import Dim
from superopt.te.expr.tensor import TensorType


@dataclass(frozen=True, slots=True)
class GrowingState:
    """input, output: their numbers; no input if the program does not read it. axis: that grows.
    length: of the input along it. capacity: the elements of the memory along it."""

    input: int | None
    output: int
    axis: int
    length: Dim
    capacity: Dim


def new_parts(
    s: GrowingState, v: ir_graph.Value, given: ir_graph.Value | None
) -> Iterator[tuple[ir_graph.Value, Dim]]:
    """Yield the values that the output `v` adds to the input, each with its offset along the axis.
    Raises NotImplementedError if it is another function of the input."""
    if s.length == 0:
        yield v, 0
        return
    added = added_values(v, given, s.axis)
    if not added:
        raise NotImplementedError("a state that is not its input and more elements")
    begin = s.length
    for more in added:
        assert more is not None
        assert more.type.shape is not None
        yield more, begin
        begin = index.dim(index.as_index(begin) + more.type.shape[s.axis])


def added_values(
    v: ir_graph.Value, given: ir_graph.Value | None, axis: int
) -> Sequence[ir_graph.Value | None]:
    """Return the values that follow an input along an axis in a value; none if that is another
    function of the input."""
    n = ir_graph.producer(v)
    while n is not None and n.op.name == "Identity":
        n = ir_graph.producer(n.inputs[0]) if n.inputs[0] is not None else None
    is_concat = n is not None and n.op.name == "Concat" and not n.op.domain
    if n is None or not is_concat or n.inputs[0] is not given or n.attr("axis") != axis:
        return ()
    return n.inputs[1:]


def grown_axis(before: TensorType, after: TensorType) -> int | None:
    """Return the only axis along which the sizes of two types differ; None if there is none."""
    if before.dtype != after.dtype or before.shape is None or after.shape is None:
        return None
    pairs = list(zip(before.shape, after.shape, strict=False))
    axes = [d for d, (a, b) in enumerate(pairs) if a != b]
    same_rank = len(before.shape) == len(after.shape)
    return axes[0] if same_rank and len(axes) == 1 else None
