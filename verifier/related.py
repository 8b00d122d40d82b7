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

from superopt.ir import graph as g
from superopt.ir.evaluate import evaluate, node_results
from superopt.ir.substitute import replace_all
from superopt.ops import OPS
from superopt.te.domain import Reals
from superopt.te.dtype import BOOL, F32, F64, DType, to_numpy
from superopt.verifier.blocks import Source, bits_of, blocks
from superopt.verifier.folds import offered
from superopt.verifier.forms import count

ULPS = 4  # an operation rounds by half an ulp, and tools compute in different orders
SHORT = 1 << 16
JOINED = 4  # largest intermediate constant, relative to the largest constant
LARGE = 1 << 12  # elements; larger constants are computed only from new constants


@dataclass(frozen=True, slots=True)
class Relation:
    """A constant of the second graph as an expression over the first one's. ulps: its distance,
    relative to the terms of the sums; None if elements only moved."""

    constant: g.Constant
    value: g.Value
    ulps: float | None


def related(a: g.Graph, b: g.Graph, seconds: float = 10.0) -> tuple[g.Graph, tuple[Relation, ...]]:
    """Return `b` with constants that `a` lacks expressed by those it has, if possible, and these
    relations. Both graphs have the same inputs. seconds: no new work starts after them."""
    b = _same(a, b)
    mine, theirs = g.constants(a), g.constants(b)
    end = time.monotonic() + seconds
    known = set(mine)
    new = [c for c in theirs if c not in known and c.nbytes and _has_numbers(c)]
    found: list[Relation] = []
    exact = {d: _given(mine, set(theirs), d) for d in {c.type.dtype for c in new}}
    left: list[g.Constant] = []
    for c in new:
        if time.monotonic() > end or _uniform(c):
            left.append(c)
            continue
        value = blocks(c.load(), exact[c.type.dtype])
        if value is None or not _same_bits(value, c):
            left.append(c)
        else:
            found.append(Relation(c, value, None))
    left = [c for c in left if c.type.dtype in (F32, F64) and not _plain(c)]
    if left:
        every = offered(a, JOINED * max(map(count, (*left, *mine))))
        quick = [v for v in every if all(n.op.name != "MatMul" for n in g.nodes([v]))]
        for some in (quick, every):  # products are slower
            found += _folded(some, left, exact, set(theirs), end)
            left = [c for c in left if all(r.constant is not c for r in found)]
    change: dict[g.Value, g.Value] = {r.constant: r.value for r in found}
    return (replace_all(b, change) if change else b), tuple(found)


def _same(a: g.Graph, b: g.Graph) -> g.Graph:
    """Return `b` with the constants of `a` of equal content, which folding may have copied."""
    mine = g.constants(a)
    theirs = [c for c in g.constants(b) if c.nbytes and c not in set(mine)]
    types = {c.type for c in theirs}
    pool = {(c.type, g.content_key(c.load())): c for c in mine if c.type in types}
    change: dict[g.Value, g.Value] = {}
    for c in theirs:
        same = pool.get((c.type, g.content_key(c.load())))
        if same is not None:
            change[c] = same
    return replace_all(b, change) if change else b


def _folded(
    some: Sequence[g.Value],
    wanted: Sequence[g.Constant],
    exact: dict[DType | None, list[Source]],
    theirs: set[g.Constant],
    end: float,
) -> list[Relation]:
    """Relate wanted constants that are computed by some of the expressions."""
    if not wanted:
        return []
    computed = _computed(some, wanted, exact, theirs, end)
    found: list[Relation] = []
    for c in wanted:
        sources = computed.get(c.type.dtype, [])
        if not sources or time.monotonic() > end:
            continue
        if _uniform(c):
            value = _number(c, sources)
        else:
            value = blocks(c.load(), [*exact[c.type.dtype], *sources])
        if value is None or isinstance(value, g.Constant):
            continue
        ulps = _apart(value, c)
        if ulps <= ULPS:
            found.append(Relation(c, value, ulps))
    return found


def _has_numbers(c: g.Constant) -> bool:
    """True if float64 can hold the elements, as it cannot hold strings and complex numbers."""
    return c.type.dtype is not None and (c.type.dtype.is_number or c.type.dtype == BOOL)


def _uniform(c: g.Constant) -> bool:
    """True if all elements are equal."""
    array = c.load()
    return bool((array == array.flat[0]).all())


def _number(c: g.Constant, computed: Sequence[Source]) -> g.Value | None:
    """Return a uniform constant as a computed number, None if no source matches."""
    one = c.load().reshape(-1)[:1]
    for s in computed:
        if s.wide.size == 1 and s.like(np.array([0]), bits_of(one), one.astype(np.float64)).all():
            plain = s.value if s.shape == () else g.node(OPS["Reshape"], [s.value], shape=())
            shape = c.type.shape or ()
            return plain if not shape else g.node(OPS["Expand"], [plain], shape=shape)
    return None


def _plain(c: g.Constant) -> bool:
    """True for a uniform constant that is a short fraction and is read as such."""
    first = float(c.load().flat[0])
    return _uniform(c) and (not np.isfinite(first) or Fraction(first).denominator <= SHORT)


def _given(mine: Sequence[g.Constant], theirs: set[g.Constant], dtype: object) -> list[Source]:
    """Return the first graph's constants, those first that the second graph lacks."""
    some = [c for c in mine if c.type.dtype == dtype and c.nbytes]
    return [_source(c, c.load(), None) for c in sorted(some, key=lambda c: c in theirs)]


def _source(v: g.Value, array: np.ndarray, room: np.ndarray | None) -> Source:
    flat = array.reshape(-1)
    with np.errstate(all="ignore"):
        return Source(v, array.shape, flat.astype(np.float64), room, bits_of(flat))


def _same_bits(v: g.Value, c: g.Constant) -> bool:
    (array,) = evaluate(g.Graph((), (v,)), {}, Reals())
    want = c.load()
    return array.shape == want.shape and bool((bits_of(array) == bits_of(want)).all())


# --- what is computed -----------------------------------------------------------------------------


def _computed(
    some: Sequence[g.Value],
    wanted: Sequence[g.Constant],
    exact: dict[DType | None, list[Source]],
    theirs: set[g.Constant],
    end: float,
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
    for v in some:
        dtype = v.type.dtype
        if time.monotonic() > end or dtype not in flat:
            continue
        if count(v) > LARGE and all(c in theirs for c in g.constants([v]) if count(c) > LARGE):
            continue
        value, size = known.of(v)
        made = _rounded(v, value, size)
        if made is None or not _seen(made, flat[dtype]):
            continue
        if any(_near(made, s) for s in exact[dtype]):
            continue
        out.setdefault(dtype, []).append(made)
    return out


def _rounded(v: g.Value, value: np.ndarray, size: np.ndarray) -> Source | None:
    """Return a value as a source; exactly representable elements get no tolerance."""
    dtype = v.type.dtype
    assert dtype is not None
    with np.errstate(all="ignore"):
        array = value.astype(to_numpy(dtype))
        if not np.isfinite(array).all():
            return None
        room = np.where(array == value, 0.0, ULPS * float(np.finfo(array.dtype).eps) * size)
    return _source(v, array, room.reshape(-1))


def _seen(s: Source, wanted: np.ndarray) -> bool:
    """True if its first, middle or last element is among the wanted ones."""
    assert s.room is not None
    for k in {0, s.wide.size // 2, s.wide.size - 1}:
        low, high = np.searchsorted(wanted, [s.wide[k] - s.room[k], s.wide[k] + s.room[k]])
        if high > low or (high < wanted.size and wanted[high] <= s.wide[k] + s.room[k]):
            return True
    return False


def _near(s: Source, given: Source) -> bool:
    """True if a given constant has about the same elements: then a close wanted constant is
    ambiguous."""
    assert s.room is not None
    if s.wide.size != given.wide.size:
        return False
    most = float(s.room.sum()) + _TINY
    if abs(s.wide.sum() - given.wide.sum()) > most + ROUNDED * np.abs(s.wide).sum():
        return False
    order = np.argsort(s.wide, kind="stable")
    return bool((np.abs(s.wide[order] - np.sort(given.wide)) <= s.room[order] + _TINY).all())


_TINY = float(np.finfo(np.float64).tiny)
ROUNDED = 1e-12  # of a sum in float64
# Operators that propagate the magnitudes of terms in place of the operator itself.
_SIZES = {"Sub": "Add", "Neg": "Identity"}


@dataclass(slots=True)
class _Values:
    """Values of constant expressions in float64, with the magnitude of the terms of their sums,
    which rounding is measured against."""

    known: dict[g.Value, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)

    def of(self, v: g.Value) -> tuple[np.ndarray, np.ndarray]:
        for n in g.nodes([v]):
            if n not in self.known:
                self.known[n] = self.node(n)
        return self.leaf(v)

    def leaf(self, v: g.Value) -> tuple[np.ndarray, np.ndarray]:
        if isinstance(v, g.Constant):
            array = v.load().astype(np.float64)
            return array, np.abs(array)
        return self.known[v]

    def node(self, n: g.Node) -> tuple[np.ndarray, np.ndarray]:
        some = [self.leaf(v) for v in n.inputs if v is not None]
        values, sizes = [x for x, _ in some], [s for _, s in some]
        with np.errstate(all="ignore"):
            (value,) = node_results(n, values, Reals(F64))
            match n.op.name:
                case "Div":
                    return value, sizes[0] * sizes[1] / np.square(values[1])
                case "Reciprocal":
                    return value, sizes[0] / np.square(values[0])
                case name:
                    attrs = {} if name in _SIZES else dict(n.attrs)
                    like = g.node(OPS[_SIZES.get(name, name)], n.inputs, **attrs)
                    (size,) = node_results(like, sizes, Reals(F64))
                    return value, size


def _apart(v: g.Value, c: g.Constant) -> float:
    """Return the distance of `c` from `v` in ulps, relative to the terms of the sums."""
    value, size = _Values().of(v)
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
