"""A part of a model as machine code, and when that part is the whole of it."""

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
    """Where inputs and outputs of the only segment come from and go to.

    takes: numbers of the model's inputs; gives: by the names of the model's outputs, numbers of the
    segment's.
    """

    takes: tuple[int, ...]
    gives: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Native:
    """A segment as machine code. specs: shapes and element types of its outputs, new: gives arrays
    of these; found: gives the segment; whole: where it is all that there is."""

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
        """code: in place of its own."""
        segment = self.segment
        out = self.new()
        (code or self.code)([env[v] for v in segment.inputs], out)
        env.update(zip(segment.outputs, out, strict=True))
