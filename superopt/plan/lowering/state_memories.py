"""The memory of states as tensors: of outputs that are in the memory of inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from superopt.ir import graph as ir_graph
from superopt.plan.lowering.growing_states import GrowingState
from superopt.plan.lowering.updated_states import UpdatedState, is_updated_in_place
from superopt.te.expr.node import Dim
from superopt.te.expr.symbolic_int import extent
from superopt.te.expr.tensor import Tensor, compute

State = GrowingState | UpdatedState


@dataclass(slots=True)
class StateMemory:
    """The memory of a state as tensors: before the call, which the input is the first part of, and
    after it, which the output is."""

    state: State
    before: Tensor
    after: Tensor


def state_memories(g: ir_graph.Graph, states: Sequence[State]) -> dict[ir_graph.Value, StateMemory]:
    """Return the memory of each input and output that is a state. Raises NotImplementedError if one
    cannot be in the memory of its input."""
    out: dict[ir_graph.Value, StateMemory] = {}
    for n, s in enumerate(states):
        v = g.outputs[s.output]
        assert v.type.dtype is not None
        if v in out or ir_graph.producer(v) is None:
            raise NotImplementedError("a state without memory of its own")
        whole = _memory_shape(g, s, v)
        before, after = (Tensor(f"{x}{n}", v.type.dtype, whole) for x in ("before", "after"))
        out[v] = made = StateMemory(s, before, after)
        if s.input is not None:
            out[g.inputs[s.input]] = made
    return out


def _memory_shape(g: ir_graph.Graph, s: State, v: ir_graph.Value) -> tuple[Dim, ...]:
    shape = v.type.shape
    assert shape is not None
    if isinstance(s, UpdatedState):
        if not is_updated_in_place(g, g.inputs[s.input], v):
            raise NotImplementedError("a state that is read after it was written")
        return shape
    if not extent(shape[s.axis]) <= extent(s.capacity):  # a guard
        raise NotImplementedError("a state without memory of its own")
    return tuple(s.capacity if d == s.axis else size for d, size in enumerate(shape))


def first_part(memory: Tensor, shape: Sequence[Dim]) -> Tensor:
    """Return the first elements of a memory."""
    return compute(shape, lambda *i: memory[i], name="state")
