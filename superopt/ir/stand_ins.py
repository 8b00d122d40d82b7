"""Stand-ins for inputs and weights, so that equal subgraphs are one object."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from math import prod

import numpy as np

from superopt.ir import graph
from superopt.te.expr.dtype import to_numpy
from superopt.te.expr.tensor import TensorType

_MAX_INSPECTED_BYTES = 1 << 20  # rules inspect the values of constants up to this size
_MAX_KEPT_BYTES = 128  # constants up to this size are kept
_KEY = "stand-in"  # of a stand-in begins so
_MAX_MAGNITUDE = 1000.0  # constants with larger elements are kept: no sum is regrouped around them


@cache
def numbered_input(number: int, t: TensorType, mark: str = "") -> graph.Input:
    """Return input number `number` of type `t`: the same object for the same mark."""
    return graph.Input(f"v{number}{mark}", t)


def stand_in(c: graph.Constant, number: int, mark: str = "") -> graph.Constant:
    """Return a stand-in of the type of `c`, or `c` itself if a rule may inspect its values. It is
    another one for each mark."""
    t = c.type
    if t.dtype is None or t.shape is None or c.nbytes <= _MAX_KEPT_BYTES or not t.dtype.is_float:
        return c
    if c.nbytes <= _MAX_INSPECTED_BYTES:
        flat = c.load().reshape(-1)
        if (flat == flat[0]).all() or not np.abs(flat.astype(np.float64)).max() <= _MAX_MAGNITUDE:
            return c
    return _numbered_constant(t, number, mark)


def constant_stand_in(v: graph.Value, number: int, mark: str = "") -> graph.Value:
    """Return a stand-in for a value that is computed from constants; `v` itself if a rule may
    inspect its values. It is not computed."""
    if isinstance(v, graph.Constant):
        return stand_in(v, number, mark)
    t = v.type
    if t.dtype is None or t.shape is None or not t.dtype.is_float:
        return v
    count = prod(d for d in t.shape if isinstance(d, int))
    is_small = count * t.dtype.bits // 8 <= _MAX_KEPT_BYTES
    return v if is_small else _numbered_constant(t, number, mark)


def reads_stand_in(v: graph.Value) -> bool:
    """True if a value is computed from a stand-in: its elements mean nothing."""
    return any(
        isinstance(c.key, tuple) and isinstance(c.key[0], str) and c.key[0].startswith(_KEY)
        for c in graph.constants([v])
    )


def folded_stand_in(v: graph.Value, load: Callable[[], np.ndarray], nbytes: int) -> graph.Constant:
    """Return a stand-in for a value that is computed from stand-ins. load: computes it."""
    return graph.constant(type=v.type, key=(_KEY, v), load=load, nbytes=nbytes)


def shrink_tables(g: graph.Graph, max_bytes: int) -> graph.Graph:
    """Return the graph with fewer rows of the larger stand-ins of which Gather nodes read rows, and
    nothing else: their times hardly depend on it, those of loading the model do."""
    readers = graph.users(g)
    new: dict[graph.Value, graph.Value] = {}
    for c in graph.constants(g):
        if c.nbytes > max_bytes and reads_stand_in(c) and _reads_rows(readers[c], c):
            number, rows = len(new), int(c.type.shape[0])  # type: ignore[index, arg-type]
            fewer = max(1, rows * max_bytes // c.nbytes)
            shape = (fewer, *(c.type.shape or ())[1:])
            new[c] = _numbered_constant(TensorType(c.type.dtype, shape), number, "rows")
    if not new:
        return g
    for n in graph.nodes(g):
        if not new.keys().isdisjoint(v for v in n.inputs if v is not None):
            given = tuple(None if v is None else new.get(v, v) for v in n.inputs)
            made = graph.intern_node(n.op, given, n.attrs, n.types)
            new.update(zip(graph.results(n), graph.results(made), strict=True))
    return graph.Graph(g.inputs, tuple(new.get(v, v) for v in g.outputs))


def _reads_rows(readers: Iterable[graph.Node], c: graph.Constant) -> bool:
    return all(
        n.op.name == "Gather" and n.attr("axis") == 0 and n.inputs[0] is c and n.inputs[1] is not c
        for n in readers
    )


def _numbered_constant(t: TensorType, number: int, mark: str) -> graph.Constant:
    """Return constant number `number` of type `t`: the same object for the same number."""
    assert t.dtype is not None
    assert t.shape is not None
    shape = tuple(int(d) for d in t.shape)  # type: ignore[arg-type]
    kind = to_numpy(t.dtype)

    def load() -> np.ndarray:
        return np.resize((np.arange(7) + number).astype(kind), shape)

    key = (_KEY + mark, number, t)
    return graph.constant(type=t, key=key, load=load, nbytes=prod(shape) * kind.itemsize)
