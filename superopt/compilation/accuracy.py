"""`accuracy`: a compiled model against the original in float64, on random inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain, count
from typing import Any, Protocol

import numpy as np

from superopt.check.compare import Comparison, compare_output
from superopt.check.near_ties import compare_near_ties, worst_near_ties
from superopt.check.quantization_steps import output_step
from superopt.check.quantizers import depends_on_quantizer
from superopt.check.random_inputs import Feeds, random_feeds
from superopt.compilation.frontend.static_sizes import with_static_sizes
from superopt.errors import UsageError
from superopt.ir.evaluate import evaluate
from superopt.ir.graph import Graph, Value, nodes
from superopt.loading.representative_sizes import representative_sizes
from superopt.onnx_io.import_.model import Model
from superopt.plan.graph.recurrent_layer import is_recurrent
from superopt.plan.graph.recurrent_unroll import unroll_recurrent
from superopt.plan.graph.round_operands import round_int8_levels, round_operands
from superopt.report.compilation.accuracy import Accuracy, OutputAccuracy
from superopt.te.eval.domain import Reals
from superopt.te.expr.dtype import BF16, F16, F32, F64, DType


class CompiledModel(Protocol):
    @property
    def model(self) -> Model: ...
    @property
    def precision(self) -> str: ...
    def run(self, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]: ...


MAX_UNROLLED_STEPS = 1024  # steps of a recurrent layer, over all directions: about 5 s in numpy
# The dtype whose tolerance applies to fp32 outputs, by precision. The original's own error is
# measured with the same rounding.
PRECISION_DTYPES: Mapping[str, DType] = {"fp32": F32, "tf32": F16, "fp16": F16, "bf16": BF16}


def measure_accuracy(
    exe: CompiledModel, shapes: Mapping[str, int], set_count: int, rounds_operands: bool = False
) -> Accuracy:
    """Compare each output with the original in float64: it must be within its precision's
    tolerance, or its error at most 4 times that of the original evaluated entirely in that
    precision, or of quantized values that become their neighbours near ties, or within the
    quantization steps that rounding explains; with `rounds_operands`,
    the original is evaluated in float32 with the operands of products rounded. The original's
    MatMulNBits at `accuracy_level` 4 have activations of 8 bits, as in ONNX Runtime.

    Outputs that depend on nodes without an expression are skipped, and named.

    Raises UsageError if no inputs can be drawn, or if no output can be evaluated.
    """
    if set_count < 1:
        raise UsageError(
            f"{set_count} sets of inputs", "at least one is needed", "use another number"
        )
    at = representative_sizes(exe.model, shapes)
    short, graph = PRECISION_DTYPES[exe.precision], _evaluable_graph(exe.model, at)
    names = [v.name or "" for v in exe.model.source.model.graph.outputs]
    of = dict(zip(names, graph.outputs, strict=True))
    apart = {n: why for n, v in of.items() if (why := _unevaluable_reason(v))}
    # If no output can be evaluated, evaluating them raises the reason.
    kept = {n: v for n, v in of.items() if n not in apart} or of
    graph = replace(graph, outputs=tuple(kept.values()))
    rounds_operands &= short != F32
    rounded = round_operands(graph, short) if rounds_operands else graph
    rounded = round_int8_levels(rounded, at)
    is_float32 = rounds_operands or short == F32
    worst: dict[str, Comparison] = {}
    sizes: dict[str, float] = {}
    steps = {n: output_step(v, at) for n, v in kept.items()}
    drawn = _all_feeds(exe.model.graph, at)
    for _ in range(set_count):
        try:
            given = next(drawn).arrays
            exact = evaluate(graph, given, Reals(F64))
            own = evaluate(rounded, given, Reals(None if is_float32 else short))
            wide = own if all(map(_is_finite, own)) else evaluate(graph, given, Reals(None))
        except (TypeError, KeyError, ValueError, IndexError, MemoryError) as e:
            raise UsageError(
                f"{exe.model.source.label}: the original cannot be evaluated", str(e),
                "compare outputs yourself, on inputs that are typical of the model",
            ) from None  # fmt: skip
        got = {n: x for n, x in exe.run(given).items() if n in kept}
        rows = zip(got.items(), graph.outputs, exact, own, wide, strict=True)
        for (name, x), v, wanted, original, in_float32 in rows:
            kind, lost = v.type.dtype, False
            if kind is not None and kind.is_float:
                kind = short if kind == F32 else kind
                with np.errstate(over="ignore"):
                    # overflow of the original excuses no error, unless it overflows in float32
                    if short != F32:
                        beyond = np.isfinite(wanted) & ~np.isfinite(original)
                        beyond &= np.isfinite(in_float32)
                        original = np.where(beyond, wanted, original)
                        lost = exe.precision != "tf32" and bool(beyond.any())
                    original = original.astype(x.dtype)
            found = compare_output(kind, wanted, original, x, step=steps[name])
            if found.failure and steps[name] is None and (kind is None or not kind.is_float):
                # Integers computed from floats may differ where these are rounded.
                found = compare_output(kind, wanted, wanted.astype(x.dtype), x)
            if found.failure and steps[name] is None and depends_on_quantizer(v):
                one = replace(graph, outputs=(v,))
                near = worst_near_ties(lambda d: evaluate(one, given, d), [wanted])  # noqa: B023
                found = _within_near_ties(found, kind, wanted, next(near), x)
            found = replace(found, original_max=np.inf) if lost else found
            if name not in worst or _severity(found) > _severity(worst[name]):
                worst[name], sizes[name] = found, _finite_rms(wanted)
    outputs = tuple(
        OutputAccuracy(
            name, sizes[name], c.max_error, c.mean_error, c.original_max, c.failure, c.steps
        )
        for name, c in worst.items()
    )
    return Accuracy(exe.model.source.label, exe.precision, set_count, outputs, tuple(apart.items()))


def _within_near_ties(
    found: Comparison,
    kind: DType | None,
    wanted: np.ndarray,
    near: np.ndarray | None,
    x: np.ndarray,
) -> Comparison:
    """Return the comparison, passed if the error is like that of values that were quantized to
    their neighbours, near the middle of two steps."""
    if near is None or kind is None or not kind.is_float:
        return found
    return compare_near_ties(kind, wanted, near.astype(x.dtype), x) or found


def _all_feeds(graph: Graph, sizes: Mapping[str, int]) -> Iterator[Feeds]:
    """Yield sets of inputs of each kind, again and again with another seed."""
    return chain.from_iterable(random_feeds(graph, sizes, seed) for seed in count())


def _is_finite(x: np.ndarray) -> bool:
    return x.dtype.kind in "biu" or bool(np.isfinite(np.asarray(x, np.float64)).all())


def _evaluable_graph(model: Model, sizes: Mapping[str, int]) -> Graph:
    """Return the model's graph, with recurrent layers, which have no expression, unrolled if they
    have few steps."""
    if sizes and any(map(is_recurrent, nodes(model.graph))):
        model = with_static_sizes(model, sizes) or model  # unrolling needs static sizes
    return unroll_recurrent(model.graph, max_steps=MAX_UNROLLED_STEPS)


def _unevaluable_reason(v: Value) -> str:
    """Return why an output cannot be evaluated in float64; empty if it can."""
    found = next((n for n in nodes([v]) if n.op.opaque), None)
    return "" if found is None else f"{found.op.title} has no tensor expression"


def _finite_rms(x: np.ndarray) -> float:
    """Return the root mean square of the finite elements."""
    some = np.asarray(x, np.float64)
    some = some[np.isfinite(some)]
    return float(np.sqrt((some**2).mean())) if some.size else 0.0


def _severity(c: Comparison) -> tuple[bool, int, float]:
    return bool(c.failure), c.steps or 0, c.max_error
