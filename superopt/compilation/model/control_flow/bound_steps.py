"""The steps of a Loop on fixed arrays, where the sizes of all values are the same in each step. A
state has two arrays: a step reads one and writes the other. Slices are copied to their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from superopt.compilation.frontend.input_arrays import sorted_sizes

if TYPE_CHECKING:
    from superopt.compilation.model.executable import Executable
    from superopt.compilation.model.steps import KernelStep
    from superopt.ir.loop_names import LoopNames

MAX_CAPACITY_BYTES = 1 << 22  # of a result for slices that is not allocated for as many as possible


@dataclass(slots=True)
class Slices:
    """The slices of all steps so far: the first `count` rows of an array. limit: of their
    number."""

    limit: float
    rows: np.ndarray
    count: int = 0

    @classmethod
    def empty_like(cls, row: np.ndarray, limit: float) -> Slices:
        """Return slices like this one, and none so far."""
        capacity = min(limit, max(MAX_CAPACITY_BYTES // max(row.nbytes, 1), 1))
        return cls(limit, np.empty((int(capacity), *row.shape), row.dtype))

    def append(self, row: np.ndarray) -> None:
        """Add a slice."""
        count = self.count
        if count == len(self.rows):
            grown = np.empty((int(min(self.limit, 2 * count)), *row.shape), row.dtype)
            grown[:count] = self.rows
            self.rows = grown
        self.rows[count] = row
        self.count = count + 1

    def result(self) -> np.ndarray:
        """Return all slices, in memory of their own size."""
        return self.rows if self.count == len(self.rows) else self.rows[: self.count].copy()


@dataclass(frozen=True, slots=True)
class BoundSteps:
    """Two bound steps, each of which reads the states that the other one writes. runs: compute
    them; outputs: of each, by name. number: the step's number, which they read. goes_on: whether
    there is another step."""

    runs: tuple[Callable[[], object], Callable[[], object]]
    outputs: tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]
    number: np.ndarray
    goes_on: np.ndarray

    def run(
        self, first: int, limit: float, slices: Mapping[str, Slices]
    ) -> Mapping[str, np.ndarray]:
        """Run the steps with numbers from `first` to the last one, below `limit`; add the slices,
        and return the outputs of the last step."""
        number, k, parity = self.number, first, 0
        while True:
            number[()] = k
            self.runs[parity]()
            found = self.outputs[parity]
            for name, some in slices.items():
                some.append(found[name])
            k += 1
            if k >= limit or not self.goes_on.item():
                return found
            parity = 1 - parity


def bind_steps(
    body: Executable, names: LoopNames, feeds: Mapping[str, Any], found: Mapping[str, Any]
) -> BoundSteps | None:
    """Return the further steps of a loop; None if the sizes of values change, or a step is more
    than a program. feeds: inputs of the next step; found: the outputs of the one before."""
    number, _, *inner = names.body_inputs
    goes_on, *outputs = names.body_outputs
    given = {**feeds, number: np.array(0)}
    arrays = body.input_arrays({p.name: given[p.name] for p in body.input_ports})
    step = _step_at(body, body.infer_sizes(arrays))
    specs = None if step is None else step.named_output_specs()
    if step is None or specs is None or found[goes_on].size != 1:
        return None
    if any((found[x].shape, found[x].dtype) != spec for x, spec in specs.items()):
        return None
    written = {x: np.array(found[x]) for x in specs}
    states = dict(zip(inner, outputs, strict=False))
    others = {**written, **{x: np.empty_like(written[x]) for x in states.values()}}
    given |= {p.name: a for p, a in zip(body.input_ports, arrays, strict=True)}
    runs = []
    for read, write in ((written, others), (others, written)):
        own = {**given, **{name: read[x] for name, x in states.items()}}
        runs.append(step.bind([own[p.name] for p in body.input_ports], write)[1])
    return BoundSteps((runs[0], runs[1]), (others, written), given[number], written[goes_on])


def _step_at(body: Executable, sizes: Mapping[str, int]) -> KernelStep | None:
    """Return the program of the body at these sizes, if it is compiled and the whole body."""
    key = sorted_sizes(sizes)
    with body.try_lock() as locked:
        if not locked or key in body.shape_policy.fallback_reasons:
            return None
        variant = body.variants.get(key)
        if variant is None:
            variant = body.size_classes.variant(sizes)
    return None if variant is None else variant.bound_step
