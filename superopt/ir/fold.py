"""Fold constants: compute what depends on constants only, within memory bounds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass

import numpy as np

from superopt.ir import graph as g
from superopt.ir.constancy import is_constant, is_sized
from superopt.ir.decisions import decides, decisive_values
from superopt.ir.evaluate import node_results
from superopt.te.domain import Domain, Reals
from superopt.te.dtype import F64, STRING, to_numpy
from superopt.te.expr import TensorType

GROWTH = 2.01  # bound on the bytes of constants, relative to the original's
SLACK = 4096  # more bytes, so that tiny models fold at all
ROOM = 1 << 26  # bound on an intermediate result, unless all results together are larger
LARGE = 1 << 20  # bytes from which on a transposed constant is a view instead of a copy
RECOMPUTED = 1 << 16  # bytes from which on a result is recomputed instead of held
_LARGEST = 1 << 62


@dataclass(frozen=True, slots=True)
class Folded:
    """The folded graph, the number of removed nodes, bytes of constants, and reasons for nodes not
    folded."""

    graph: g.Graph
    nodes: int
    bytes_before: int
    bytes_after: int
    skipped: tuple[str, ...]


def fold(graph: g.Graph, *, limit_bytes: int | None = None, lazily: bool = False) -> Folded:
    """Return `graph` with every constant subgraph that a non-constant node or an output reads
    folded.

    limit_bytes: the bound on all constants of the result; by default MAX_CONSTANT_GROWTH times the
    original's. lazy: recompute a large constant whenever it is read, and do not copy one that is
    only transposed. The largest results stay nodes, and so do nodes that fail (they may never run).
    Floats are computed in float64 and rounded once, except before discontinuous operators and for
    rounding-sensitive fp16 and bf16 values (rounding_sensitive.py).
    """
    order = g.nodes(graph)
    before = _weight(g.constants(graph))
    allowed = limit_bytes if limit_bytes is not None else int(GROWTH * before) + SLACK
    left: dict[g.Node, str] = {}
    memo: dict[g.Node, bool] = {}
    for n in order:
        most = max(map(_nbytes, n.types))
        if max(allowed, ROOM) < most < _LARGEST and is_constant(g.item(n, 0), memo):
            left[n] = f"{n} would take {most} bytes"
            memo[n] = False
    decisive = decisive_values(graph)
    change: dict[g.Value, g.Value] = {}
    while True:
        roots = _within(graph, order, left, allowed)
        count = len(left)
        for v, found in _values([v for v in roots if v not in change], left, decisive, lazily):
            change[v] = found
        if len(left) == count:
            break
    chosen = {v: change[v] for v in roots}
    done = g.replace(graph, chosen) if chosen else graph
    after = _weight(g.constants(done))
    gone = len(order) - len(g.nodes(done))
    return Folded(done, gone, before, after, tuple(left.values()))


def _nbytes(t: TensorType) -> int:
    """Return the bytes of a value; more than any limit for unknown sizes and strings."""
    if not is_sized(t) or t.dtype == STRING:
        return _LARGEST
    count = 1
    for d in t.shape or ():
        count *= d if isinstance(d, int) else 0
    assert t.dtype is not None
    return -(-count * t.dtype.bits // 8)  # as in a file: 4-bit elements are packed


def _weight(constants: Iterable[g.Constant]) -> int:
    """Return the bytes of constants in a file."""
    return sum(n if (n := _nbytes(c.type)) < _LARGEST else c.nbytes for c in constants)


def _frontier(
    graph: g.Graph, order: Sequence[g.Node], left: dict[g.Node, str]
) -> dict[g.Value, None]:
    """Return the computed constant values that an output or a non-constant node reads."""
    memo = dict.fromkeys(left, False)
    found: dict[g.Value, None] = {}
    read = [v for n in order if not is_constant(g.item(n, 0), memo) for v in n.inputs]
    for v in (*read, *graph.outputs):
        if v is not None and g.producer(v) is not None and is_constant(v, memo):
            found[v] = None
    return found


def _within(
    graph: g.Graph, order: Sequence[g.Node], left: dict[g.Node, str], allowed: int
) -> list[g.Value]:
    """Return the values to fold so that all constants stay within `max_bytes`. Values that are too
    large are added to `skipped`; their operands may be folded instead."""
    while True:
        roots = _frontier(graph, order, left)
        sizes = {v: _nbytes(v.type) for v in roots}
        total = _weight(_direct(graph, roots)) + sum(sizes.values())
        if total <= allowed or not roots:
            return list(roots)
        for v in sorted(roots, key=lambda v: -sizes[v]):
            n = g.producer(v)
            assert n is not None
            left[n] = f"{n} would take {sizes[v]} bytes" if sizes[v] < _LARGEST else f"{n}: strings"
            total -= sizes[v]
            if total <= allowed:
                break


def _direct(graph: g.Graph, folded: Iterable[g.Value]) -> list[g.Constant]:
    """Return the constants that are still read once the values in `folded` are constants."""
    found: dict[g.Constant, None] = {}
    stack: list[g.Value] = list(graph.outputs)
    seen: set[g.Value] = set(folded)
    while stack:
        v = stack.pop()
        if v in seen:
            continue
        seen.add(v)
        if isinstance(v, g.Constant):
            found[v] = None
        stack.extend(g.operands(v))
    return list(found)


def _values(
    roots: Sequence[g.Value], left: dict[g.Node, str], decisive: Set[g.Value], lazily: bool
) -> Iterator[tuple[g.Value, g.Constant]]:
    """Yield each root with its constant; a node that fails is added to `skipped` and its roots are
    dropped."""
    for v, array in _arrays(roots, left, decisive):
        n = g.producer(v)
        assert n is not None
        again = (_lying(n, array) or _computed_again(v, array, decisive)) if lazily else None
        yield v, again or g.constant(array)


def _arrays(
    roots: Sequence[g.Value], left: dict[g.Node, str], decisive: Set[g.Value]
) -> Iterator[tuple[g.Value, np.ndarray]]:
    """Yield each root with its array; a node that fails is added to `skipped` and its roots are
    dropped.

    Results are dropped after their last use to bound memory.
    """
    wanted = dict.fromkeys(roots)
    order = g.nodes(roots)
    uses: dict[g.Node, int] = {}
    for n in order:
        for p in _producers(n):
            uses[p] = uses.get(p, 0) + 1
    held: dict[g.Node, list[np.ndarray]] = {}
    for n in order:
        if all(p in held for p in _producers(n)):
            try:
                held[n] = _results(n, held, decisive)
            except (ValueError, TypeError, LookupError, ArithmeticError, MemoryError) as e:
                left[n] = f"{n}: {e}"
        for p in _producers(n):
            uses[p] -= 1
            if not uses[p]:
                held.pop(p, None)
        if n not in held:
            continue
        for v, array in zip(g.results(n), held[n], strict=True):
            if v in wanted:
                yield v, _rounded(array, v.type)
        if not uses.get(n):
            del held[n]


def _lying(n: g.Node, array: np.ndarray) -> g.Constant | None:
    """Return a large transposed constant as a view of the original; else None."""
    if n.op.name != "Transpose" or array.nbytes < LARGE:
        return None
    (given,) = n.inputs
    if not isinstance(given, g.Constant):
        return None
    key = ("transposed", given.key, n.attrs)
    view = array.view()
    view.flags.writeable = False
    return g.constant(type=n.type, key=key, load=lambda: view, nbytes=array.nbytes)


def _computed_again(v: g.Value, array: np.ndarray, decisive: Set[g.Value]) -> g.Constant | None:
    """Return a large constant that is recomputed from the original's whenever it is read, which is
    once for each program, when it is packed: memory then does not hold it beside its packed form.
    """
    if array.nbytes < RECOMPUTED:
        return None

    def load() -> np.ndarray:
        return next(_arrays([v], {}, decisive))[1]

    key = g.content_key(array)
    return g.constant(type=v.type, key=key, load=load, nbytes=array.nbytes)


def _producers(n: g.Node) -> list[g.Node]:
    return [p for v in n.inputs if v is not None and (p := g.producer(v)) is not None]


def _results(
    n: g.Node, held: dict[g.Node, list[np.ndarray]], decisive: Set[g.Value]
) -> list[np.ndarray]:
    arrays: list[np.ndarray | None] = []
    for v in n.inputs:
        if v is None:
            arrays.append(None)
        elif isinstance(v, g.Constant):
            arrays.append(v.load())
        else:
            p = g.producer(v)
            assert p is not None
            arrays.append(held[p][v.index if isinstance(v, g.Item) else 0])
    types = [None if v is None else v.type for v in n.inputs]
    moved = "data" in n.op.laws and all(
        a is None or t is None or _is_native(a, t) for a, t in zip(arrays, types, strict=True)
    )
    pointwise = "elementwise" in n.op.laws and not decisive.isdisjoint(g.results(n))
    if moved or pointwise or _jumps(n):
        arrays = [
            a if a is None or t is None else _rounded(a, t)
            for a, t in zip(arrays, types, strict=True)
        ]
        domain: Domain = Reals()
    else:
        domain = Reals(F64)
    out = node_results(n, arrays, domain)
    for array, t in zip(out, n.types, strict=True):
        if array.shape != t.shape:
            raise ValueError(f"folding returned the shape {array.shape}, not that of {t}")
    return out


def _jumps(n: g.Node) -> bool:
    """True if operands are rounded to their types first, as at run time."""
    floats = any(v is not None and v.type.dtype and v.type.dtype.is_float for v in n.inputs)
    integers = any(t.dtype is not None and not t.dtype.is_float for t in n.types)
    return n.op.name in ("Cast", "CastLike") or decides(n) or (floats and integers)


def _is_native(array: np.ndarray, t: TensorType) -> bool:
    return t.dtype is not None and array.dtype == to_numpy(t.dtype)


def _rounded(array: np.ndarray, t: TensorType) -> np.ndarray:
    """Return `array` in the element type of `t`, with its rank."""
    assert t.dtype is not None
    with np.errstate(all="ignore"):
        return np.asarray(array).astype(to_numpy(t.dtype), copy=False)
