"""Fold constants: compute what depends on constants only, within memory bounds."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass

import numpy as np

from superopt.ir import graph as ir_graph
from superopt.ir.constant_values import has_static_shape, is_constant
from superopt.ir.evaluate import node_results
from superopt.ir.rounding_sensitive import is_discontinuous, rounding_sensitive_values
from superopt.ir.stand_ins import folded_stand_in, reads_stand_in
from superopt.te.eval.domain import Domain, Reals
from superopt.te.expr.dtype import F64, STRING, to_numpy
from superopt.te.expr.tensor import TensorType

MAX_CONSTANT_GROWTH = 2.01  # bound on the bytes of constants, relative to the original's
EXTRA_CONSTANT_BYTES = 4096  # more bytes, so that tiny models fold at all
MAX_INTERMEDIATE_BYTES = (
    1 << 26
)  # bound on an intermediate result, unless all results together are larger
MIN_VIEW_BYTES = 1 << 20  # bytes from which on a transposed constant is a view instead of a copy
MIN_RECOMPUTE_BYTES = 1 << 16  # bytes from which on a result is recomputed instead of held
_UNBOUNDED_BYTES = 1 << 62


@dataclass(frozen=True, slots=True)
class FoldResult:
    """The folded graph, the number of removed nodes, bytes of constants, and reasons for nodes not
    folded."""

    graph: ir_graph.Graph
    removed_nodes: int
    bytes_before: int
    bytes_after: int
    skipped: tuple[str, ...]


def fold_constants(
    graph: ir_graph.Graph,
    *,
    limit_bytes: int | None = None,
    lazy: bool = False,
    kept: Container[ir_graph.Value] = (),
) -> FoldResult:
    """Return `graph` with every constant subgraph that a non-constant node or an output reads
    folded.

    limit_bytes: the bound on all constants of the result; by default MAX_CONSTANT_GROWTH times the
    original's. lazy: recompute a large constant whenever it is read, and do not copy one that is
    only transposed. kept: values that stay nodes where a node reads them that is not folded.
    The largest results stay nodes, and so do nodes that fail (they may never run).
    Floats are computed in float64 and rounded once, except before discontinuous operators and for
    rounding-sensitive fp16 and bf16 values (rounding_sensitive.py).
    """
    order = ir_graph.nodes(graph)
    before = _total_bytes(ir_graph.constants(graph))
    allowed = (
        limit_bytes
        if limit_bytes is not None
        else int(MAX_CONSTANT_GROWTH * before) + EXTRA_CONSTANT_BYTES
    )
    left: dict[ir_graph.Node, str] = {}
    memo: dict[ir_graph.Node, bool] = {}
    for n in order:
        most = max(map(_nbytes, n.types))
        if max(allowed, MAX_INTERMEDIATE_BYTES) < most < _UNBOUNDED_BYTES and is_constant(
            ir_graph.result(n, 0), memo
        ):
            left[n] = f"{n} would take {most} bytes"
            memo[n] = False
    decisive = rounding_sensitive_values(graph)
    change: dict[ir_graph.Value, ir_graph.Value] = {}
    while True:
        roots = [v for v in _values_within_budget(graph, order, left, allowed) if v not in kept]
        count = len(left)
        for v, found in _folded_constants(
            [v for v in roots if v not in change], left, decisive, lazy
        ):
            change[v] = found
        if len(left) == count:
            break
    chosen = {v: change[v] for v in roots}
    done = ir_graph.replace(graph, chosen) if chosen else graph
    after = _total_bytes(ir_graph.constants(done))
    gone = len(order) - len(ir_graph.nodes(done))
    return FoldResult(done, gone, before, after, tuple(left.values()))


def folded_bytes(graph: ir_graph.Graph, kept: Container[ir_graph.Value] = ()) -> int:
    """Return the bytes of the constants that `fold_constants` would compute."""
    sizes = (_nbytes(v.type) for v in _frontier(graph, ir_graph.nodes(graph), {}) if v not in kept)
    return sum(n for n in sizes if n < _UNBOUNDED_BYTES)


def _nbytes(t: TensorType) -> int:
    """Return the bytes of a value; more than any limit for unknown sizes and strings."""
    if not has_static_shape(t) or t.dtype == STRING:
        return _UNBOUNDED_BYTES
    count = 1
    for d in t.shape or ():
        count *= d if isinstance(d, int) else 0
    assert t.dtype is not None
    return -(-count * t.dtype.bits // 8)  # as in a file: 4-bit elements are packed


def _total_bytes(constants: Iterable[ir_graph.Constant]) -> int:
    """Return the bytes of constants in a file."""
    return sum(n if (n := _nbytes(c.type)) < _UNBOUNDED_BYTES else c.nbytes for c in constants)


def _frontier(
    graph: ir_graph.Graph, order: Sequence[ir_graph.Node], skipped: dict[ir_graph.Node, str]
) -> dict[ir_graph.Value, None]:
    """Return the computed constant values that an output or a non-constant node reads."""
    memo = dict.fromkeys(skipped, False)
    found: dict[ir_graph.Value, None] = {}
    read = [v for n in order if not is_constant(ir_graph.result(n, 0), memo) for v in n.inputs]
    for v in (*read, *graph.outputs):
        if v is not None and ir_graph.producer(v) is not None and is_constant(v, memo):
            found[v] = None
    return found


def _values_within_budget(
    graph: ir_graph.Graph,
    order: Sequence[ir_graph.Node],
    skipped: dict[ir_graph.Node, str],
    max_bytes: int,
) -> list[ir_graph.Value]:
    """Return the values to fold so that all constants stay within `max_bytes`. Values that are too
    large are added to `skipped`; their operands may be folded instead."""
    while True:
        roots = _frontier(graph, order, skipped)
        sizes = {v: _nbytes(v.type) for v in roots}
        total = _total_bytes(_remaining_constants(graph, roots)) + sum(sizes.values())
        if total <= max_bytes or not roots:
            return list(roots)
        for v in sorted(roots, key=lambda v: -sizes[v]):
            n = ir_graph.producer(v)
            assert n is not None
            skipped[n] = (
                f"{n} would take {sizes[v]} bytes"
                if sizes[v] < _UNBOUNDED_BYTES
                else f"{n}: strings"
            )
            total -= sizes[v]
            if total <= max_bytes:
                break


def _remaining_constants(
    graph: ir_graph.Graph, folded: Iterable[ir_graph.Value]
) -> list[ir_graph.Constant]:
    """Return the constants that are still read once the values in `folded` are constants."""
    found: dict[ir_graph.Constant, None] = {}
    stack: list[ir_graph.Value] = list(graph.outputs)
    seen: set[ir_graph.Value] = set(folded)
    while stack:
        v = stack.pop()
        if v in seen:
            continue
        seen.add(v)
        if isinstance(v, ir_graph.Constant):
            found[v] = None
        stack.extend(ir_graph.operands(v))
    return list(found)


def _folded_constants(
    roots: Sequence[ir_graph.Value],
    skipped: dict[ir_graph.Node, str],
    sensitive: Set[ir_graph.Value],
    lazy: bool,
) -> Iterator[tuple[ir_graph.Value, ir_graph.Constant]]:
    """Yield each root with its constant; a node that fails is added to `skipped` and its roots are
    dropped. Large results of stand-ins, as in graphs that are only priced, are not computed."""
    computed = []
    for v in roots:
        if lazy and _nbytes(v.type) >= MIN_RECOMPUTE_BYTES and reads_stand_in(v):
            yield v, folded_stand_in(v, FoldedConstant(v, sensitive), _nbytes(v.type))
        else:
            computed.append(v)
    for v, array in _root_arrays(computed, skipped, sensitive):
        n = ir_graph.producer(v)
        assert n is not None
        if lazy:
            yield v, _transposed_view(n, array) or _folded_constant(v, array, sensitive)
        else:
            yield v, ir_graph.constant(array)


def _root_arrays(
    roots: Sequence[ir_graph.Value],
    skipped: dict[ir_graph.Node, str],
    sensitive: Set[ir_graph.Value],
) -> Iterator[tuple[ir_graph.Value, np.ndarray]]:
    """Yield each root with its array; a node that fails is added to `skipped` and its roots are
    dropped."""
    for v, array in _unrounded_arrays(roots, skipped, sensitive):
        yield v, _round_to_type(array, v.type)


def _unrounded_arrays(
    roots: Sequence[ir_graph.Value],
    skipped: dict[ir_graph.Node, str],
    sensitive: Set[ir_graph.Value],
) -> Iterator[tuple[ir_graph.Value, np.ndarray]]:
    """Yield each root with its array before it is rounded to its type. Results are dropped after
    their last use to bound memory."""
    wanted = dict.fromkeys(roots)
    order = ir_graph.nodes(roots)
    uses: dict[ir_graph.Node, int] = {}
    for n in order:
        for p in _producers(n):
            uses[p] = uses.get(p, 0) + 1
    held: dict[ir_graph.Node, list[np.ndarray]] = {}
    for n in order:
        if all(p in held for p in _producers(n)):
            try:
                held[n] = _node_arrays(n, held, sensitive)
            except (ValueError, TypeError, LookupError, ArithmeticError, MemoryError) as e:
                skipped[n] = f"{n}: {e}"
        for p in _producers(n):
            uses[p] -= 1
            if not uses[p]:
                held.pop(p, None)
        if n not in held:
            continue
        for v, array in zip(ir_graph.results(n), held[n], strict=True):
            if v in wanted:
                yield v, array
        if not uses.get(n):
            del held[n]


def _transposed_view(n: ir_graph.Node, array: np.ndarray) -> ir_graph.Constant | None:
    """Return a large transposed constant as a view of the original; else None."""
    if n.op.name != "Transpose" or array.nbytes < MIN_VIEW_BYTES:
        return None
    (given,) = n.inputs
    if not isinstance(given, ir_graph.Constant):
        return None
    key = ("transposed", given.key, n.attrs)
    view = array.view()
    view.flags.writeable = False
    return ir_graph.constant(type=n.type, key=key, load=lambda: view, nbytes=array.nbytes)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class FoldedConstant:
    """Returns the array of a value that is computed from constants: `array`, or computed again.
    sensitive: the rounding-sensitive values of its graph."""

    value: ir_graph.Value
    sensitive: Set[ir_graph.Value]
    array: np.ndarray | None = None

    def __call__(self) -> np.ndarray:
        return _load_root(self.value, self.sensitive) if self.array is None else self.array

    def float64_array(self, v: ir_graph.Value) -> np.ndarray:
        """Return the array of a value that it is computed from, before it is rounded."""
        return next(_unrounded_arrays([v], {}, self.sensitive))[1]


def _folded_constant(
    v: ir_graph.Value, array: np.ndarray, sensitive: Set[ir_graph.Value]
) -> ir_graph.Constant:
    """Return a constant that knows how it is computed. A large one is recomputed from the
    original's whenever it is read, which is once for each program, when it is packed: memory then
    does not hold it beside its packed form."""
    if array.nbytes < MIN_RECOMPUTE_BYTES:
        array = np.ascontiguousarray(array).reshape(array.shape)
        array.flags.writeable = False
        load = FoldedConstant(v, sensitive, array)
    else:
        load = FoldedConstant(v, sensitive)
    key = ir_graph.content_key(array)
    return ir_graph.constant(type=v.type, key=key, load=load, nbytes=array.nbytes)


def _load_root(v: ir_graph.Value, sensitive: Set[ir_graph.Value]) -> np.ndarray:
    return next(_root_arrays([v], {}, sensitive))[1]


def _producers(n: ir_graph.Node) -> list[ir_graph.Node]:
    return [p for v in n.inputs if v is not None and (p := ir_graph.producer(v)) is not None]


def _node_arrays(
    n: ir_graph.Node,
    arrays_of: dict[ir_graph.Node, list[np.ndarray]],
    sensitive: Set[ir_graph.Value],
) -> list[np.ndarray]:
    arrays: list[np.ndarray | None] = []
    for v in n.inputs:
        if v is None:
            arrays.append(None)
        elif isinstance(v, ir_graph.Constant):
            arrays.append(v.load())
        else:
            p = ir_graph.producer(v)
            assert p is not None
            arrays.append(arrays_of[p][v.index if isinstance(v, ir_graph.Item) else 0])
    types = [None if v is None else v.type for v in n.inputs]
    moved = "data" in n.op.laws and all(
        a is None or t is None or _is_native(a, t) for a, t in zip(arrays, types, strict=True)
    )
    pointwise = "elementwise" in n.op.laws and not sensitive.isdisjoint(ir_graph.results(n))
    if moved or pointwise or _rounds_operands(n):
        arrays = [
            a if a is None or t is None else _round_to_type(a, t)
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


def _rounds_operands(n: ir_graph.Node) -> bool:
    """True if operands are rounded to their types first, as at run time."""
    floats = any(v is not None and v.type.dtype and v.type.dtype.is_float for v in n.inputs)
    integers = any(t.dtype is not None and not t.dtype.is_float for t in n.types)
    return n.op.name in ("Cast", "CastLike") or is_discontinuous(n) or (floats and integers)


def _is_native(array: np.ndarray, t: TensorType) -> bool:
    return t.dtype is not None and array.dtype == to_numpy(t.dtype)


def _round_to_type(array: np.ndarray, t: TensorType) -> np.ndarray:
    """Return `array` in the element type of `t`, with its rank."""
    assert t.dtype is not None
    with np.errstate(all="ignore"):
        return np.asarray(array).astype(to_numpy(t.dtype), copy=False)
