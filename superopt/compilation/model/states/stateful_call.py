"""Calls that keep state: outputs of a call are inputs of the next (`Executable.bind_state`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from superopt.compilation.frontend.input_arrays import (
    InputPort,
    as_input_array,
    check_values,
    sorted_sizes,
    symbolic_dims,
)
from superopt.compilation.model.onnxruntime_calls import onnxruntime_fallback
from superopt.compilation.model.size_classes import bind_size_class
from superopt.compilation.model.states.repeated_step import RepeatedStep, repeated_step
from superopt.compilation.model.states.state_buffers import BUFFER_GROWTH, StateBuffer
from superopt.compilation.model.states.state_programs import (
    CAPACITY,
    StatePrograms,
    state_programs,
    submit_state_class,
)
from superopt.errors import UsageError
from superopt.loading.given_sizes import SizeNames, as_integer

if TYPE_CHECKING:
    from superopt.compilation.model.executable import Executable
    from superopt.compilation.model.steps import KernelStep
    from superopt.compilation.runtime.output_buffers import ArraySpec

MIN_CAPACITY = 64  # elements along the axis that grows, of memory in which states grow
EXAMPLE_GROWTH = 4  # times the sizes of a call, for the capacity at which a class is compiled


@dataclass(slots=True, weakref_slot=True, eq=False, repr=False)
class StatefulCall:
    """Calls of a compiled model that keep some outputs as inputs of the next call, in memory of
    their own. One thread at a time may use it; several may use one executable.

    states: by the name of the output. sizes: symbolic sizes of states that no input has. capacity:
    the greatest length of a state along the axis that grows; None: no limit.
    """

    executable: Executable
    states: dict[str, StateBuffer]
    sizes: Mapping[str, int]
    capacity: int | None
    reserved: int = 0  # elements along the axis, of memory in which states grow
    repeated: RepeatedStep | None = None  # the program of the last call, with all states in place

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs that are not states, by name. feeds: the inputs that are not states.

        If it raises an error, the state is as before. Raises UsageError if inputs do not fit, and
        if a state would be longer than the capacity.
        """
        repeated = self._repeated_step()
        if repeated is not None and (out := repeated.run(feeds)) is not None:
            return out
        self.repeated = None
        return self._run_checked(feeds)

    def _repeated_step(self) -> RepeatedStep | None:
        """Return the program of the last call; None if it is not in use any more."""
        exe, last = self.executable, self.repeated
        if last is None or exe.is_closed:
            return None
        programs = exe.state_programs.get(last.programs.names)
        return last if programs is last.programs and programs.classes.classes else None

    def _run_checked(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        exe = self.executable
        held = {s.port.name: s for s in self.states.values()}
        for name in held:
            if name in feeds:
                raise UsageError(f"input {name!r} is a state", "the call keeps it", "remove it")
        ports = [p for p in exe.input_ports if p.name not in held]
        given = dict(zip((p.name for p in ports), exe.input_arrays(feeds, ports), strict=True))
        kept = {name: s.array for name, s in held.items() if s.array is not None}
        given |= kept or self._first_states(feeds)
        arrays = [given[p.name] for p in exe.input_ports]
        sizes = exe.infer_sizes(arrays)
        check_values(exe.input_ports, arrays, sizes)
        if exe.may_branch and not exe.size_classes.classes:  # no program keeps states in place
            return self._run_elsewhere(given, is_in_place=False)
        with exe.exclusive():
            programs = state_programs(exe, tuple(self._names()))
            step = self._step_in_place(programs, given, sizes)
        if step is not None:
            out = self._run_step(step, given)
            own = programs.classes.find({**sizes, CAPACITY: self.reserved})
            if own is not None:
                self.repeated = repeated_step(
                    own, programs, exe.input_ports, self.states, self.reserved, self.sizes
                )
            return out
        given |= {name: np.ascontiguousarray(given[name]) for name in held}
        if not programs.classes.is_supported and self._is_compiled_in_call(sizes):
            with exe.exclusive():
                step = exe.runnable(sizes).bound_step
            if not kept:
                self._compile_one_token(sizes)
            if step is not None and step.named_output_specs() is not None:
                return self._run_step(step, given)
        return self._run_elsewhere(given, is_in_place=programs.classes.is_supported)

    def reset(self, state: Mapping[str, np.ndarray] | None = None) -> None:
        """Begin again: with empty states, or with copies of these arrays, by names of inputs."""
        known = {s.port.name: s for s in self.states.values()}
        if state is not None and state.keys() != known.keys():
            raise UsageError(
                f"states were given for {', '.join(state) or 'nothing'}",
                f"the states are {', '.join(known)}",
                "pass all of them, or none",
            )
        arrays = {name: as_input_array(known[name].port, x) for name, x in (state or {}).items()}
        self.repeated = None
        for name, held in known.items():
            held.array = None if state is None else np.array(arrays[name])

    @property
    def state(self) -> dict[str, np.ndarray]:
        """The states, by names of inputs; empty before the first call. Calls write over them."""
        return {s.port.name: s.array for s in self.states.values() if s.array is not None}

    def _first_states(self, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return states before the first call: zeros, of length 0 along symbolic axes whose size no
        input has."""
        known = dict(self.sizes)
        for port in self.executable.input_ports:
            shape = np.shape(feeds[port.name]) if port.name in feeds else ()
            for d, n in zip(port.shape or (), shape, strict=False):
                if isinstance(d, str):
                    known.setdefault(d, n)
        return {
            s.port.name: np.zeros(
                [d if isinstance(d, int) else known.get(d, 0) for d in s.port.shape or ()],
                s.port.dtype,
            )
            for s in self.states.values()
        }

    def _is_compiled_in_call(self, sizes: Mapping[str, int]) -> bool:
        """True if there is a program for these sizes, or this call has to compile it."""
        exe, key = self.executable, sorted_sizes(sizes)
        if key in exe.variants or bind_size_class(exe, key):
            return True
        return exe.shape_policy.compiles_in_call(key, bool(exe.variants))

    def _compile_one_token(self, sizes: Mapping[str, int]) -> None:
        """Compile for the calls after the first one, if states have a fixed capacity: the size that
        no state has, the number of tokens, is 1."""
        exe = self.executable
        held = {d for s in self.states.values() for d in s.port.shape or ()}
        then = {name: n if name in held else 1 for name, n in sizes.items()}
        key = sorted_sizes(then)
        if exe.shape_policy.specialize != "never":
            with exe.exclusive():
                if key not in exe.variants and not bind_size_class(exe, key):
                    exe.runnable(then)

    def _names(self) -> Iterator[tuple[str, str]]:
        """Yield the names of the outputs and inputs that are states."""
        return ((output, s.port.name) for output, s in sorted(self.states.items()))

    def _step_in_place(
        self, programs: StatePrograms, given: Mapping[str, np.ndarray], sizes: Mapping[str, int]
    ) -> KernelStep | None:
        """Return the program that keeps states in place at these sizes, with memory for them; None
        if there is none. The first call compiles it, others let it be compiled."""
        exe, classes = self.executable, programs.classes
        if not classes.is_supported:
            return None
        step = programs.find({**sizes, CAPACITY: self.reserved}) if self.reserved else None
        reserved = self.reserved if step is not None else 0
        if step is None:
            longest = max((*sizes.values(), MIN_CAPACITY))
            example = {**sizes, CAPACITY: EXAMPLE_GROWTH * longest}
            step = programs.find(example)
            if step is None and self._compiles(programs) and programs.compile(exe, example):
                step = programs.find(example)
            elif step is None and classes.classes and exe.shape_policy.specialize != "never":
                submit_state_class(exe, programs, example)
        if step is None or step.binding is None:
            return None
        specs, axes = step.named_output_specs() or {}, step.binding.state_axes
        self._check_lengths(given, specs)
        growing = (specs[output][0][axis] for output, axis in axes.items() if axis is not None)
        if (needed := max(growing, default=1)) > self.reserved:
            self.reserved = self.capacity or max(int(BUFFER_GROWTH * needed), MIN_CAPACITY)
        for output, axis in axes.items():
            held = self.states[output]
            held.reserve(given[held.port.name], axis, self.reserved)
        if self.reserved == reserved:
            return step
        return programs.find({**sizes, CAPACITY: self.reserved})

    def _compiles(self, programs: StatePrograms) -> bool:
        """True if a call compiles a program for new sizes."""
        exe = self.executable
        return not programs.classes.classes or (
            exe.shape_policy.specialize == "background" and onnxruntime_fallback(exe) is None
        )

    def _run_step(self, step: KernelStep, given: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Run a program that is the whole model. given: the inputs by name."""
        assert step.binding is not None
        specs, axes = step.named_output_specs() or {}, step.binding.state_axes
        # those of states in place were checked before memory was reserved
        is_checked = axes.keys() >= self.states.keys()
        lengths = {} if is_checked else self._check_lengths(given, specs)
        inputs, written = dict(given), {}
        for output, held in self.states.items():
            if output in axes:
                assert held.memory is not None
                inputs[held.port.name] = written[output] = held.memory
                continue
            growth = BUFFER_GROWTH
            if self.capacity is not None and lengths[output]:
                growth = self.capacity / lengths[output]
            written[output] = held.next_array(*specs[output], growth)
        others = {n: np.empty(*spec) for n, spec in specs.items() if n not in written}
        arrays = [inputs[p.name] for p in self.executable.input_ports]
        _, run = step.bind(arrays, {**written, **others})
        run()
        for output, held in self.states.items():
            if output in axes:
                held.advance_in_place(specs[output][0])
            else:
                held.advance(written[output])
        return others

    def _check_lengths(
        self, given: Mapping[str, np.ndarray], specs: Mapping[str, ArraySpec]
    ) -> dict[str, int]:
        """Return the lengths of states that grow, 0 for others. Raises UsageError if one would be
        longer than the capacity, or is no input of the next call."""
        out = {}
        for name, held in self.states.items():
            shape, dtype = specs[name]
            _check_state(name, held.port, shape, dtype)
            length = out[name] = _grown_length(given[held.port.name].shape, shape)
            capacity = self.capacity or self._given_size(held.port, shape)
            if capacity is not None and length > capacity:
                raise UsageError(
                    f"state {held.port.name!r} would have the length {length}",
                    f"its capacity is {capacity}",
                    "call reset, or bind with a larger capacity",
                )
        return out

    def _given_size(self, port: InputPort, shape: tuple[int, ...]) -> int | None:
        """Return the size that was given for an axis along which a state would now be longer."""
        pairs = zip(port.shape or (), shape, strict=False)
        known = ((self.sizes[d], n) for d, n in pairs if isinstance(d, str) and d in self.sizes)
        return next((own for own, n in known if n > own), None)

    def _run_elsewhere(self, given: Mapping[str, Any], *, is_in_place: bool) -> dict[str, Any]:
        """Run what is not kernels alone; the states are copied. is_in_place: programs at other
        sizes keep states in place, so that none is compiled that does not."""
        exe = self.executable
        with exe.exclusive():
            whole = onnxruntime_fallback(exe) if is_in_place else None
        ordered = [given[p.name] for p in exe.input_ports]
        out = exe.run(given) if whole is None else whole.call(ordered)
        found = {n: np.asarray(exe.device.to_host(out[n])) for n in self.states}
        self._check_lengths(given, {n: (x.shape, x.dtype) for n, x in found.items()})
        for name, x in found.items():
            made = self.states[name].next_array(x.shape, x.dtype)
            made[...] = x
            self.states[name].advance(made)
        return {n: x for n, x in out.items() if n not in self.states}


def _check_state(output: str, port: InputPort, shape: tuple[int, ...], dtype: np.dtype) -> None:
    """Raise UsageError if an output cannot be the next value of an input."""
    dims = port.shape or ()
    fixed = all(n == d for n, d in zip(shape, dims, strict=False) if isinstance(d, int))
    if dtype != port.dtype or len(shape) != len(dims) or not fixed:
        raise UsageError(
            f"output {output!r} is {dtype}{list(shape)}",
            f"it is bound as the state {port.name!r}, which is {port.type_text}",
            "bind the output that continues this input",
        )


def _grown_length(before: tuple[int, ...], after: tuple[int, ...]) -> int:
    """Return the new length along the axis that has grown; 0 if none has."""
    return next((n for m, n in zip(before, after, strict=True) if n > m), 0)


def bind_state(
    exe: Executable, state: Mapping[str, str], sizes: Mapping[str, int], capacity: int | None
) -> StatefulCall:
    """See `Executable.bind_state`."""
    if not isinstance(state, Mapping) or not state:
        raise UsageError(
            f"state is {state!r}", "it maps names of outputs to those of inputs", "name a state"
        )
    if capacity is not None:
        capacity = as_integer("capacity", capacity, least=1)
    ports = {p.name: p for p in exe.input_ports}
    for output, name in state.items():
        if output not in exe.output_names:
            raise UsageError(
                f"no output {output!r}", f"the outputs are {', '.join(exe.output_names)}",
                "bind one of these",
            )  # fmt: skip
        if name not in ports:
            raise UsageError(
                f"no input {name!r}", f"the inputs are {', '.join(ports)}", "bind one of these"
            )
        if ports[name].dtype is None or ports[name].shape is None:
            raise UsageError(
                f"input {name!r} is {ports[name].type_text}", "a state is a tensor of known rank",
                "remove it",
            )  # fmt: skip
    if len({*state.values()}) < len(state):
        raise UsageError(
            "an input is the state of two outputs", f"state is {dict(state)}", "bind one of these"
        )
    own = symbolic_dims([ports[name] for name in state.values()])
    known = SizeNames(sorted(own), "sizes", inputs={n: p.type_text for n, p in ports.items()})
    sizes = known.check_some(sizes)
    exe.compile_in_calls()  # programs that keep states in place
    return StatefulCall(
        exe, {out: StateBuffer(ports[name]) for out, name in state.items()}, sizes, capacity
    )
