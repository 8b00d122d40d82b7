"""The segments of a model as one function that runs them in order. Lookups happen once, so that a
call takes little more than its kernels and sessions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from superopt.compilation.cpu.native_segment import NativeSegment
from superopt.compilation.fallback.session_segment import OrtSegment, check_outputs
from superopt.compilation.model.classes.runtime_sizes import RuntimeSizedSegment
from superopt.compilation.model.repeated_call import ModelCall
from superopt.compilation.model.steps import Variant
from superopt.ort import sessions

SlotStep = Callable[[list[Any]], None]


def model_call(variant: Variant, output_names: Sequence[str]) -> ModelCall | None:
    """Return one function that runs all steps of a variant; None if there is none."""
    known = NativeSegment | OrtSegment | RuntimeSizedSegment
    if not all(isinstance(s, known) for s in variant):
        return None
    own = variant.values
    named = dict(zip(output_names, own.outputs, strict=True))
    return build_model_call(variant.steps, own.inputs, named)


def build_model_call(
    steps: Sequence[NativeSegment | OrtSegment | RuntimeSizedSegment],
    inputs: Sequence[Any],
    outputs: Mapping[str, Any],
) -> ModelCall | None:
    """Return a function from the model's inputs in order to its outputs by name. None if a segment
    reads or gives a type that numpy lacks. Errors are those of the segments."""
    slots: dict[Any, int] = {v: n for n, v in enumerate(inputs)}
    calls: list[SlotStep] = []
    for s in steps:
        if isinstance(s, OrtSegment) and not sessions.has_numpy_types(s.session, s.output_names):
            return None
        takes = s.inputs.values() if isinstance(s, OrtSegment) else s.segment.inputs
        if any(v not in slots for v in takes):
            return None
        for v in s.segment.outputs:
            slots.setdefault(v, len(slots))
        calls.append(_slot_step(s, slots))
    known = [v for v in dict.fromkeys(outputs.values()) if v not in slots]
    if not all(hasattr(v, "load") for v in known):  # they are constants
        return None
    constants = [v.load() for v in known]
    rest = [None] * (len(slots) - len(inputs)) + constants
    slots |= {v: len(slots) + n for n, v in enumerate(known)}
    wanted = [(name, slots[v]) for name, v in outputs.items()]
    # Copy outputs that are inputs or constants: nobody else gets the model's own array.
    own = {*inputs, *known}
    copies = [name for name, v in outputs.items() if v in own]
    call = _sequence_steps(calls, rest, wanted)

    def copied(arrays: Sequence[Any]) -> dict[str, Any]:
        out = call(arrays)
        for name in copies:
            out[name] = np.array(out[name])
        return out

    return copied if copies else call


def _sequence_steps(
    steps: Sequence[SlotStep],
    initial_values: Sequence[Any],
    output_slots: Sequence[tuple[str, int]],
) -> ModelCall:
    def call(arrays: Sequence[Any]) -> dict[str, Any]:
        held = [*arrays, *initial_values]
        for step in steps:
            step(held)
        return {name: held[n] for name, n in output_slots}

    return call


def _slot_step(
    s: NativeSegment | OrtSegment | RuntimeSizedSegment, slots: Mapping[Any, int]
) -> SlotStep:
    match s:
        case OrtSegment():
            return _ort_step(s, slots)
        case NativeSegment():
            return _native_step(s, slots)
    return _runtime_sized_step(s, slots)


def _ort_step(s: OrtSegment, slots: Mapping[Any, int]) -> SlotStep:
    run, wanted = sessions.raw_run_function(s.session), list(s.output_names)
    takes = [(name, slots[v]) for name, v in s.inputs.items()]
    gives = [slots[v] for v in s.segment.outputs]

    def step(held: list[Any]) -> None:
        found = run(wanted, {name: held[n] for name, n in takes}, sessions.run_options())
        check_outputs(s, found)
        for n, x in zip(gives, found, strict=True):
            held[n] = x

    return step


def _native_step(s: NativeSegment, slots: Mapping[Any, int]) -> SlotStep:
    call, new = s.code.call, s.allocate_outputs
    takes, gives = ([slots[v] for v in some] for some in (s.segment.inputs, s.segment.outputs))

    def step(held: list[Any]) -> None:
        out = new()
        call((*[held[n] for n in takes], *out))
        for n, x in zip(gives, out, strict=True):
            held[n] = x

    return step


def _runtime_sized_step(s: RuntimeSizedSegment, slots: Mapping[Any, int]) -> SlotStep:
    takes, gives = ([slots[v] for v in some] for some in (s.values, s.segment.outputs))

    def step(held: list[Any]) -> None:
        for n, x in zip(gives, s.compute([held[n] for n in takes]), strict=True):
            held[n] = x

    return step
