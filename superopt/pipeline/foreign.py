"""Parts of a compiled model that run in onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from superopt import ort
from superopt.errors import ModelError, Unlike, UsageError
from superopt.ir import graph as g
from superopt.onnx_io.extract import extracted
from superopt.onnx_io.model import Model
from superopt.pipeline.outputs import Spec
from superopt.pipeline.ports import dtype_of, shape_at
from superopt.plan.segments import Segment
from superopt.te import index as ix
from superopt.te.dtype import STRING

Arrays = dict[g.Value, Any]
UNFIT = "ShapeInferenceError"  # in what onnxruntime says of shapes


@dataclass(frozen=True, slots=True)
class Foreign:
    """A segment in onnxruntime. given: its inputs' names, and the values that these are. specs: of
    the outputs that kernels read, as they were planned; None: of another one."""

    segment: Segment
    session: ort.Session
    given: Mapping[str, g.Value]
    outputs: tuple[str, ...]
    specs: tuple[Spec | None, ...]

    def run(self, env: Arrays) -> None:
        """Raises Unlike where an output is not as kernels were planned for."""
        feeds = {name: env[v] for name, v in self.given.items()}
        found = ort.run(self.session, feeds, self.outputs)
        checked(self, list(found.values()))
        env.update(zip(self.segment.outputs, found.values(), strict=True))


def checked(s: Foreign, found: Sequence[Any]) -> None:
    """Raises Unlike where an output is not as kernels were planned for."""
    for name, x, spec in zip(s.outputs, found, s.specs, strict=True):
        if spec is not None and (x.shape != spec[0] or x.dtype != spec[1]):
            raise Unlike(
                f"{name} is {x.dtype}{list(x.shape)} in onnxruntime",
                f"the model's shapes say {spec[1]}{list(spec[0])}",
                "correct them, or run the model in onnxruntime",
            )


def whole(graph: g.Graph, e: Unlike) -> dict[g.Node, str]:
    """All nodes, and why they run in onnxruntime then."""
    return dict.fromkeys(g.nodes(graph), f"{e.what}; {e.why}")


def unread(model: Model, s: Segment, session: ort.Session) -> Foreign:
    """A model that superopt does not read, by what runs all of it. s: the node that stands for
    it."""
    names = model.names
    given = {names[v]: v for v in s.inputs}
    outputs = tuple(names[v] for v in s.outputs)
    return Foreign(s, session, given, outputs, (None,) * len(outputs))


def unsaved(model: Model, without: Mapping[g.Node, str]) -> UsageError:
    """What is said where such a model is to be saved. without: the node, and why."""
    (why,) = without.values()
    return UsageError(f"{model.source.label} cannot be saved", why, "keep the model itself")


def foreign(model: Model, s: Segment, threads: int, sizes: Mapping[str, int]) -> Foreign:
    """A segment of a model in onnxruntime. Raises ModelError where that is not installed, and where
    it does not run it, as for inputs whose shapes do not fit each other."""
    if ort.available() is None:
        what = ", ".join(dict.fromkeys(n.op.title for n in s.nodes))
        raise ModelError(
            f"{model.source.label}: {what} run only in onnxruntime", "it is not installed",
            'pip install "superopt[ort]"',
        )  # fmt: skip
    names = model.names
    outputs = tuple(names[v] for v in s.outputs)
    given = {names[v]: v for v in s.inputs}
    part, wanted = extracted(model, {n: v.type for n, v in given.items()}, outputs)
    own = {i.name: i for i in model.graph.inputs}
    try:
        session = ort.session_of_part(part, threads)
    except ModelError as e:
        if UNFIT not in e.why:
            raise
        inputs = ", ".join(f"{i.name}: {i.type}" for i in model.graph.inputs)
        raise ModelError(
            e.what, f"{e.why}; the inputs: {inputs}",
            "give inputs that fit each other, or check the model with onnx.checker",
        ) from e  # fmt: skip
    some = {n: given.get(n) or own[n] for n in wanted}
    return Foreign(s, session, some, outputs, _specs(model.graph, s, sizes))


def _specs(graph: g.Graph, s: Segment, sizes: Mapping[str, int]) -> tuple[Spec | None, ...]:
    """Of a whole model nothing is read by kernels."""
    out: list[Spec | None] = []
    for v in s.outputs:
        t, known = v.type, len(s.nodes) < len(g.nodes(graph))
        known = known and t.dtype not in (None, STRING) and t.shape is not None
        known = known and all(ix.symbols(d) <= sizes.keys() for d in t.shape or ())
        out.append((shape_at(t, sizes), dtype_of(t)) if known else None)
    return tuple(out)
