"""A segment of a model as machine code, and its binding to the model's inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from superopt.compilation.runtime.output_buffers import ArraySpec, output_allocator

if TYPE_CHECKING:
    from superopt.ir import graph
    from superopt.plan.graph.partition import Segment
    from superopt.plan.program.image import LoadedProgram

RunProgram = Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], None]


@dataclass(frozen=True, slots=True)
class ModelBinding:
    """How the inputs and outputs of the only segment map to the model's.

    input_numbers: of the model's inputs; output_numbers: by the names of the model's outputs,
    numbers of the segment's outputs.
    """

    input_numbers: tuple[int, ...]
    output_numbers: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class NativeSegment:
    """A segment as machine code. output_specs: shapes and element types of its outputs;
    allocate_outputs: returns such arrays; load_segment: returns the segment; binding: if it is the
    only one."""

    code: LoadedProgram
    output_specs: tuple[ArraySpec, ...]
    load_segment: Callable[[], Segment]
    binding: ModelBinding | None = None
    allocate_outputs: Callable[[], list[np.ndarray]] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "allocate_outputs", output_allocator(self.output_specs))

    @property
    def segment(self) -> Segment:
        return self.load_segment()

    def run(self, env: MutableMapping[graph.Value, Any], code: RunProgram | None = None) -> None:
        """Run the segment. code: run in place of its own."""
        segment = self.segment
        out = self.allocate_outputs()
        (code or self.code)([env[v] for v in segment.inputs], out)
        env.update(zip(segment.outputs, out, strict=True))
