"""Parts of a compiled model that run in onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from superopt import ort
from superopt.errors import ModelError
from superopt.ir import graph as g
from superopt.onnx_io.extract import extracted
from superopt.onnx_io.model import Model
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
        env.update(zip(self.segment.outputs, found.values(), strict=True))


def foreign(model: Model, s: Segment, threads: int) -> Foreign:
    """A segment of a model in onnxruntime. Raises ModelError where that is not installed."""
    if ort.available() is None:
        what = ", ".join(dict.fromkeys(n.op.name for n in s.nodes))
        raise ModelError(
            f"{model.source.label}: {what} run only in onnxruntime", "it is not installed",
            'pip install "superopt[ort]"',
        )  # fmt: skip
    names = model.names
    outputs = tuple(names[v] for v in s.outputs)
    given = {names[v]: v for v in s.inputs}
    part, wanted = extracted(model, {n: v.type for n, v in given.items()}, outputs)
    own = {i.name: i for i in model.graph.inputs}
    session = ort.session(part, threads)
    return Foreign(s, session, {n: given.get(n) or own[n] for n in wanted}, outputs)
