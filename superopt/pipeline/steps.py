"""The steps of a compiled model: parts as machine code, and parts in onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from superopt import ort
from superopt.ir import graph as g
from superopt.pipeline.native import Native as Native
from superopt.plan.segments import Segment

Arrays = dict[g.Value, Any]
Direct = Callable[[Sequence[Any]], dict[str, Any]]


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

    def direct(self, inputs: Sequence[g.Value], outputs: Mapping[str, g.Value]) -> Direct | None:
        """The same as one function, of the model's inputs in order, with its outputs by name: where
        it is the whole model, and takes and gives numpy's types. Errors are onnxruntime's."""
        own = dict(zip(self.segment.outputs, self.outputs, strict=True))
        if not own.keys() >= set(outputs.values()) or not ort.plainly(self.session, self.outputs):
            return None
        run, wanted = self.session.raw.run, [own[v] for v in outputs.values()]
        takes = [(name, inputs.index(v)) for name, v in self.given.items()]
        names = tuple(outputs)

        def call(arrays: Sequence[Any]) -> dict[str, Any]:
            found = run(wanted, {name: arrays[n] for name, n in takes})
            return dict(zip(names, found, strict=True))

        return call
