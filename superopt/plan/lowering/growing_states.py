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
from superopt.te.expr.symbolic_int import extent
from superopt.te.expr.tensor import Tensor, TensorType, compute


@dataclass(frozen=True, slots=True)
class GrowingState:
    """input, output: their numbers; no input if the program does not read it. axis: that grows.
    length: of the input along it. capacity: the elements of the memory along it."""

    input: int | None
    output: int
    axis: int
    length: Dim
    capacity: Dim


@dataclass(slots=True)
class StateMemory:
    """The memory of a state as tensors: before the call, which the input is the first part of, and
    after it, which the output is."""

    state: GrowingState
    before: Tensor
    after: Tensor

    def new_parts(
        self, v: ir_graph.Value, given: ir_graph.Value | None
    ) -> Iterator[tuple[ir_graph.Value, Dim]]:
        """Yield the values that the output `v` adds to the input, each with its offset along the
        axis. Raises NotImplementedError if it is another function of the input."""
        s = self.state
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


def state_memories(
    g: ir_graph.Graph, states: Sequence[GrowingState]
) -> dict[ir_graph.Value, StateMemory]:
    """Return the memory of each input and output that is a state."""
    out: dict[ir_graph.Value, StateMemory] = {}
    for n, s in enumerate(states):
        v = g.outputs[s.output]
        shape = v.type.shape
        assert shape is not None
        assert v.type.dtype is not None
        if (
            v in out
            or ir_graph.producer(v) is None
            or not extent(shape[s.axis]) <= extent(s.capacity)
        ):  # a guard
            raise NotImplementedError("a state without memory of its own")
        whole = tuple(s.capacity if d == s.axis else size for d, size in enumerate(shape))
        before, after = (Tensor(f"{x}{n}", v.type.dtype, whole) for x in ("before", "after"))
        out[v] = made = StateMemory(s, before, after)
        if s.input is not None:
            out[g.inputs[s.input]] = made
    return out


def first_part(memory: Tensor, shape: Sequence[Dim]) -> Tensor:
    """Return the first elements of a memory."""
    return compute(shape, lambda *i: memory[i], name="state")


def grown_axis(before: TensorType, after: TensorType) -> int | None:
    """Return the only axis along which the sizes of two types differ; None if there is none."""
    if before.dtype != after.dtype or before.shape is None or after.shape is None:
        return None
    pairs = list(zip(before.shape, after.shape, strict=False))
    axes = [d for d, (a, b) in enumerate(pairs) if a != b]
    same_rank = len(before.shape) == len(after.shape)
    return axes[0] if same_rank and len(axes) == 1 else None
