"""Inputs on which float arithmetic and comparisons differ from real numbers.

Finite sets mix ties, zeros of both signs, subnormal numbers, and addends that a sum absorbs.
Non-finite sets put NaN and infinities among these, alone and as whole rows, since a row of -inf
makes a Softmax NaN.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from superopt.check.random_inputs import Feeds, concrete_type, index_limit, random_array
from superopt.ir import graph as ir_graph
from superopt.te.expr.dtype import to_numpy
from superopt.te.expr.tensor import TensorType

LARGE_ADDEND = 100.0  # absorbs an addend of LARGE_ADDEND * eps / 8
TIED_SET_PERIOD = 4  # in every such set, all inputs of one type are drawn alike
NONFINITE_ROW_FRACTION = 0.3  # of the rows are one non-finite number
NONFINITE_ELEMENT_FRACTION = 0.2  # of the other elements are non-finite


def special_feeds(
    graph: ir_graph.Graph, sizes: Mapping[str, int], seed: int, count: int, *, finite: bool
) -> Iterator[Feeds]:
    """Yield `count` sets of special inputs at `sizes`. finite: without NaN and infinities.

    Raises TypeError for an input that is not a tensor, KeyError for a symbolic dimension without a
    value.
    """
    kind = "special finite" if finite else "non-finite"
    for number in range(count):
        arrays: dict[str, np.ndarray] = {}
        for k, i in enumerate(graph.inputs):
            t = concrete_type(i.type, sizes)
            stream = 0 if number % TIED_SET_PERIOD == TIED_SET_PERIOD - 1 else k
            rng = np.random.default_rng((seed, int(finite), number, stream))
            if t.dtype is not None and t.dtype.is_float:
                arrays[i.name] = _special_floats(t, number, finite, rng)
            else:
                arrays[i.name] = random_array(t, "normal", index_limit(graph, i, sizes), rng)
        yield Feeds(f"{kind}, set {number}", arrays, sizes)


def _special_floats(
    t: TensorType, number: int, finite: bool, rng: np.random.Generator
) -> np.ndarray:
    assert t.dtype is not None
    assert t.shape is not None
    kind = to_numpy(t.dtype)
    shape = tuple(int(d) for d in t.shape)  # type: ignore[arg-type]
    array = rng.choice(_special_values(kind), shape).astype(kind)
    if finite or t.dtype.bits < 16:  # smaller floats have no infinities
        return array
    corners = np.array([np.nan, np.inf, -np.inf])
    if number < len(corners):
        return np.full(shape, corners[number]).astype(kind)
    rows = rng.random((*shape[:-1], 1) if shape else ()) < NONFINITE_ROW_FRACTION
    array = np.where(
        rng.random(shape) < NONFINITE_ELEMENT_FRACTION, rng.choice(corners, shape), array
    )
    row = rng.choice(corners, (*shape[:-1], 1) if shape else ())
    return np.where(rows, row, array).astype(kind)


def _special_values(kind: np.dtype) -> np.ndarray:
    if kind.kind != "f":  # of ml_dtypes
        return np.array([0.0, -0.0, 1.0, -1.0, 2.0, 0.5])
    info = np.finfo(kind)
    absorbed = LARGE_ADDEND * float(info.eps) / 8
    some = [1.0, 2.0, 0.5, LARGE_ADDEND, absorbed, float(info.smallest_subnormal)]
    return np.array([0.0, -0.0, *some, *(-x for x in some)])
