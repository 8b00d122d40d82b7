"""The parts of a model, one after the other, as one function: what a call asks for is looked up
once, so that it takes little more than its kernels, and its sessions, do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from superopt import ort
from superopt.ir import graph as g
from superopt.pipeline.foreign import Foreign, checked
from superopt.pipeline.native import Native

Direct = Callable[[Sequence[Any]], dict[str, Any]]
Step = Callable[[list[Any]], None]


def in_turn(
    steps: Sequence[Native | Foreign],
    inputs: Sequence[g.Value],
    outputs: Mapping[str, g.Value],
) -> Direct | None:
    """Of the model's inputs in order, with its outputs by name. None: some part of it takes or
    gives what numpy has no type for. Errors are those of its parts."""
    slots: dict[g.Value, int] = {v: n for n, v in enumerate(inputs)}
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
    if any(v not in slots or isinstance(v, g.Input) for v in outputs.values()):
        return None  # a constant, or a copy of an input
    empty = [None] * (len(slots) - len(inputs))
    wanted = [(name, slots[v]) for name, v in outputs.items()]

    def call(arrays: Sequence[Any]) -> dict[str, Any]:
        held = [*arrays, *empty]
        for step in calls:
            step(held)
        return {name: held[n] for name, n in wanted}

    return call


def _foreign(s: Foreign, slots: Mapping[g.Value, int]) -> Step:
    run, wanted = s.session.raw.run, list(s.outputs)
    takes = [(name, slots[v]) for name, v in s.given.items()]
    gives = [slots[v] for v in s.segment.outputs]

    def step(held: list[Any]) -> None:
        found = run(wanted, {name: held[n] for name, n in takes})
        checked(s, found)
        for n, x in zip(gives, found, strict=True):
            held[n] = x

    return step


def _native(s: Native, slots: Mapping[g.Value, int]) -> Step:
    call, new = s.code.call, s.new
    takes, gives = ([slots[v] for v in some] for some in (s.segment.inputs, s.segment.outputs))

    def step(held: list[Any]) -> None:
        out = new()
        call((*[held[n] for n in takes], *out))
        for n, x in zip(gives, out, strict=True):
            held[n] = x

    return step
