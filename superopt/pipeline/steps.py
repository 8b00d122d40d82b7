"""The steps of a compiled model: parts as machine code, and parts in onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from superopt import ort
from superopt.ir import graph as g
from superopt.plan.execute import Code
from superopt.plan.segments import Segment, graph_of
from superopt.te.dtype import DType, to_numpy
from superopt.te.expr import TensorType

Arrays = dict[g.Value, Any]
Run = Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], None]


@dataclass(frozen=True, slots=True)
class Native:
    """A segment as machine code."""

    segment: Segment
    code: Code
    shapes: tuple[tuple[int, ...], ...]  # of the outputs

    def graph(self) -> g.Graph:
        return graph_of(self.segment)

    def run(self, env: Arrays, code: Run | None = None) -> None:
        """code: in place of its own."""
        given = [env[v] for v in self.segment.inputs]
        out = [
            np.empty(shape, to_numpy(_dtype(v.type)))
            for v, shape in zip(self.segment.outputs, self.shapes, strict=True)
        ]
        (code or self.code)(given, out)
        env.update(zip(self.segment.outputs, out, strict=True))


@dataclass(frozen=True, slots=True)
class Foreign:
    """A segment in onnxruntime. given: its inputs' names, and the values that these are."""

    segment: Segment
    session: ort.Session
    given: Mapping[str, g.Value]
    outputs: tuple[str, ...]

    def run(self, env: Arrays) -> None:
        feeds = {name: env[v] for name, v in self.given.items()}
        found = ort.run(self.session, feeds, self.outputs)
        env.update((v, found[n]) for v, n in zip(self.segment.outputs, self.outputs, strict=True))


def _dtype(t: TensorType) -> DType:
    assert t.dtype is not None
    return t.dtype
