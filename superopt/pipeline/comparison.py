"""Comparison of the outputs of two models on one set of inputs.

`verify` decides by it and `optimize` accepts a file by it, so `verify` does not refute on the same
inputs what `optimize` wrote.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from superopt import ort
from superopt.check.compare import ROUNDED_TOLERANCE, compare, compare_exact, failed
from superopt.check.inputs import Feeds
from superopt.check.numeric import Reference, Result, Unrunnable, Values, values_at
from superopt.check.regions import opaque_nodes
from superopt.errors import OutOfTime
from superopt.ir import graph as ir_graph
from superopt.onnx_io.read.source import Source
from superopt.pipeline.opaque_nodes import OpaqueNodes
from superopt.pipeline.original import Original
from superopt.pipeline.runtime import Got, Session
from superopt.te.eval.domain import Reals
from superopt.te.expr.dtype import F64


@dataclass(frozen=True, slots=True)
class Second:
    """The model that is compared with the original.

    label: its name in messages; source: where its opaque nodes were read from; graph: as in the
    file; session: the file in ONNX Runtime.
    """

    label: str
    source: Source
    graph: ir_graph.Graph
    session: Session


def output_reference(original: Original, n: int) -> Reference | str:
    """Return the outputs of the whole original on set number `n`; a text if they cannot be
    compared. `exact` is float64 if every opaque node has a float64 value."""
    if not opaque_nodes(original.model.graph):
        return original.reference(n)
    known = original.outputs.get(n)
    if known is None:
        begin = time.monotonic()
        known = original.outputs[n] = _with_opaque(original, original.sets[n].feed)
        took = time.monotonic() - begin
        original.seconds += took
        original.slowest = max(original.slowest, took)
    return known


def _with_opaque(original: Original, feed: Feeds) -> Reference | str:
    names = original.names
    first, second = original.session.run(feed), original.session.run(feed)
    if isinstance(first, ort.Failed) or isinstance(second, ort.Failed):
        return f"{feed.kind} inputs: onnxruntime does not run both models"
    random = [n for n in names if not _same(first.get(n), second.get(n))]
    if random:
        return f"output {random[0]} is random: two runs of one model differ"
    rounded = runtime_reference(feed, names, first)
    try:
        exact = _in_float64(original.model.graph, original.model.source, feed)
    except Unrunnable:
        return rounded
    except MemoryError as e:
        return f"{feed.kind} inputs: no memory to evaluate the original: {e}"
    except OutOfTime as e:
        return f"{feed.kind} inputs: {e.what}: {e.why}"
    return replace(rounded, exact=exact, rounded=False)


def runtime_reference(feed: Feeds, names: Sequence[str], got: Got) -> Reference:
    """Return the results of a run at the outputs `names`; they stand for the exact values, too."""
    own = tuple(_array(got.get(name)) for name in names)
    exact = tuple(a.astype(np.float64) if a is not None and _floating(a) else a for a in own)
    return Reference(feed, {}, exact, own, rounded=True)


def compare_outputs(
    original: Original, ref: Reference, second: Second, *, part: float, exactly: bool
) -> list[Result | str] | str:
    """Compare the outputs of `compared_model` with `ref`. Return, for each output, a result or a
    text that says why there is none; or one text if nothing can be compared.

    tolerance_part: the allowed part of the tolerances of `compare`; compare_float64: compare in
    float64, too, if both models have float64 values.
    """
    found = _found(original, ref, second)
    if isinstance(found, str):
        return found
    names = original.names
    exact: Values | None = None
    if exactly and not ref.rounded:
        with contextlib.suppress(Unrunnable, MemoryError):
            exact = _in_float64(second.graph, second.source, ref.feed)
    results: list[Result | str] = []
    for k, name in enumerate(names):
        r, o, c = ref.exact[k], ref.own[k], found.get(name)
        if r is None or o is None:
            results.append(f"{name}: the original's output is not a tensor")
            continue
        dtype = original.regions.places[k].value.type.dtype
        if not isinstance(c, np.ndarray):
            compared = failed("it is not a tensor, or has no value there")
        else:
            compared = compare(dtype, r, o, c, part)
        own = None if exact is None else exact[k]
        if not compared.failure and own is not None and r.shape == own.shape and _floating(r):
            why = compare_exact(r, own, ROUNDED_TOLERANCE)
            compared = failed(why) if why else compared
        results.append(Result(name, ref.feed.kind, compared))
    return results


def _found(original: Original, ref: Reference, second: Second) -> Got | str:
    kind = ref.feed.kind
    refused = second.session.refused
    got = None if refused else second.session.run(ref.feed)
    if isinstance(got, ort.Failed):
        if ref.free or got.kind != "error":
            return f"{kind} inputs: {second.label}: {got.message}"
        return {}  # it fails where the original does not: a difference
    if got is not None:
        return got
    if opaque_nodes(original.model.graph) or opaque_nodes(second.graph):
        return f"{kind} inputs: onnxruntime does not run both models"
    try:
        found = values_at(second.graph, ref.feed, {}, Reals())
    except Unrunnable:
        return {}
    return {n: a for n, a in zip(original.names, found, strict=True) if a is not None}


def _in_float64(graph: ir_graph.Graph, source: Source, feed: Feeds) -> Values:
    """Return the outputs of a graph in float64. Raises Unrunnable if they have no value."""
    return values_at(graph, feed, {}, Reals(F64), opaque=OpaqueNodes(source))


def _array(v: object) -> np.ndarray | None:
    return v if isinstance(v, np.ndarray) else None


def _floating(a: np.ndarray) -> bool:
    return a.dtype.kind == "f" or a.dtype.kind == "V" or "float" in a.dtype.name


def _same(a: object, b: object) -> bool:
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        return True  # non-tensors are not compared
    return a.shape == b.shape and bool(np.array_equal(a, b, equal_nan=a.dtype.kind in "fc"))
