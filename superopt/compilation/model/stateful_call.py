"""Calls that keep state: outputs of a call are inputs of the next (`Executable.bind_state`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from superopt.compilation.frontend.input_arrays import InputPort
from superopt.compilation.model.model_programs import sorted_sizes
from superopt.compilation.model.size_classes import bind_size_class
from superopt.errors import UsageError

if TYPE_CHECKING:
    from superopt.compilation.model.executable import Executable
    from superopt.compilation.runtime.output_buffers import ArraySpec

BUFFER_GROWTH = 2.0  # times what is needed, where a state needs a larger buffer


@dataclass(slots=True)
class _StateBuffer:
    """A state and the memory for the next one. array: the state; None before the first call."""

    port: InputPort
    array: np.ndarray | None = None
    current: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint8))
    other: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint8))

    def next_array(self, shape: tuple[int, ...], dtype: np.dtype, growth: float) -> np.ndarray:
        """Return memory for the next state. growth: times the bytes, if more is allocated."""
        size = prod(shape) * dtype.itemsize
        if size > len(self.other):
            self.other = np.empty(int(growth * size), np.uint8)
        return self.other[:size].view(dtype).reshape(shape)

    def advance(self, array: np.ndarray) -> None:
        """Let an array that `next_array` gave be the state."""
        self.array = array
        self.current, self.other = self.other, self.current


@dataclass(slots=True, weakref_slot=True, eq=False, repr=False)
class StatefulCall:
    """Calls of a compiled model that keep some outputs as inputs of the next call, in memory of
    their own. One thread at a time may use it; several may use one executable.

    states: by the name of the output. sizes: symbolic sizes of states that no input has. capacity:
    the greatest length of a state along the axis that grows; None: no limit.
    """

    executable: Executable
    states: dict[str, _StateBuffer]
    sizes: Mapping[str, int]
    capacity: int | None

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs that are not states, by name. feeds: the inputs that are not states.

        If it raises an error, the state is as before. Raises UsageError if inputs do not fit, and
        if a state would be longer than the capacity.
        """
        exe = self.executable
        held = {s.port.name: s for s in self.states.values()}
        for name in held:
            if name in feeds:
                raise UsageError(f"input {name!r} is a state", "the call keeps it", "remove it")
        kept = {name: s.array for name, s in held.items() if s.array is not None}
        arrays = exe.input_arrays({**feeds, **(kept or self._first_states(feeds))})
        sizes = exe.infer_sizes(arrays)
        if not self._is_compiled_in_call(sizes):
            return self._run_elsewhere(arrays)[0]
        with exe.exclusive():
            step = exe.runnable(sizes).bound_step
        specs = None if step is None else step.named_output_specs()
        if step is None or specs is None:
            out, lengths = self._run_elsewhere(arrays)
        else:
            lengths = self._check_lengths(arrays, specs)
        if not kept and not any(lengths.values()):
            self._compile_one_token(sizes)
        if step is None or specs is None:
            return out
        written = self._next_states(specs, lengths)
        others = {n: np.empty(*spec) for n, spec in specs.items() if n not in written}
        _, run = step.bind(arrays, {**written, **others})
        run()
        for name, array in written.items():
            self.states[name].advance(array)
        return others

    def reset(self, state: Mapping[str, np.ndarray] | None = None) -> None:
        """Begin again: with empty states, or with copies of these arrays, by names of inputs."""
        known = {s.port.name: s for s in self.states.values()}
        if state is not None and state.keys() != known.keys():
            raise UsageError(
                f"states were given for {', '.join(state) or 'nothing'}",
                f"the states are {', '.join(known)}",
                "pass all of them, or none",
            )
        for name, held in known.items():
            held.array = None
            if state is not None:
                x = np.asarray(state[name])
                made = held.next_array(x.shape, x.dtype, BUFFER_GROWTH)
                made[...] = x
                held.advance(made)

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

    def _next_states(
        self, specs: Mapping[str, ArraySpec], lengths: Mapping[str, int]
    ) -> dict[str, np.ndarray]:
        """Return memory for the next states, for as many tokens as the capacity if there is one."""
        out = {}
        for name, held in self.states.items():
            growth = BUFFER_GROWTH
            if self.capacity is not None and lengths[name]:
                growth = self.capacity / lengths[name]
            out[name] = held.next_array(*specs[name], growth)
        return out

    def _check_lengths(
        self, arrays: Sequence[Any], specs: Mapping[str, ArraySpec]
    ) -> dict[str, int]:
        """Return the lengths of states that grow, 0 for others. Raises UsageError if one would be
        longer than the capacity."""
        by_port = {p.name: a for p, a in zip(self.executable.input_ports, arrays, strict=True)}
        out = {}
        for name, held in self.states.items():
            length = out[name] = _grown_length(by_port[held.port.name].shape, specs[name][0])
            if self.capacity is not None and length > self.capacity:
                raise UsageError(
                    f"state {held.port.name!r} would have the length {length}",
                    f"its capacity is {self.capacity}",
                    "call reset, or bind with a larger capacity",
                )
        return out

    def _run_elsewhere(self, arrays: Sequence[Any]) -> tuple[dict[str, Any], dict[str, int]]:
        """Run what is not kernels alone; the states are copied. Return the other outputs, and the
        lengths of states that grow."""
        exe = self.executable
        out = exe.run({p.name: a for p, a in zip(exe.input_ports, arrays, strict=True)})
        found = {n: np.asarray(exe.device.to_host(out[n])) for n in self.states}
        lengths = self._check_lengths(arrays, {n: (x.shape, x.dtype) for n, x in found.items()})
        for name, x in found.items():
            made = self.states[name].next_array(x.shape, x.dtype, BUFFER_GROWTH)
            made[...] = x
            self.states[name].advance(made)
        return {n: x for n, x in out.items() if n not in self.states}, lengths


def _grown_length(before: tuple[int, ...], after: tuple[int, ...]) -> int:
    """Return the new length along the axis that has grown; 0 if none has."""
    return next((n for m, n in zip(before, after, strict=True) if n > m), 0)


def bind_state(
    exe: Executable, state: Mapping[str, str], sizes: Mapping[str, int], capacity: int | None
) -> StatefulCall:
    """See `Executable.bind_state`."""
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
    return StatefulCall(
        exe, {out: _StateBuffer(ports[name]) for out, name in state.items()}, dict(sizes), capacity
    )
