"""Constants of one graph as expressions of another's: moved bit by bit, or computed and rounded.

What a tool merged, turned round, padded or scaled ahead of time is another constant. It is written
here as what was computed, over the constants of the first graph, so that a proof can go on from
there. Moved elements have the same bits. Computed ones lie within ULPS units in the last place of
what they are sums of; where the exact result is a number of the type, they are that. A constant
that is merely near a given one is not related.
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

ULPS = 4  # each operation rounds by half a one, and tools compute in several orders
SHORT = 1 << 16
JOINED = 4  # times as large as the largest constant may be what one is computed of
LARGE = 1 << 12  # elements; larger constants are computed only of what the second graph has not


@dataclass(frozen=True, slots=True)
class Relation:
    """A constant of the second graph, and what it is over the first one's. ulps: how far it is from
    that, of the terms that it is a sum of; None where elements only moved."""

    constant: g.Constant
    value: g.Value
    ulps: float | None


def related(a: g.Graph, b: g.Graph, seconds: float = 10.0) -> tuple[g.Graph, tuple[Relation, ...]]:
    """`b` with constants that `a` has not as expressions of those that it has, where they are some;
    and these relations. Both graphs are over the same inputs. seconds: until no more is begun."""
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
        for some in (quick, every):  # products take longer
            found += _folded(some, left, exact, set(theirs), end)
            left = [c for c in left if all(r.constant is not c for r in found)]
    change: dict[g.Value, g.Value] = {r.constant: r.value for r in found}
    return (replace_all(b, change) if change else b), tuple(found)


def _same(a: g.Graph, b: g.Graph) -> g.Graph:
    """`b` with constants of `a` for those of the same content, which folding may have made anew."""
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
    """Constants that are wanted, and computed as some of these are."""
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
    """Is it one number everywhere?"""
    array = c.load()
    return bool((array == array.flat[0]).all())


def _number(c: g.Constant, computed: Sequence[Source]) -> g.Value | None:
    """One number everywhere that is computed as one."""
    one = c.load().reshape(-1)[:1]
    for s in computed:
        if s.wide.size == 1 and s.like(np.array([0]), bits_of(one), one.astype(np.float64)).all():
            plain = s.value if s.shape == () else g.node(OPS["Reshape"], [s.value], shape=())
            shape = c.type.shape or ()
            return plain if not shape else g.node(OPS["Expand"], [plain], shape=shape)
    return None


def _plain(c: g.Constant) -> bool:
    """Is it one short fraction everywhere, which is read as that?"""
    first = float(c.load().flat[0])
    return _uniform(c) and (not np.isfinite(first) or Fraction(first).denominator <= SHORT)


def _given(mine: Sequence[g.Constant], theirs: set[g.Constant], dtype: object) -> list[Source]:
    """The first graph's own constants, those first that the second one has not."""
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
    """Those values of some that are in a constant that is wanted, as sources."""
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
    """As a source: nothing that is exact may be rounded."""
    dtype = v.type.dtype
    assert dtype is not None
    with np.errstate(all="ignore"):
        array = value.astype(to_numpy(dtype))
        if not np.isfinite(array).all():
            return None
        room = np.where(array == value, 0.0, ULPS * float(np.finfo(array.dtype).eps) * size)
    return _source(v, array, room.reshape(-1))


def _seen(s: Source, wanted: np.ndarray) -> bool:
    """Are its first, middle or last elements among those that are wanted?"""
    assert s.room is not None
    for k in {0, s.wide.size // 2, s.wide.size - 1}:
        low, high = np.searchsorted(wanted, [s.wide[k] - s.room[k], s.wide[k] + s.room[k]])
        if high > low or (high < wanted.size and wanted[high] <= s.wide[k] + s.room[k]):
            return True
    return False


def _near(s: Source, given: Source) -> bool:
    """Has a given constant about the same elements? Then a wanted one that is near is not said to
    be computed."""
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
# What the sizes of terms go through instead of the operator itself.
_SIZES = {"Sub": "Add", "Neg": "Identity"}


@dataclass(slots=True)
class _Values:
    """Values of constant expressions in float64, each with the size of the terms that it is a sum
    of, which is what rounding is measured by."""

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
    """How many units in the last place `c` is from `v`, of the terms that it is a sum of."""
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
