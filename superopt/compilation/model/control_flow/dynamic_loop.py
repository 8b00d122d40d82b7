"""A model at a Loop whose number of steps is known only at run time: programs for what the loop
reads, for a step, and for the rest. A call runs that of a step as often as needed. Some calls also
run the whole model in ONNX Runtime; the others use what took less time in the last of these."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from superopt.compilation.fallback.whole_model import NamedCall
from superopt.compilation.frontend.input_arrays import match_sizes, sorted_sizes
from superopt.compilation.model.control_flow.bound_steps import BoundSteps, Slices, bind_steps
from superopt.compilation.model.control_flow.dynamic_if import (
    PREFIX,
    ControlFlow,
    condition_value,
    select_inputs,
)

if TYPE_CHECKING:
    from superopt.compilation.model.executable import Executable
    from superopt.ir import graph as ir_graph
    from superopt.ir.loop_names import LoopNames

MIN_BOUND_STEPS = 4  # steps for which binding arrays pays
BODY, REST = "body", "rest"  # the names of the parts that are a step, and that follow the loop
MAX_COUNTED_STEPS = 256  # of a call, where its number of steps has no limit
TRIAL_CALLS = 3  # that are compared; the first call may compile


@dataclass(frozen=True, slots=True)
class DynamicLoop(ControlFlow):
    """The whole model at a Loop; see ControlFlow. names: of the loop's values. body: a step. rest:
    the nodes after the loop, or None. call_whole: runs the whole model in ONNX Runtime; also where
    there is no step, for the shapes of its slices are unknown. trials: the seconds of the programs
    and of ONNX Runtime, in the first calls and in those whose number is a power of 2: programs may
    be compiled later. calls: their numbers."""

    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    load_graph: Callable[[], ir_graph.Graph]
    names: LoopNames
    prefix: Executable | None
    body: Executable
    rest: Executable | None
    call_whole: NamedCall
    trials: list[tuple[float, float]] = field(init=False, default_factory=list)
    calls: Iterator[int] = field(init=False, default_factory=count)

    @property
    def condition(self) -> str:
        return self.names.condition or self.names.trip

    @property
    def parts(self) -> Mapping[str, Executable]:
        named = ((PREFIX, self.prefix), (BODY, self.body), (REST, self.rest))
        return {name: exe for name, exe in named if exe is not None}

    def select_parts(
        self, values: Mapping[str, Any]
    ) -> Iterator[tuple[Executable, dict[str, Any]]]:
        """Yield the executables with their inputs; a step with those of the first one."""
        if self._step_limit(values):
            yield self.body, self._first_inputs(values)
            if self.rest is not None:
                after = {**values, **self._run_steps(values)}
                yield self.rest, select_inputs(self.rest, after)

    def named_call(self, feeds: dict[str, Any]) -> dict[str, Any]:
        number = next(self.calls)
        if len(self.trials) > TRIAL_CALLS and number & (number - 1):
            is_slower = median(a / b for a, b in self.trials[-TRIAL_CALLS:]) > 1
            found = None if is_slower else self.run_programs(feeds)
            return self.call_whole(feeds) if found is None else found
        begin = time.perf_counter()
        found = self.run_programs(feeds)
        middle = time.perf_counter()
        out = self.call_whole(feeds)
        if found is None:
            return out
        self.trials.append((middle - begin, time.perf_counter() - middle))
        return found

    def run_programs(self, feeds: dict[str, Any]) -> dict[str, Any] | None:
        """Return the outputs; None if ONNX Runtime should compute them: without a step, or where a
        step has no program."""
        values = self.run_prefix(feeds)
        if not self._step_limit(values) or self._has_slow_step(values):
            return None
        values |= self._run_steps(values)
        if self.rest is not None:
            values |= self.rest.run(select_inputs(self.rest, values))
        return {name: values[name] for name in self.output_names}

    def _step_limit(self, values: Mapping[str, Any]) -> float:
        """Return the greatest number of steps; 0 if the condition is false at the start."""
        names = self.names
        if names.condition and not condition_value(values[names.condition], names.condition):
            return 0
        return max(int(values[names.trip].reshape(-1)[0]), 0) if names.trip else float("inf")

    def _first_inputs(self, values: Mapping[str, Any]) -> dict[str, Any]:
        number, going, *inner = self.names.body_inputs
        states = (values[name] for name in self.names.states)
        own = {number: np.array(0), going: np.array(True), **dict(zip(inner, states, strict=True))}
        return select_inputs(self.body, {**values, **own})

    def _has_slow_step(self, values: Mapping[str, Any]) -> bool:
        """True if the first step has no program, and others have: it would run in ONNX Runtime,
        where the whole loop takes less time. It runs once, so that programs for its sizes are
        compiled once that pays."""
        body, feeds = self.body, self._first_inputs(values)
        classes, policy = body.size_classes, body.shape_policy
        sizes = match_sizes(body.input_ports, [*feeds.values()])
        if sizes is None or not classes.classes or sorted_sizes(sizes) in body.variants:
            return False
        if policy.fallback is None or classes.find(sizes) is not None:
            return False
        begin = time.perf_counter()
        body.run(feeds)
        steps = min(self._step_limit(values), MAX_COUNTED_STEPS)
        policy.add_fallback_time(sorted_sizes(sizes), (time.perf_counter() - begin) * steps)
        return True

    def _run_steps(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the loop's results by name; there is at least one step."""
        names, limit, run = self.names, self._step_limit(values), self.body.run
        number, _, *inner = names.body_inputs
        goes_on, *outputs = names.body_outputs
        states, slices = outputs[: len(inner)], outputs[len(inner) :]
        stacked = [x for x in zip(names.stacked, slices, strict=True) if x[0]]
        feeds = self._first_inputs(values)
        carried = [(name, x) for name, x in zip(inner, states, strict=True) if name in feeds]
        rows: list[list[Any]] = [[] for _ in stacked]
        k = 0
        while True:
            found: Mapping[str, Any] = run(feeds)
            for row, (_, x) in zip(rows, stacked, strict=True):
                row.append(found[x])
            k += 1
            if k >= limit or not condition_value(found[goes_on], goes_on):
                results = [np.stack(row) for row in rows]
                break
            feeds = {**feeds, **{name: found[x] for name, x in carried}}
            if k == 1 and limit > MIN_BOUND_STEPS:
                bound = bind_steps(self.body, names, feeds, found)
                if bound is not None:
                    found, results = _run_bound(bound, k, limit, rows, [x for _, x in stacked])
                    break
            if number in feeds:
                feeds[number] = np.array(k)
        last = dict(zip(names.finals, (found[x] for x in states), strict=True))
        return last | {n: x for (n, _), x in zip(stacked, results, strict=True)}


def _run_bound(
    bound: BoundSteps, first: int, limit: float, rows: Sequence[Sequence[Any]], names: Sequence[str]
) -> tuple[Mapping[str, Any], list[np.ndarray]]:
    """Run further steps. Return the outputs of the last one, and the slices of all by `names`;
    rows: those before."""
    slices = {x: Slices.empty_like(row[0], limit) for x, row in zip(names, rows, strict=True)}
    for x, row in zip(names, rows, strict=True):
        for each in row:
            slices[x].append(each)
    found = bound.run(first, limit, slices)
    return found, [slices[x].result() for x in names]
