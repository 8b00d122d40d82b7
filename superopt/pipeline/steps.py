"""The steps of a compiled model: parts as machine code, and parts in onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from superopt import ort
from superopt.ir import graph as g
from superopt.pipeline.native import Native as Native
from superopt.plan.segments import Segment

Arrays = dict[g.Value, Any]


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
