"""Outputs that are inputs with new elements at positions that the call is given, in the memory of
these inputs: caches of a fixed capacity (`Executable.bind_state`).

    present = TensorScatter(past, new, start)    =>    memory[start : start + n] = new
    present = ScatterND(past, positions, new)    =>    memory[positions[i]] = new[i]

Only the new elements are written. That is right if nothing else reads the input: all other readers
of the cache read the output, after it was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from superopt.ir import graph as ir_graph
from superopt.ir.node_attributes import node_attributes
from superopt.ir.op import Op, Payload
from superopt.ir.substitute import replace_all
from superopt.te.expr import index as te_index
from superopt.te.expr.dtype import I64
from superopt.te.expr.node import Dim, Expr
from superopt.te.expr.tensor import Tensor, apply, cast, gather

CACHE_WRITE_OP = Op("CacheWrite", None, domain=None)  # of past, new and positions


@dataclass(frozen=True, slots=True)
class UpdatedState:
    """A state that is written at positions. input, output: their numbers."""

    input: int
    output: int


@dataclass(frozen=True, slots=True)
class CacheWrite:
    """A value that is `past` with `new` written along an axis.

    positions: of the first element of each batch element, and None from 0 on; or with
    `element_axis` that of each element, which are along this axis of the positions. is_circular:
    positions continue at the start of the axis. between: values that only the write may read.
    """

    past: ir_graph.Value
    new: ir_graph.Value
    positions: ir_graph.Value | None
    axis: int
    element_axis: int | None = None
    is_circular: bool = False
    between: tuple[ir_graph.Value, ...] = ()

    def placement(self, positions: Tensor, size: Dim) -> Placement:
        """Return where new elements are stored. size: of the axis."""
        return Placement(self.axis, positions, size, self.element_axis, self.is_circular)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the elements of a tensor are stored along an axis of a memory with `size` elements
    there: see CacheWrite."""

    axis: int
    positions: Tensor
    size: Dim
    element_axis: int | None
    is_circular: bool

    def place(self, index: Sequence[Expr], positions: Tensor) -> Expr:
        """Return the index along the axis of the element that has an index in the tensor.
        positions: the buffer that has them."""
        own, zero = te_index.as_index(index[self.axis]), te_index.as_index(0)
        if self.element_axis is None:
            at = cast(positions[index[0]], I64) + cast(own, I64)
        else:
            each = (own if d == self.element_axis else zero for d in range(positions.rank))
            at = cast(positions[tuple(each)], I64)
        if self.is_circular:
            at = apply("mod", at, cast(te_index.as_index(self.size), I64))
        return gather(at, self.size)


def match_cache_write(v: ir_graph.Value) -> CacheWrite | None:
    """Return how a value is written into another one; None if it is not."""
    n = ir_graph.producer(v)
    if n is None:
        return None
    if n.op is CACHE_WRITE_OP:
        payload = n.attr("payload")
        assert isinstance(payload, Payload)
        assert isinstance(payload.content, CacheWrite)
        past, new, positions = n.inputs
        assert past is not None
        assert new is not None
        return CacheWrite(past, new, positions, payload.content.axis, payload.content.element_axis)
    if n.op.name == "TensorScatter" and not n.op.domain:
        past, new, *rest = n.inputs
        axis = n.attr("axis")
        assert past is not None
        assert new is not None
        assert isinstance(axis, int)
        is_circular = n.attr("mode") == "circular"
        return CacheWrite(past, new, rest[0] if rest else None, axis, is_circular=is_circular)
    return _match_scatter(n)


def _match_scatter(n: ir_graph.Node) -> CacheWrite | None:
    """Return how a ScatterND of rows or a ScatterElements of positions writes; perhaps with axes in
    another order, between two Transposes."""
    after = n if n.op.name == "Transpose" else None
    scatter = n if after is None else ir_graph.producer(n.inputs[0]) if n.inputs[0] else None
    if scatter is None or scatter.op.title not in ("ScatterND", "ScatterElements"):
        return None
    if node_attributes(scatter).get("reduction", "none") not in ("none", b"none"):
        return None
    data, indices, updates = scatter.inputs
    assert data is not None
    assert indices is not None
    assert updates is not None
    found = _written_axis(scatter, indices, updates)
    if found is None or data.type.shape is None:
        return None
    axis, positions, element_axis = found
    if after is None:
        return CacheWrite(data, updates, positions, axis, element_axis)
    before = ir_graph.producer(data)
    if before is None or before.op.name != "Transpose" or before.inputs[0] is None:
        return None
    order, back = (_permutation(x) for x in (before, after))
    if [order[d] for d in back] != list(range(len(order))):
        return None
    new = ir_graph.node(after.op, [updates], perm=back)
    between = data, ir_graph.result(scatter, 0)
    return CacheWrite(before.inputs[0], new, positions, order[axis], element_axis, between=between)


def _permutation(n: ir_graph.Node) -> tuple[int, ...]:
    perm = n.attr("perm")
    assert isinstance(perm, tuple)
    return tuple(d for d in perm if isinstance(d, int))


def _written_axis(
    n: ir_graph.Node, indices: ir_graph.Value, updates: ir_graph.Value
) -> tuple[int, ir_graph.Value, int] | None:
    """Return the axis along which a scatter has one position for all elements there, these
    positions, and their axis of it; None for other scatters."""
    shape, (data, *_) = indices.type.shape, n.inputs
    assert data is not None
    whole, given = data.type.shape, updates.type.shape
    if shape is None or whole is None or given is None:
        return None
    if n.op.title == "ScatterND":
        is_rows = len(shape) == 2 and shape[1] == 1 and given == (shape[0], *whole[1:])
        return (0, indices, 0) if is_rows else None
    axis = node_attributes(n).get("axis", 0) % len(whole)
    expanded = ir_graph.producer(indices)
    positions = expanded.inputs[0] if expanded is not None else None
    if expanded is None or expanded.op.name != "Expand" or positions is None:
        return None
    own = tuple(size if d == axis else 1 for d, size in enumerate(given))
    first = len(own) - len(positions.type.shape or ())  # Expand adds axes before the others
    if shape != given or first > axis or positions.type.shape != own[first:]:
        return None
    is_rows = all(n == given[d] for d, n in enumerate(whole) if d != axis)
    return (axis, positions, axis - first) if is_rows else None


def is_updated_in_place(g: ir_graph.Graph, given: ir_graph.Value, v: ir_graph.Value) -> bool:
    """True if an output is an input with new elements, and nothing else reads the input."""
    write = match_cache_write(v)
    if write is None or write.past is not given or given.type != v.type:
        return False
    readers = {
        x: [n for n in some if n.op.name != "Shape"] for x, some in ir_graph.users(g).items()
    }
    is_only = all(len(readers.get(x, ())) == 1 for x in (given, *write.between))
    return is_only and g.outputs.count(v) == 1 and not {given, *write.between} & {*g.outputs}


def replace_scatters(g: ir_graph.Graph, states: Sequence[UpdatedState]) -> ir_graph.Graph:
    """Return the graph with cache writes in place of scatters that give states."""
    change: dict[ir_graph.Value, ir_graph.Value] = {}
    for s in states:
        v = g.outputs[s.output]
        write, n = match_cache_write(v), ir_graph.producer(v)
        if write is None or n is None or n.op.name == "TensorScatter":
            continue
        operands = write.past, write.new, write.positions
        change[v] = ir_graph.opaque_node(CACHE_WRITE_OP, operands, Payload(write), [v.type])
    return replace_all(g, change) if change else g
