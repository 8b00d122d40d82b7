"""Calls of a StatefulCall by the program of the last one, in the same memory of states, where only
lengths differ. They check and compute only what depends on lengths: states of equal shapes are one
of these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from superopt.compilation.frontend.input_arrays import InputPort, ShapePattern
from superopt.compilation.model.repeated_call import are_in_range, value_limits
from superopt.compilation.model.states.state_programs import CAPACITY

if TYPE_CHECKING:
    from superopt.compilation.model.size_classes import SizeClass
    from superopt.compilation.model.states.state_buffers import StateBuffer
    from superopt.compilation.model.states.state_programs import StatePrograms
    from superopt.compilation.model.steps import ModelBinding
    from superopt.plan.program.size_formulas import SizedProgram, SizeFormulas

_NDARRAY_TYPE = np.ndarray


@runtime_checkable
class SizedKernels(Protocol):
    """A whole model as kernels, whose arguments are the inputs and outputs of its binding."""

    @property
    def binding(self) -> ModelBinding | None: ...
    @property
    def output_dtypes(self) -> tuple[np.dtype, ...]: ...
    def call_kernels(self, arrays: Sequence[np.ndarray], known: SizedProgram) -> None:
        """Compute the outputs. arrays: the inputs, then the outputs; known: the values of the
        formulas."""


@dataclass(slots=True)
class StateGroup:
    """States that have one shape in all calls. output: the number of one of their outputs; axis:
    along which they grow, None if they do not; limit: of the length along it; shape: the present
    one."""

    buffers: list[StateBuffer]
    output: int
    axis: int | None
    limit: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class RepeatedStep:
    """The program of a call that keeps all states in place. given: names, types and places among
    the arguments of the other inputs, whose ports are `ports`; fresh: of the other outputs, names,
    places and numbers. capacity: elements of the memory along the axes of states. pattern: of the
    inputs, then of a state of each group. formulas: those of the kernels, with the guards of their
    class."""

    kernels: SizedKernels
    formulas: SizeFormulas
    programs: StatePrograms
    ports: Sequence[InputPort]
    given: tuple[tuple[str, np.dtype, tuple[int, ...]], ...]
    fresh: tuple[tuple[str, int, int], ...]
    groups: tuple[StateGroup, ...]
    capacity: int
    pattern: ShapePattern
    arguments: list[Any]

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the outputs that are not states, by name; None if a call must check its inputs or
        find another program."""
        if type(feeds) is not dict or len(feeds) != len(self.given):
            return None
        arrays, arguments, groups = [], [*self.arguments], self.groups
        for name, dtype, places in self.given:
            a = feeds.get(name)
            if type(a) is not _NDARRAY_TYPE or a.dtype is not dtype or not a.flags.c_contiguous:
                return None
            arrays.append(a)
            for n in places:
                arguments[n] = a
        key = self.pattern.sizes((*[a.shape for a in arrays], *[g.shape for g in groups]))
        if key is None or not are_in_range(arrays, value_limits(self.ports, dict(key))):
            return None
        kernels = self.kernels
        known = self.formulas.find({**dict(key), CAPACITY: self.capacity})
        if known is None:
            return None
        shapes, dtypes = known.output_shapes, kernels.output_dtypes
        for g in groups:
            if g.axis is not None and shapes[g.output][g.axis] > g.limit:
                return None
        out = {}
        for name, place, n in self.fresh:
            arguments[place] = out[name] = np.empty(shapes[n], dtypes[n])
        kernels.call_kernels(arguments, known)
        for g in groups:
            shape = g.shape = shapes[g.output]
            for buffer in g.buffers:
                buffer.advance_in_place(shape)
        return out


def repeated_step(
    own: SizeClass,
    programs: StatePrograms,
    ports: Sequence[InputPort],
    states: Mapping[str, StateBuffer],
    capacity: int,
    sizes: Mapping[str, int],
) -> RepeatedStep | None:
    """Return the program of a class that has run with this capacity, for further calls; None if it
    does not keep all states in place, or each call must check more. states: by output. sizes: that
    states must not exceed, by symbol."""
    kernels: object = own.whole_step
    if not isinstance(kernels, SizedKernels) or (binding := kernels.binding) is None:
        return None
    held = {s.port.name: s for s in states.values()}
    others = [p for p in ports if p.name not in held]
    fresh = [(x, n) for x, n in binding.output_numbers.items() if x not in states]
    every_output = sorted(binding.output_numbers.values()) == [*range(len(kernels.output_dtypes))]
    if not every_output or not states.keys() <= binding.state_axes.keys():
        return None
    if any(s.port.limits for s in held.values()):
        return None
    groups = _group_states(own.formulas, binding, states, capacity, sizes)
    pattern = ShapePattern.of_ports([*others, *(g.buffers[0].port for g in groups)])
    if pattern is None:
        return None
    first, dtypes = len(binding.input_numbers), {p.name: p.dtype for p in others}
    arguments: list[Any] = [None] * (first + len(kernels.output_dtypes))
    places: dict[str, list[int]] = {p.name: [] for p in others}
    for n, number in enumerate(binding.input_numbers):
        name = ports[number].name
        if name in held:
            arguments[n] = held[name].memory
        else:
            places[name].append(n)
    for output, buffer in states.items():
        arguments[first + binding.output_numbers[output]] = buffer.memory
    given = tuple((name, t, tuple(places[name])) for name, t in dtypes.items() if t is not None)
    return RepeatedStep(
        kernels, own.formulas, programs, others, given, tuple((x, first + n, n) for x, n in fresh),
        groups, capacity, pattern, arguments,
    )  # fmt: skip


def _group_states(
    formulas: SizeFormulas,
    binding: ModelBinding,
    states: Mapping[str, StateBuffer],
    capacity: int,
    sizes: Mapping[str, int],
) -> tuple[StateGroup, ...]:
    """Return the states by what makes their shapes equal in all calls."""
    found: dict[Any, StateGroup] = {}
    for output, buffer in states.items():
        number, axis = binding.output_numbers[output], binding.state_axes[output]
        assert buffer.array is not None
        dims, shape = buffer.port.shape or (), buffer.array.shape
        size = None if axis is None else dims[axis]
        limit = min(capacity, sizes.get(size, capacity)) if isinstance(size, str) else capacity
        key = dims, shape, axis, formulas.output_shapes[number]
        made = found.setdefault(key, StateGroup([], number, axis, limit, shape))
        made.buffers.append(buffer)
    return tuple(found.values())
