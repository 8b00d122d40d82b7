"""A part of a model as machine code, and when that part is the whole of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from superopt.plan.image import Code

if TYPE_CHECKING:
    from superopt.ir import graph as g
    from superopt.plan.segments import Segment

Run = Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], None]
Spec = tuple[tuple[int, ...], np.dtype]


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
    """A segment as machine code. specs: shapes and element types of its outputs; found: gives the
    segment; whole: where it is all that there is."""

    code: Code
    specs: tuple[Spec, ...]
    found: Callable[[], Segment]
    whole: Whole | None = None

    @property
    def segment(self) -> Segment:
        return self.found()

    def run(self, env: MutableMapping[g.Value, Any], code: Run | None = None) -> None:
        """code: in place of its own."""
        segment = self.segment
        out = [np.empty(shape, dtype) for shape, dtype in self.specs]
        (code or self.code)([env[v] for v in segment.inputs], out)
        env.update(zip(segment.outputs, out, strict=True))
