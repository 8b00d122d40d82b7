"""The states of a segment: outputs that are in the memory of inputs, by the names of the model's
outputs and inputs (plan/lowering/state_memories.py)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from superopt.compilation.frontend.value_limits import is_checked
from superopt.compilation.model.states.state_programs import CAPACITY, StateNames
from superopt.plan.lowering.growing_states import GrowingState, added_values, grown_axis
from superopt.plan.lowering.state_memories import State
from superopt.plan.lowering.updated_states import (
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
    numbers = {i.name: n for n, i in enumerate(g.inputs)}
    outputs = dict(zip(c.output_names(), g.outputs, strict=True))
    for output, name in c.states:
        given = g.inputs[numbers[name]]
        if is_updated_in_place(g, given, outputs[output]):
            write = match_cache_write(outputs[output])
            is_safe = write is not None and (write.positions is None or is_checked(write.positions))
            if is_safe and numbers[name] in takes:
                number = takes.index(numbers[name])
                yield UpdatedState(number, binding.output_numbers[output])
            continue
        axis = grown_axis(given.type, outputs[output].type)
        if axis is None:
            continue
        assert given.type.shape is not None
        if given.type.shape[axis] == 0:  # the graph does not show what else follows from the input
            if not _is_extended_in_file(c, output, name):
                continue
        elif not added_values(outputs[output], given, axis):
            continue
        number = takes.index(numbers[name]) if numbers[name] in takes else None
        length = given.type.shape[axis]
        yield GrowingState(number, binding.output_numbers[output], axis, length, Size(CAPACITY))


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
