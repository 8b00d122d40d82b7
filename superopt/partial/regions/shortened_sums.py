"""Shorten sums while preserving equality and inequality of two programs.

A tensor of which each place of a sum reads its own elements only is taken as 0 at most of these
places.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from superopt.partial.regions.degrees import sum_degree
from superopt.partial.regions.points import is_ring_expression
from superopt.te.analysis.affine import SubstitutionMemo, substitute_unsimplified
from superopt.te.analysis.walk import (
    index_axes,
    operands,
    reductions,
    subexpressions,
    with_operands,
)
from superopt.te.expr import index
from superopt.te.expr.dtype import INDEX
from superopt.te.expr.node import Apply, Axis, Const, Expr, Index, Load, Reduce
from superopt.te.expr.tensor import Tensor

MIN_PLACES = 2
WINDOW_ENDS = 2
_COMMUTATIVE_REDUCTIONS = frozenset(("sum", "prod", "max", "min"))  # in any order


def shorten_sums(
    bodies: Sequence[Expr], axes: Sequence[Axis], over_reals: bool = False
) -> list[Expr]:
    """Sums over long axes (channels) as sums over few of their places, where these are all alike:
    such an axis is only read by, as an index of its own, and where it is read by nothing else is,
    but by axes of the same kind, of which some may be among `axes`, those of the result. Then no
    place is distinguished from another: a product of factors of some places is in the sum as often
    as the same one of other places. What is equal for few places is equal for all: as many as one
    product reads, of sums (`degrees.py`) and of the result. What reads nothing of the axis counts
    its places, and would be less of fewer. zeros: only where what differs of few does of all, over
    numbers, too: functions of 0 must be 0, and have no bound, since a sum of two signs is never
    below -2, as one of three is."""
    some = (
        (a, n)
        for kind, n in _shortened_kinds(bodies, axes, over_reals)
        for a in kind.difference(axes)
    )
    return _replace_sums(bodies, {a: (n, 1) for a, n in some if a.size > n})


def interchangeable_columns(
    bodies: Sequence[Expr], axes: Sequence[Axis]
) -> list[tuple[list[int], int]]:
    """Return groups of positions in `axes` whose places are interchangeable, and how many places
    represent all of them after `shorten_sums`. Axes of a group, and axes of sums and maxima, index
    the same dims and nothing else."""
    found = _axis_kinds(
        bodies, lambda r, a: r.fn in _COMMUTATIVE_REDUCTIONS and _is_only_index(r.body, a), axes
    )
    short = {a: n for kind, n in _shortened_kinds(bodies, axes, False) for a in kind}
    kinds = ([n for n, a in enumerate(axes) if a in kind] for kind in found)
    return [(k, short.get(axes[k[0]], len(k))) for k in kinds if k]


def canonical_places(places: np.ndarray, kinds: Sequence[tuple[list[int], int]]) -> np.ndarray:
    """Map places (count, axes) to representatives: axes of a group at equal places stay equal,
    others stay distinct."""
    out = places.copy()
    for some, count in kinds:
        for n, a in enumerate(some):
            out[:, a] %= count
            for _ in some[:n]:
                for b in some[:n]:
                    differ = places[:, a] != places[:, b]
                    out[:, a] += differ & (out[:, a] == out[:, b])
                    out[:, a] %= count
            for b in some[:n]:
                out[:, a] = np.where(places[:, a] == places[:, b], out[:, b], out[:, a])
    return out


def _shortened_kinds(
    bodies: Sequence[Expr], axes: Sequence[Axis], zeros: bool
) -> list[tuple[frozenset[Axis], int]]:
    """Return the groups of axes that contain summed axes, and how many places represent each."""

    def fine(r: Reduce, a: Axis) -> bool:
        return r.fn == "sum" and _is_only_index(r.body, a) and _vanishes_with(r.body, a, zeros)

    out = []
    for kind in _axis_kinds(bodies, fine, axes):
        if over := kind.difference(axes):
            n = max(MIN_PLACES, sum_degree(bodies, over)) + len(kind) - len(over)
            out.append((kind, n))
    return out


def thin_windows(bodies: Sequence[Expr]) -> list[Expr]:
    """Shorten sums over windows to their ends. A difference there is a difference of the whole,
    since a kernel may be 0 elsewhere; equality there decides nothing. Only for sums and products.
    """
    if not all(map(is_ring_expression, bodies)):
        return list(bodies)
    found = _axis_kinds(bodies, lambda r, a: r.fn == "sum" and _vanishes_with(r.body, a))
    some = ((a, a.size) for kind in found for a in kind)
    return _replace_sums(bodies, {a: (WINDOW_ENDS, n - 1) for a, n in some if n > WINDOW_ENDS})


def _axis_kinds(
    bodies: Sequence[Expr], accepts: Callable[[Reduce, Axis], bool], outer: Sequence[Axis] = ()
) -> list[frozenset[Axis]]:
    """Return groups of accepted axes: all axes that index the same dim of the same tensor, each of
    which must be accepted, or be one of `outer` used only as an index, with the same extent."""
    told = {a: all(_is_only_index(b, a) for b in bodies) for a in outer}
    for r in (r for body in bodies for r in reductions(body)):
        told |= {a: told.get(a, True) and accepts(r, a) for a in r.axes}
    read: dict[tuple[Tensor, int], set[Axis | None]] = {}
    for e in (e for body in bodies for e in subexpressions(body) if isinstance(e, Load)):
        for d, i in enumerate(e.index):
            at = i if isinstance(i, Axis) and i in told else None
            read.setdefault((e.tensor, d), set()).add(at)
    kinds = {a: frozenset((a,)) for a in told}
    bad = {a for a, yes in told.items() if not yes}
    for some in read.values():
        own = [a for a in some if a is not None]
        if len(own) < len(some) or len({a.size for a in own}) > 1:
            bad.update(own)
        whole = frozenset[Axis]().union(*(kinds[a] for a in own))
        kinds.update(dict.fromkeys(whole, whole))  # what is with one that is bad is, too
    return [k for k in dict.fromkeys(kinds.values()) if k.isdisjoint(bad)]


def _is_only_index(e: Expr, a: Axis) -> bool:
    """True if `a` occurs only as an index of a load."""
    match e:
        case Axis():
            return e != a
        case Load(_, index):
            return all(i == a or a not in index_axes(i) for i in index)
        case Apply(_, args):
            return all(_is_only_index(x, a) for x in args)
        case Reduce(_, _, body):
            return _is_only_index(body, a)
        case Index(element, bound):
            return _is_only_index(element, a) and _is_only_index(bound, a)
    return True


def _vanishes_with(e: Expr, a: Axis, zeros: bool = False) -> bool:
    """True if `e` is 0 where all loads at a place of `a` are 0. The value of a function counts as a
    load, unless `zeros`."""
    match e:
        case Const(value):
            return value == 0
        case Load(_, index):
            return a in index
        case Reduce(_, _, body):
            return _vanishes_with(body, a, zeros)
        case Apply("add" | "sub" | "neg", args):
            return all(_vanishes_with(x, a, zeros) for x in args)
        case Apply("select", (_, *args)):
            return all(_vanishes_with(x, a, zeros) for x in args)
        case Apply("div", (above, _)):
            return _vanishes_with(above, a, zeros)
        case Apply("mul", args):
            return any(_vanishes_with(x, a, zeros) for x in args)
        case Apply(fn, args) if zeros:
            return fn in _UNBOUNDED and all(_vanishes_with(x, a, zeros) for x in args)
        case Apply(_, args):
            return any(a in index_axes(x) for x in args)
    return False


_UNBOUNDED = frozenset(("max", "min", "abs", "tan"))  # 0 of 0; of others few are never much


def _replace_sums(bodies: Sequence[Expr], change: Mapping[Axis, tuple[int, int]]) -> list[Expr]:
    """Replace each of these sums by one over `count` places, every step-th."""
    if not change:
        return list(bodies)
    over = {a: Axis(a.name, count) for a, (count, _) in change.items()}
    at: dict[Expr, Expr] = {a: index.as_index(x * change[a][1]) for a, x in over.items()}
    done: SubstitutionMemo = {}
    return [_rename_reduction_axes(over, substitute_unsimplified(b, at, done), {}) for b in bodies]


def _rename_reduction_axes(axes: Mapping[Axis, Axis], e: Expr, done: SubstitutionMemo) -> Expr:
    """Replace the axes of reductions."""
    if e.dtype == INDEX and not isinstance(e, Index):
        return e
    if id(e) not in done:
        made = with_operands(e, [_rename_reduction_axes(axes, x, done) for x in operands(e)])
        if isinstance(made, Reduce):
            over = tuple(axes.get(a, a) for a in made.axes)
            made = Reduce(made.fn, over, made.body, made.dtype)
        done[id(e)] = (e, made)
    return done[id(e)][1]
