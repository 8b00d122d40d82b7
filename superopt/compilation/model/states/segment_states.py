"""The states of a segment: outputs that are in the memory of inputs, by the names of the model's
outputs and inputs (plan/lowering/state_memories.py)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from superopt.compilation.frontend.value_limits import is_checked
from superopt.compilation.model.states.state_programs import CAPACITY, StateNames
from superopt.ir import graph
from superopt.plan.lowering.growing_states import GrowingState, added_values, grown_axis
from superopt.plan.lowering.state_memories import State
from superopt.plan.lowering.updated_states import (
    CacheWrite,
    UpdatedState,
    is_updated_in_place,
    match_cache_write,
)
from superopt.te.expr.node import Size
from superopt.te.expr.symbolic_int import example_sizes

if TYPE_CHECKING:
    from superopt.compilation.model.compiler import Compiler
    from superopt.compilation.model.steps import ModelBinding
    from superopt.plan.graph.partition import Segment


def with_states(c: Compiler, names: StateNames) -> Compiler:
    """Return the compiler of programs that keep these states in place."""
    return replace(c, states=names, sized_compilers={}, plan_cache={})


def segment_states(c: Compiler, s: Segment) -> tuple[State, ...]:
    """Return the states of a segment that is the whole model. Raises NotImplementedError if none is
    written in place."""
    if not c.states:
        return ()
    binding = c.model_binding(s)
    if binding is None or CAPACITY not in example_sizes():
        raise NotImplementedError("states of a part of a model, or of a program for fixed sizes")
    found = tuple(_states_in_place(c, binding))
    if not found:
        raise NotImplementedError("no state is its input and more elements")
    return found


def state_writes(c: Compiler) -> Collection[graph.Node]:
    """Return the nodes that are not computed, because states are written in place."""
    if not c.states:
        return ()
    key = "state writes"
    if key not in c.plan_cache:
        written: set[graph.Node | None] = set()
        for output, name in c.states:
            v = _output(c, output)
            write = _write_in_place(c, _input(c, name), v)
            if write is not None:
                written |= {graph.producer(x) for x in (v, *write.between)}
        c.plan_cache[key] = written
    found: Collection[graph.Node] = c.plan_cache[key]
    return found


def bind_states(c: Compiler, s: Segment) -> ModelBinding | None:
    """Return how a segment gives the model's outputs, with the axes along which states grow."""
    binding = c.model_binding(s)
    if binding is None or not c.states:
        return binding
    by_number = {
        x.output: x.axis if isinstance(x, GrowingState) else None
        for x in _states_in_place(c, binding)
    }
    axes = {name: by_number[n] for name, n in binding.output_numbers.items() if n in by_number}
    return replace(binding, state_axes=axes)


def _states_in_place(c: Compiler, binding: ModelBinding) -> Iterator[State]:
    g, takes = c.model.graph, binding.input_numbers
    for output, name in c.states:
        given, v = _input(c, name), _output(c, output)
        number = g.inputs.index(given)
        place = takes.index(number) if number in takes else None
        if place is not None and _write_in_place(c, given, v) is not None:
            yield UpdatedState(place, binding.output_numbers[output])
            continue
        axis = grown_axis(given.type, v.type)
        if axis is None:
            continue
        assert given.type.shape is not None
        if given.type.shape[axis] == 0:  # the graph does not show what else follows from the input
            if not _is_extended_in_file(c, output, name):
                continue
        elif not added_values(v, given, axis):
            continue
        length = given.type.shape[axis]
        yield GrowingState(place, binding.output_numbers[output], axis, length, Size(CAPACITY))


def _write_in_place(c: Compiler, given: graph.Value, v: graph.Value) -> CacheWrite | None:
    """Return how an output is an input with new elements, if these alone can be written, at
    positions that are checked before a call."""
    write = match_cache_write(v)
    if write is None or not is_updated_in_place(c.model.graph, given, v):
        return None
    return write if write.positions is None or is_checked(write.positions) else None


def _input(c: Compiler, name: str) -> graph.Input:
    return next(i for i in c.model.graph.inputs if i.name == name)


def _output(c: Compiler, name: str) -> graph.Value:
    return c.model.graph.outputs[c.output_names().index(name)]


def _is_extended_in_file(c: Compiler, output: str, name: str) -> bool:
    """True if the file's node that computes an output reads this input: a Concat as its first one,
    an attention as its past."""
    values = {v.name: v for v in c.model.source.model.graph.outputs}
    n = values[output].producer()
    while n is not None and n.op_type == "Identity" and n.inputs[0] is not None:
        n = n.inputs[0].producer()
    if n is None or (n.op_type != "Concat" and not n.op_type.endswith("Attention")):
        return False
    read = n.inputs[:1] if n.op_type == "Concat" else n.inputs
    return any(v is not None and v.name == name for v in read)
