"""Constants of one graph as expressions of another's: moved bit by bit, or computed and rounded.

Tools fuse, transpose, pad or scale weights ahead of time, which gives other constants. Such a
constant is rewritten here as its computation over constants of the first graph, so that a proof can
continue. Moved elements have the same bits. Computed elements are within MAX_ULPS units in the last
place, relative to the terms of their sums; an exactly representable result must be equal. A
constant that is merely close to a given one is not related.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from superopt.ir import graph
from superopt.ir.evaluate import evaluate, node_results
from superopt.ir.substitute import replace_all
from superopt.ops import OPS
from superopt.te.eval.domain import Reals
from superopt.te.expr.dtype import BOOL, F32, F64, DType, to_numpy
from superopt.verifier.compare.constant_blocks import Source, bits_of, cover_by_blocks
from superopt.verifier.compare.constant_folds import foldable_constants
from superopt.verifier.compare.linear_forms import element_count

MAX_ULPS = 4  # an operation rounds by half an ulp, and tools compute in different orders
MAX_SHORT_DENOMINATOR = 1 << 16
MAX_SIZE_RATIO = 4  # largest intermediate constant, relative to the largest constant
LARGE_ELEMENTS = 1 << 12  # elements; larger constants are computed only from new constants


@dataclass(frozen=True, slots=True)
class Relation:
    """A constant of the second graph as an expression over the first one's. ulps: its distance,
    relative to the terms of the sums; None if elements only moved."""

    constant: graph.Constant
    value: graph.Value
    ulps: float | None


def relate_constants(
    a: graph.Graph, b: graph.Graph, seconds: float = 10.0
) -> tuple[graph.Graph, tuple[Relation, ...]]:
    """Return `b` with constants that `a` lacks expressed by those it has, if possible, and these
    relations. Both graphs have the same inputs. seconds: no new work starts after them."""
    b = _share_equal_constants(a, b)
    mine, theirs = graph.constants(a), graph.constants(b)
    end = time.monotonic() + seconds
    known = set(mine)
    new = [c for c in theirs if c not in known and c.nbytes and _has_numbers(c)]
    found: list[Relation] = []
    exact = {d: _own_sources(mine, set(theirs), d) for d in {c.type.dtype for c in new}}
    left: list[graph.Constant] = []
    for c in new:
        if time.monotonic() > end or _is_uniform(c):
            left.append(c)
            continue
        value = cover_by_blocks(c.load(), exact[c.type.dtype])
        if value is None or not _has_same_bits(value, c):
            left.append(c)
        else:
            found.append(Relation(c, value, None))
    left = [c for c in left if c.type.dtype in (F32, F64) and not _is_short_fraction(c)]
    if left:
        every = foldable_constants(a, MAX_SIZE_RATIO * max(map(element_count, (*left, *mine))))
        quick = [v for v in every if all(n.op.name != "MatMul" for n in graph.nodes([v]))]
        for sources in (quick, every):  # products are slower
            found += _relate_computed(sources, left, exact, set(theirs), end)
            left = [c for c in left if all(r.constant is not c for r in found)]
    change: dict[graph.Value, graph.Value] = {r.constant: r.value for r in found}
    return (replace_all(b, change) if change else b), tuple(found)


def _share_equal_constants(a: graph.Graph, b: graph.Graph) -> graph.Graph:
    """Return `b` with the constants of `a` of equal content, which folding may have copied."""
    mine = graph.constants(a)
    theirs = [c for c in graph.constants(b) if c.nbytes and c not in set(mine)]
    types = {c.type for c in theirs}
    pool = {(c.type, graph.content_key(c.load())): c for c in mine if c.type in types}
    change: dict[graph.Value, graph.Value] = {}
    for c in theirs:
        same = pool.get((c.type, graph.content_key(c.load())))
        if same is not None:
            change[c] = same
    return replace_all(b, change) if change else b


def _relate_computed(
    expressions: Sequence[graph.Value],
    wanted: Sequence[graph.Constant],
    exact: dict[DType | None, list[Source]],
    second_constants: set[graph.Constant],
    deadline: float,
) -> list[Relation]:
    """Relate wanted constants that are computed by some of the expressions."""
    if not wanted:
        return []
    computed = _computed_sources(expressions, wanted, exact, second_constants, deadline)
    found: list[Relation] = []
    for c in wanted:
        sources = computed.get(c.type.dtype, [])
        if not sources or time.monotonic() > deadline:
            continue
        if _is_uniform(c):
            value = _uniform_value(c, sources)
        else:
            value = cover_by_blocks(c.load(), [*exact[c.type.dtype], *sources])
        if value is None or isinstance(value, graph.Constant):
            continue
        ulps = _ulp_distance(value, c)
        if ulps <= MAX_ULPS:
            found.append(Relation(c, value, ulps))
    return found


def _has_numbers(c: graph.Constant) -> bool:
    """True if float64 can hold the elements, as it cannot hold strings and complex numbers."""
    return c.type.dtype is not None and (c.type.dtype.is_number or c.type.dtype == BOOL)


def _is_uniform(c: graph.Constant) -> bool:
    """True if all elements are equal."""
    array = c.load()
    return bool((array == array.flat[0]).all())


def _uniform_value(c: graph.Constant, computed: Sequence[Source]) -> graph.Value | None:
    """Return a uniform constant as a computed number, None if no source matches."""
    one = c.load().reshape(-1)[:1]
    for s in computed:
        if (
            s.values.size == 1
            and s.matches(np.array([0]), bits_of(one), one.astype(np.float64)).all()
        ):
            plain = s.value if s.shape == () else graph.node(OPS["Reshape"], [s.value], shape=())
            shape = c.type.shape or ()
            return plain if not shape else graph.node(OPS["Expand"], [plain], shape=shape)
    return None


def _is_short_fraction(c: graph.Constant) -> bool:
    """True for a uniform constant that is a short fraction and is read as such."""
    first = float(c.load().flat[0])
    return _is_uniform(c) and (
        not np.isfinite(first) or Fraction(first).denominator <= MAX_SHORT_DENOMINATOR
    )


def _own_sources(
    first_constants: Sequence[graph.Constant], second_constants: set[graph.Constant], dtype: object
) -> list[Source]:
    """Return the first graph's constants, those first that the second graph lacks."""
    constants = [c for c in first_constants if c.type.dtype == dtype and c.nbytes]
    return [
        _make_source(c, c.load(), None)
        for c in sorted(constants, key=lambda c: c in second_constants)
    ]


def _make_source(v: graph.Value, array: np.ndarray, tolerance: np.ndarray | None) -> Source:
    flat = array.reshape(-1)
    with np.errstate(all="ignore"):
        return Source(v, array.shape, flat.astype(np.float64), tolerance, bits_of(flat))


def _has_same_bits(v: graph.Value, c: graph.Constant) -> bool:
    (array,) = evaluate(graph.Graph((), (v,)), {}, Reals())
    want = c.load()
    return array.shape == want.shape and bool((bits_of(array) == bits_of(want)).all())


# --- what is computed -----------------------------------------------------------------------------


def _computed_sources(
    expressions: Sequence[graph.Value],
    wanted: Sequence[graph.Constant],
    exact: dict[DType | None, list[Source]],
    second_constants: set[graph.Constant],
    deadline: float,
) -> dict[DType | None, list[Source]]:
    """Return the expressions whose values occur in a wanted constant, as sources."""
    out: dict[DType | None, list[Source]] = {}
    known = _Values()
    targets = {d: [c for c in wanted if c.type.dtype == d] for d in (F32, F64)}
    flat = {
        d: np.sort(np.concatenate([c.load().reshape(-1) for c in cs]).astype(np.float64))
        for d, cs in targets.items()
        if cs
    }
    for v in expressions:
        dtype = v.type.dtype
        if time.monotonic() > deadline or dtype not in flat:
            continue
        if element_count(v) > LARGE_ELEMENTS and all(
            c in second_constants for c in graph.constants([v]) if element_count(c) > LARGE_ELEMENTS
        ):
            continue
        value, size = known.value_of(v)
        computed = _rounded_source(v, value, size)
        if computed is None or not _may_contain(computed, flat[dtype]):
            continue
        if any(_is_near_given(computed, s) for s in exact[dtype]):
            continue
        out.setdefault(dtype, []).append(computed)
    return out


def _rounded_source(v: graph.Value, value: np.ndarray, size: np.ndarray) -> Source | None:
    """Return a value as a source; exactly representable elements get no tolerance."""
    dtype = v.type.dtype
    assert dtype is not None
    with np.errstate(all="ignore"):
        array = value.astype(to_numpy(dtype))
        if not np.isfinite(array).all():
            return None
        room = np.where(array == value, 0.0, MAX_ULPS * float(np.finfo(array.dtype).eps) * size)
    return _make_source(v, array, room.reshape(-1))


def _may_contain(s: Source, wanted: np.ndarray) -> bool:
    """True if its first, middle or last element is among the wanted ones."""
    assert s.tolerance is not None
    for k in {0, s.values.size // 2, s.values.size - 1}:
        low, high = np.searchsorted(
            wanted, [s.values[k] - s.tolerance[k], s.values[k] + s.tolerance[k]]
        )
        if high > low or (high < wanted.size and wanted[high] <= s.values[k] + s.tolerance[k]):
            return True
    return False


def _is_near_given(s: Source, given: Source) -> bool:
    """True if a given constant has about the same elements: then a close wanted constant is
    ambiguous."""
    assert s.tolerance is not None
    if s.values.size != given.values.size:
        return False
    most = float(s.tolerance.sum()) + _TINY
    if abs(s.values.sum() - given.values.sum()) > most + SUM_RTOL * np.abs(s.values).sum():
        return False
    order = np.argsort(s.values, kind="stable")
    return bool(
        (np.abs(s.values[order] - np.sort(given.values)) <= s.tolerance[order] + _TINY).all()
    )


_TINY = float(np.finfo(np.float64).tiny)
SUM_RTOL = 1e-12  # of a sum in float64
# Operators that propagate the magnitudes of terms in place of the operator itself.
_MAGNITUDE_OPS = {"Sub": "Add", "Neg": "Identity"}


@dataclass(slots=True)
class _Values:
    """Values of constant expressions in float64, with the magnitude of the terms of their sums,
    which rounding is measured against."""

    known: dict[graph.Value, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)

    def value_of(self, v: graph.Value) -> tuple[np.ndarray, np.ndarray]:
        for n in graph.nodes([v]):
            if n not in self.known:
                self.known[n] = self.node(n)
        return self.leaf(v)

    def leaf(self, v: graph.Value) -> tuple[np.ndarray, np.ndarray]:
        if isinstance(v, graph.Constant):
            array = v.load().astype(np.float64)
            return array, np.abs(array)
        return self.known[v]

    def node(self, n: graph.Node) -> tuple[np.ndarray, np.ndarray]:
        operands = [self.leaf(v) for v in n.inputs if v is not None]
        values, sizes = [x for x, _ in operands], [s for _, s in operands]
        with np.errstate(all="ignore"):
            (value,) = node_results(n, values, Reals(F64))
            match n.op.name:
                case "Div":
                    return value, sizes[0] * sizes[1] / np.square(values[1])
                case "Reciprocal":
                    return value, sizes[0] / np.square(values[0])
                case name:
                    attrs = {} if name in _MAGNITUDE_OPS else dict(n.attrs)
                    like = graph.node(OPS[_MAGNITUDE_OPS.get(name, name)], n.inputs, **attrs)
                    (size,) = node_results(like, sizes, Reals(F64))
                    return value, size


def _ulp_distance(v: graph.Value, c: graph.Constant) -> float:
    """Return the distance of `c` from `v` in ulps, relative to the terms of the sums."""
    value, size = _Values().value_of(v)
    want = c.load().astype(np.float64)
    eps = float(np.finfo(c.load().dtype).eps)
    if value.shape != want.shape:
        return float("inf")
    with np.errstate(all="ignore"):
        exact = value.astype(c.load().dtype) == value
        off = np.abs(want - value)
        if not np.isfinite(off).all() or off[exact].any():
            return float("inf")
        return float(np.max(np.where(exact, 0.0, off / (eps * size)), initial=0.0))
