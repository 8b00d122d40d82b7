"""A segment of a model as machine code, and its binding to the model's inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from superopt.pipeline.outputs import Spec, outputs

if TYPE_CHECKING:
    from superopt.ir import graph
    from superopt.plan.graph.partition import Segment
    from superopt.plan.program.image import LoadedProgram

Run = Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], None]


@dataclass(frozen=True, slots=True)
class Whole:
    """How the inputs and outputs of the only segment map to the model's.

    input_numbers: of the model's inputs; output_numbers: by the names of the model's outputs,
    numbers of the segment's outputs.
    """

    takes: tuple[int, ...]
    gives: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Native:
    """A segment as machine code. output_specs: shapes and element types of its outputs;
    allocate_outputs: returns such arrays; load_segment: returns the segment; binding: if it is the
    only one."""

    code: LoadedProgram
    specs: tuple[Spec, ...]
    found: Callable[[], Segment]
    whole: Whole | None = None
    new: Callable[[], list[np.ndarray]] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "new", outputs(self.specs))

    @property
    def segment(self) -> Segment:
        return self.found()

    def run(self, env: MutableMapping[graph.Value, Any], code: Run | None = None) -> None:
        """Run the segment. code: run in place of its own."""
        segment = self.segment
        out = self.new()
        (code or self.code)([env[v] for v in segment.inputs], out)
        env.update(zip(segment.outputs, out, strict=True))
