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

from superopt.kernels.llvm.address import TilePosition
from superopt.kernels.llvm.builder import Value, number
from superopt.kernels.llvm.functions import emit_cast
from superopt.kernels.llvm.lanes import emit_fold
from superopt.kernels.llvm.reductions import vector_positions
from superopt.kernels.llvm.stores import emit_store
from superopt.kernels.llvm.values import emit_load, emit_value
from superopt.kernels.llvm.writer import Writer
from superopt.kernels.loops.tile import For, Stmt, Update
from superopt.te.analysis.walk import index_axes
from superopt.te.expr import index
from superopt.te.expr.dtype import INDEX
from superopt.te.expr.functions import REDUCTION_COMBINERS, identity_element
from superopt.te.expr.node import Apply, Axis, Const, Expr, Load

MAX_STEP_RATIO = 0.8  # remaining steps over all steps up to which sharing pays
MAX_HELD_VECTORS = 24  # accumulators at a time


@dataclass(frozen=True, slots=True)
class Window:
    """loops: around the unrolled steps, outermost first; axes: of the unrolled steps."""

    loops: tuple[For, ...]
    axes: tuple[Axis, ...]
    update: Update


@dataclass(frozen=True, slots=True)
class _TermGroup:
    """The terms that the same positions share, each as (position that reads it first, step)."""

    positions: tuple[int, ...]
    terms: tuple[tuple[int, tuple[int, ...]], ...]


def match_window(s: Stmt) -> Window | None:
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
    if any(f.axis in index_axes(i) or not f.axis.extent for f in loops for i in s.index):
        return None
    return Window(tuple(loops), tuple(axes), s) if s.buffer.dtype.is_float else None


def emit_window_extrema(w: Writer, window: Window) -> bool:
    """Emit the window; False if plain loops are better."""
    s = window.update
    made = [list(g) for _, g in groupby(_positions_by_lanes(w, s), _lane_key)]
    some = [_term_groups(s.value, window.axes, ps) for ps in made]
    if window.loops and not all(some):
        return False
    for ps, groups in zip(made, some, strict=True):
        _emit_shared_terms(w, window, ps, groups) if groups else _emit_separately(w, window, ps)
    w.known_values.clear()
    return True


def _positions_by_lanes(w: Writer, s: Update) -> list[TilePosition]:
    """Return the positions sorted by lanes."""
    return sorted(vector_positions(w, s.axes, s.buffer, s.value), key=_lane_key)


def _lane_key(p: TilePosition) -> tuple[int, int]:
    return 0 if p.lane_axis is None else p.axis_values[p.lane_axis], p.lanes


def _term_groups(e: Expr, axes: Sequence[Axis], ps: Sequence[TilePosition]) -> list[_TermGroup]:
    """Return the terms grouped by the positions that share them; an empty list if sharing does not
    pay."""
    indices = _all_indices(e)
    if len(ps) < 2 or indices is None:
        return []
    forms: list[dict[Axis, int]] = []
    for i in indices:
        terms = index.polynomial(i)
        if any(len(t) > 1 or not isinstance(a, Axis) for t in terms for a in t):
            return []
        forms.append({a: c for t, c in terms.items() for a in t if isinstance(a, Axis)})
    readers: dict[tuple[int, ...], list[int]] = {}
    steps: dict[tuple[int, ...], tuple[int, ...]] = {}
    for n, p in enumerate(ps):
        for k in _window_steps(axes):
            at = {**p.axis_values, **dict(zip(axes, k, strict=True))}
            fixed = {a: v for a, v in at.items() if a != p.lane_axis}
            key = tuple(sum(c * fixed.get(a, 0) for a, c in f.items()) for f in forms)
            if n not in (have := readers.setdefault(key, [])):
                have.append(n)
            steps.setdefault(key, k)
    groups: dict[tuple[int, ...], list[tuple[int, tuple[int, ...]]]] = {}
    for key, have in readers.items():
        groups.setdefault(tuple(have), []).append((have[0], steps[key]))
    out = [_TermGroup(have, tuple(terms)) for have, terms in groups.items()]
    left = sum(len(g.terms) + len(g.positions) * (len(g.positions) > 1) for g in out)
    pays = (
        left <= MAX_STEP_RATIO * len(ps) * len(_window_steps(axes)) and len(out) <= MAX_HELD_VECTORS
    )
    return out if pays else []


def _all_indices(e: Expr) -> list[Expr] | None:
    """Return all indices of loads and index values in `e`; None if it contains anything else."""
    if e.dtype == INDEX:
        return [e]
    match e:
        case Const():
            return []
        case Load(_, index):
            return list(index)
        case Apply(_, args):
            found = [_all_indices(a) for a in args]
            return None if None in found else [i for some in found for i in some or ()]
    return None


def _emit_shared_terms(
    w: Writer, window: Window, ps: Sequence[TilePosition], groups: Sequence[_TermGroup]
) -> None:
    """Emit each group's extremum, then each position's over its groups."""
    s, fn = window.update, REDUCTION_COMBINERS[window.update.fn]
    if window.loops:
        totals = _emit_group_loop(w, window, ps, groups)
    else:
        apart = [[_emit_term(w, window, ps[n], k) for n, k in g.terms] for g in groups]
        joint = [len(g.positions) > 1 for g in groups]
        totals = [
            [emit_fold(w.t, fn, x[1:], x[0])] if both else x
            for x, both in zip(apart, joint, strict=True)
        ]
    for n, p in enumerate(ps):
        own = [v for g, x in zip(groups, totals, strict=True) if n in g.positions for v in x]
        old = w.t.splat(emit_load(w, s.buffer, s.index, p), p.lanes)
        emit_store(w, s.buffer, s.index, emit_fold(w.t, fn, own, old), p)


def _emit_group_loop(
    w: Writer, window: Window, ps: Sequence[TilePosition], groups: Sequence[_TermGroup]
) -> list[list[Value]]:
    """Emit each group's extremum over the loops around the unrolled steps."""
    s, fn = window.update, REDUCTION_COMBINERS[window.update.fn]
    kind, lanes = s.buffer.dtype, ps[0].lanes
    start = number(identity_element(s.fn, kind), kind, lanes)
    slots = [f"%{w.t.fresh('largest')}" for _ in groups]
    for slot in slots:
        w.t.entry.append(f"  {slot} = alloca {start.type}")
        w.t.line(f"store {start}, ptr {slot}")

    def nest(loops: Sequence[For]) -> None:
        if loops:
            with w.loop(loops[0].axis):
                nest(loops[1:])
            return
        for slot, g in zip(slots, groups, strict=True):
            some = [_emit_term(w, window, ps[n], k) for n, k in g.terms]
            old = w.t.make(f"load {start.type}, ptr {slot}", kind, lanes)
            w.t.line(f"store {emit_fold(w.t, fn, some, old)}, ptr {slot}")

    nest(window.loops)
    return [[w.t.make(f"load {start.type}, ptr {slot}", kind, lanes)] for slot in slots]


def _emit_separately(w: Writer, window: Window, ps: Sequence[TilePosition]) -> None:
    """Emit each position's extremum on its own."""
    s = window.update
    for p in ps:
        some = [_emit_term(w, window, p, k) for k in _window_steps(window.axes)]
        old = w.t.splat(emit_load(w, s.buffer, s.index, p), p.lanes)
        emit_store(w, s.buffer, s.index, emit_fold(w.t, REDUCTION_COMBINERS[s.fn], some, old), p)


def _emit_term(w: Writer, window: Window, p: TilePosition, k: Sequence[int]) -> Value:
    with w.unrolled_step(dict(zip(window.axes, k, strict=True))):
        more = w.t.splat(emit_value(w, window.update.value, p), p.lanes)
        return emit_cast(w.t, more, window.update.buffer.dtype)


def _window_steps(axes: Sequence[Axis]) -> list[tuple[int, ...]]:
    return list(product(*(range(a.size) for a in axes)))
