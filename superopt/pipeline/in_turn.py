"""The segments of a model as one function that runs them in order. Lookups happen once, so that a
call takes little more than its kernels and sessions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from superopt import ort
from superopt.ir import graph
from superopt.pipeline.foreign import Foreign, checked
from superopt.pipeline.native import Native

Direct = Callable[[Sequence[Any]], dict[str, Any]]
Step = Callable[[list[Any]], None]


def in_turn(
    steps: Sequence[Native | Foreign],
    inputs: Sequence[graph.Value],
    outputs: Mapping[str, graph.Value],
) -> Direct | None:
    """Return a function from the model's inputs in order to its outputs by name. None if a segment
    reads or gives a type that numpy lacks. Errors are those of the segments."""
    slots: dict[graph.Value, int] = {v: n for n, v in enumerate(inputs)}
    calls: list[Step] = []
    for s in steps:
        if isinstance(s, Foreign) and not ort.plainly(s.session, s.outputs):
            return None
        takes = s.given.values() if isinstance(s, Foreign) else s.segment.inputs
        if any(v not in slots for v in takes):
            return None
        for v in s.segment.outputs:
            slots.setdefault(v, len(slots))
        calls.append(_foreign(s, slots) if isinstance(s, Foreign) else _native(s, slots))
    known = [v for v in dict.fromkeys(outputs.values()) if v not in slots]
    constants = [v.load() for v in known if isinstance(v, graph.Constant)]
    if len(constants) < len(known):
        return None
    rest = [None] * (len(slots) - len(inputs)) + constants
    slots |= {v: len(slots) + n for n, v in enumerate(known)}
    wanted = [(name, slots[v]) for name, v in outputs.items()]
    # Copy outputs that are inputs or constants: nobody else gets the model's own array.
    copies = [n for n, v in outputs.items() if isinstance(v, graph.Input | graph.Constant)]
    call = _call(calls, rest, wanted)

    def copied(arrays: Sequence[Any]) -> dict[str, Any]:
        out = call(arrays)
        for name in copies:
            out[name] = np.array(out[name])
        return out

    return copied if copies else call


def _call(calls: Sequence[Step], rest: Sequence[Any], wanted: Sequence[tuple[str, int]]) -> Direct:
    def call(arrays: Sequence[Any]) -> dict[str, Any]:
        held = [*arrays, *rest]
        for step in calls:
            step(held)
        return {name: held[n] for name, n in wanted}

    return call


def _foreign(s: Foreign, slots: Mapping[graph.Value, int]) -> Step:
    run, wanted = ort.caller(s.session), list(s.outputs)
    takes = [(name, slots[v]) for name, v in s.given.items()]
    gives = [slots[v] for v in s.segment.outputs]

    def step(held: list[Any]) -> None:
        found = run(wanted, {name: held[n] for name, n in takes}, ort.run_options())
        checked(s, found)
        for n, x in zip(gives, found, strict=True):
            held[n] = x

    return step


def _native(s: Native, slots: Mapping[graph.Value, int]) -> Step:
    call, new = s.code.call, s.new
    takes, gives = ([slots[v] for v in some] for some in (s.segment.inputs, s.segment.outputs))

    def step(held: list[Any]) -> None:
        out = new()
        call((*[held[n] for n in takes], *out))
        for n, x in zip(gives, out, strict=True):
            held[n] = x

    return step
