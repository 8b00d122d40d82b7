"""Max and min over sliding windows, for windows that are unrolled.

Neighbouring windows overlap: the extremum of their common columns is computed once and is one term
of each.

    y[0] = max(x[0], x[1], x[2], ...)       a = max(x[1], x[2])   of each row of the window
    y[1] = max(x[1], x[2], x[3], ...)   =>  y[0] = max(x[0], a), y[1] = max(a, x[3])

NaN is tested for two values at a time (`emit_fold`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, product

from superopt.kernels.address import Place
from superopt.kernels.cpu_fold import places
from superopt.kernels.cpu_store import put
from superopt.kernels.cpu_values import get, value
from superopt.kernels.cpu_writer import Writer
from superopt.kernels.functions import cast, joined
from superopt.kernels.text import Value, number
from superopt.kernels.tile import For, Stmt, Update
from superopt.te import index as ix
from superopt.te.dtype import INDEX
from superopt.te.fn import FOLDS, unit
from superopt.te.node import Apply, Axis, Const, Expr, Load
from superopt.te.walk import axes_of

PAYS = 0.8  # remaining steps over all steps up to which sharing pays
VECTORS = 24  # accumulators at a time


@dataclass(frozen=True, slots=True)
class Window:
    """loops: around the unrolled steps, outermost first; axes: of the unrolled steps."""

    loops: tuple[For, ...]
    axes: tuple[Axis, ...]
    update: Update


@dataclass(frozen=True, slots=True)
class _Group:
    """The terms that the same positions share, each as (position that reads it first, step)."""

    places: tuple[int, ...]
    terms: tuple[tuple[int, tuple[int, ...]], ...]


def window(s: Stmt) -> Window | None:
    """Match loops, unrolled inside, around a max or min update of floats."""
    loops: list[For] = []
    while isinstance(s, For) and s.kind == "serial" and s.until is None and len(s.body) == 1:
        loops.append(s)
        s = s.body[0]
    axes: list[Axis] = []
    while isinstance(s, For) and s.kind == "unroll" and len(s.body) == 1:
        axes.append(s.axis)
        s = s.body[0]
    if not axes or not isinstance(s, Update) or s.fn not in ("max", "min") or s.over:
        return None
    if any(f.axis in axes_of(i) or not f.axis.extent for f in loops for i in s.index):
        return None
    return Window(tuple(loops), tuple(axes), s) if s.buffer.dtype.is_float else None


def largest(w: Writer, found: Window) -> bool:
    """Emit the window; False if plain loops are better."""
    s = found.update
    made = [list(g) for _, g in groupby(_in_order(w, s), _lanes)]
    some = [_groups(s.value, found.axes, ps) for ps in made]
    if found.loops and not all(some):
        return False
    for ps, groups in zip(made, some, strict=True):
        _shared(w, found, ps, groups) if groups else _each(w, found, ps)
    w.known.clear()
    return True


def _in_order(w: Writer, s: Update) -> list[Place]:
    """Return the positions sorted by lanes."""
    return sorted(places(w, s.axes, s.buffer, s.value), key=_lanes)


def _lanes(p: Place) -> tuple[int, int]:
    return 0 if p.lane is None else p.at[p.lane], p.lanes


def _groups(e: Expr, axes: Sequence[Axis], ps: Sequence[Place]) -> list[_Group]:
    """Return the terms grouped by the positions that share them; an empty list if sharing does not
    pay."""
    indices = _indices(e)
    if len(ps) < 2 or indices is None:
        return []
    forms: list[dict[Axis, int]] = []
    for i in indices:
        terms = ix.polynomial(i)
        if any(len(t) > 1 or not isinstance(a, Axis) for t in terms for a in t):
            return []
        forms.append({a: c for t, c in terms.items() for a in t if isinstance(a, Axis)})
    readers: dict[tuple[int, ...], list[int]] = {}
    steps: dict[tuple[int, ...], tuple[int, ...]] = {}
    for n, p in enumerate(ps):
        for k in _steps(axes):
            at = {**p.at, **dict(zip(axes, k, strict=True))}
            fixed = {a: v for a, v in at.items() if a != p.lane}
            key = tuple(sum(c * fixed.get(a, 0) for a, c in f.items()) for f in forms)
            if n not in (have := readers.setdefault(key, [])):
                have.append(n)
            steps.setdefault(key, k)
    groups: dict[tuple[int, ...], list[tuple[int, tuple[int, ...]]]] = {}
    for key, have in readers.items():
        groups.setdefault(tuple(have), []).append((have[0], steps[key]))
    out = [_Group(have, tuple(terms)) for have, terms in groups.items()]
    left = sum(len(g.terms) + len(g.places) * (len(g.places) > 1) for g in out)
    pays = left <= PAYS * len(ps) * len(_steps(axes)) and len(out) <= VECTORS
    return out if pays else []


def _indices(e: Expr) -> list[Expr] | None:
    """Return all indices of loads and index values in `e`; None if it contains anything else."""
    if e.dtype == INDEX:
        return [e]
    match e:
        case Const():
            return []
        case Load(_, index):
            return list(index)
        case Apply(_, args):
            found = [_indices(a) for a in args]
            return None if None in found else [i for some in found for i in some or ()]
    return None


def _shared(w: Writer, found: Window, ps: Sequence[Place], groups: Sequence[_Group]) -> None:
    """Emit each group's extremum, then each position's over its groups."""
    s, fn = found.update, FOLDS[found.update.fn]
    if found.loops:
        totals = _looped(w, found, ps, groups)
    else:
        apart = [[_term(w, found, ps[n], k) for n, k in g.terms] for g in groups]
        joint = [len(g.places) > 1 for g in groups]
        totals = [
            [joined(w.t, fn, x[1:], x[0])] if both else x
            for x, both in zip(apart, joint, strict=True)
        ]
    for n, p in enumerate(ps):
        own = [v for g, x in zip(groups, totals, strict=True) if n in g.places for v in x]
        old = w.t.splat(get(w, s.buffer, s.index, p), p.lanes)
        put(w, s.buffer, s.index, joined(w.t, fn, own, old), p)


def _looped(
    w: Writer, found: Window, ps: Sequence[Place], groups: Sequence[_Group]
) -> list[list[Value]]:
    """Emit each group's extremum over the loops around the unrolled steps."""
    s, fn = found.update, FOLDS[found.update.fn]
    kind, lanes = s.buffer.dtype, ps[0].lanes
    start = number(unit(s.fn, kind), kind, lanes)
    slots = [f"%{w.t.fresh('largest')}" for _ in groups]
    for slot in slots:
        w.t.entry.append(f"  {slot} = alloca {start.type}")
        w.t.line(f"store {start}, ptr {slot}")

    def nest(loops: Sequence[For]) -> None:
        if loops:
            with w.t.steps(loops[0].axis.size) as w.loops[loops[0].axis]:
                nest(loops[1:])
            return
        for slot, g in zip(slots, groups, strict=True):
            some = [_term(w, found, ps[n], k) for n, k in g.terms]
            old = w.t.make(f"load {start.type}, ptr {slot}", kind, lanes)
            w.t.line(f"store {joined(w.t, fn, some, old)}, ptr {slot}")

    nest(found.loops)
    w.known.clear()
    return [[w.t.make(f"load {start.type}, ptr {slot}", kind, lanes)] for slot in slots]


def _each(w: Writer, found: Window, ps: Sequence[Place]) -> None:
    """Emit each position's extremum on its own."""
    s = found.update
    for p in ps:
        some = [_term(w, found, p, k) for k in _steps(found.axes)]
        old = w.t.splat(get(w, s.buffer, s.index, p), p.lanes)
        put(w, s.buffer, s.index, joined(w.t, FOLDS[s.fn], some, old), p)


def _term(w: Writer, found: Window, p: Place, k: Sequence[int]) -> Value:
    for axis, n in zip(found.axes, k, strict=True):
        w.loops[axis], w.unrolled[axis] = number(n, INDEX), n
    w.known.clear()
    more = w.t.splat(value(w, found.update.value, p), p.lanes)
    return cast(w.t, more, found.update.buffer.dtype)


def _steps(axes: Sequence[Axis]) -> list[tuple[int, ...]]:
    return list(product(*(range(a.size) for a in axes)))
