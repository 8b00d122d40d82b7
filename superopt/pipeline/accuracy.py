"""`accuracy`: a compiled model against the original in float64, on inputs that are drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from superopt.check.compare import Compared, compare
from superopt.check.inputs import feeds
from superopt.errors import UsageError
from superopt.ir.evaluate import evaluate
from superopt.ir.graph import Graph, Value, nodes
from superopt.onnx_io.import_.model import Model
from superopt.pipeline.shapes import representative
from superopt.pipeline.sized import sized
from superopt.plan.graph.recurrent_layer import is_recurrent
from superopt.plan.graph.recurrent_unroll import unroll_recurrent
from superopt.report.accuracy import Accuracy, Output
from superopt.te.eval.domain import Reals
from superopt.te.expr.dtype import BF16, F16, F32, F64, DType


class Compiled(Protocol):
    @property
    def model(self) -> Model: ...
    @property
    def precision(self) -> str: ...
    def run(self, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]: ...


MAX_EVALUATED_STEPS = 1024  # of a recurrent layer, of all directions: some 5 s of numpy
# What is allowed of outputs of 32 bits, by the precision: that of a type of as many digits, whose
# rounding the original's own error is measured with.
TYPES: Mapping[str, DType] = {"fp32": F32, "tf32": F16, "fp16": F16, "bf16": BF16}


def accuracy(exe: Compiled, shapes: Mapping[str, int], sets: int) -> Accuracy:
    """By DESIGN section 14: each output within its precision's tolerance of the original's in
    float64, or no worse than 4 times what the original errs where all of it is of that precision.

    Outputs that come of nodes without an expression are left out, and named.

    Raises UsageError where no inputs can be drawn, and where no output can be evaluated.
    """
    if sets < 1:
        raise UsageError(f"{sets} sets of inputs", "they show nothing", "ask for one at least")
    at = representative(exe.model, shapes)
    short, graph = TYPES[exe.precision], _evaluable(exe.model, at)
    names = [v.name or "" for v in exe.model.source.model.graph.outputs]
    of = dict(zip(names, graph.outputs, strict=True))
    apart = {n: why for n, v in of.items() if (why := _without(v))}
    # Of the others there are values; where there are none, what is evaluated says why.
    kept = {n: v for n, v in of.items() if n not in apart} or of
    graph = replace(graph, outputs=tuple(kept.values()))
    worst: dict[str, Compared] = {}
    sizes: dict[str, float] = {}
    drawn = feeds(exe.model.graph, at, 0)
    for _ in range(sets):
        try:
            given = next(drawn).arrays
            exact = evaluate(graph, given, Reals(F64))
            own = evaluate(graph, given, Reals(None if short == F32 else short))
        except (TypeError, KeyError, ValueError, IndexError, MemoryError) as e:
            raise UsageError(
                f"{exe.model.source.label}: the original has no values to compare with", str(e),
                "compare outputs yourself, of inputs that the model is for",
            ) from None  # fmt: skip
        got = {n: x for n, x in exe.run(given).items() if n in kept}
        rows = zip(got.items(), graph.outputs, exact, own, strict=True)
        for (name, x), v, wanted, original in rows:
            kind, lost = v.type.dtype, False
            if kind is not None and kind.is_float:
                kind = short if kind == F32 else kind
                with np.errstate(over="ignore"):
                    if short != F32:  # what is beyond its numbers excuses nothing
                        beyond = np.isfinite(wanted) & ~np.isfinite(original)
                        original = np.where(beyond, wanted, original)
                        lost = exe.precision != "tf32" and bool(beyond.any())
                    original = original.astype(x.dtype)
            found = compare(kind, wanted, original, x)
            if found.failure and (kind is None or not kind.is_float):
                # Integers that floats tell are others where these are rounded.
                found = compare(kind, wanted, wanted.astype(x.dtype), x)
            found = replace(found, original_max=np.inf) if lost else found
            if name not in worst or _rank(found) > _rank(worst[name]):
                worst[name], sizes[name] = found, _rms(wanted)
    outputs = tuple(
        Output(name, sizes[name], c.max_error, c.mean_error, c.original_max, c.failure)
        for name, c in worst.items()
    )
    return Accuracy(exe.model.source.label, exe.precision, sets, outputs, tuple(apart.items()))


def _evaluable(model: Model, at: Mapping[str, int]) -> Graph:
    """The model's graph, with the steps of recurrent layers, which have no expression, written out
    if these are not too many."""
    if at and any(map(is_recurrent, nodes(model.graph))):
        model = sized(model, at) or model  # their sizes are to be numbers
    return unroll_recurrent(model.graph, max_steps=MAX_EVALUATED_STEPS)


def _without(v: Value) -> str:
    """Why an output has no value in float64; empty where it has one."""
    found = next((n for n in nodes([v]) if n.op.opaque), None)
    return "" if found is None else f"{found.op.title} has no tensor expression"


def _rms(x: np.ndarray) -> float:
    """Of its finite numbers."""
    some = np.asarray(x, np.float64)
    some = some[np.isfinite(some)]
    return float(np.sqrt((some**2).mean())) if some.size else 0.0


def _rank(c: Compared) -> tuple[bool, float]:
    return bool(c.failure), c.max_error
