"""Sums over fewer places, which tell as much of whether two programs are equal, or that they are
not.

A tensor of which a place of a sum reads its own elements, and no other ones, is taken to be 0 at
most of these places.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import networkx as nx

from superopt.partial.degrees import sums_degree
from superopt.partial.points import ring
from superopt.te import index as ix
from superopt.te.affine import Done, replaced
from superopt.te.dtype import INDEX
from superopt.te.expr import Tensor
from superopt.te.node import Apply, Axis, Const, Expr, Index, Load, Reduce
from superopt.te.walk import axes_of, operands, parts, rebuilt, reductions

FEW = 2
ENDS = 2


def shortened(
    bodies: Sequence[Expr], zeros: bool = False, first: Sequence[Axis] = ()
) -> list[Expr]:
    """Sums over long axes (channels) as sums over few of their places, where these are all alike:
    such an axis is only read by, as an index of its own, and where it is read by nothing else is.
    Then the terms of one place are of other variables than those of another, and what is equal for
    few places is equal for all: as many as the sums over such an axis in a product, of which each
    may read another one (`degrees.py`). What reads nothing of the axis counts its places, and would
    be less of fewer. zeros: only where what differs of few does of all, over numbers, too:
    functions of 0 must be 0, and have no bound, since a sum of two signs is never below -2, as one
    of three is. first: axes of the result that may be such an index, too, since only their first
    place is asked (`exchanged.py`): it is one place more."""
    found = _places(bodies, lambda e, a: _only_read(e, a) and _nothing_but(e, a, zeros), first)
    change: dict[Axis, tuple[int, int]] = {}
    for some in _together(bodies, [*found, *first]):
        own = some.intersection(found)
        least = max(FEW, sums_degree(bodies, own)) + (len(own) < len(some))
        change |= {a: (least, 1) for a in own if size_of(a) > least}
    return _with(bodies, change)


def thinned(bodies: Sequence[Expr]) -> list[Expr]:
    """Sums over windows as sums over their ends: where these differ the whole does, since a kernel
    may be 0 elsewhere; where they do not it may, too. Of sums and products only: of what a function
    gives there is no place that is 0."""
    if not all(map(ring, bodies)):
        return list(bodies)
    some = ((a, size_of(a)) for a in _places(bodies, _nothing_but))
    return _with(bodies, {a: (ENDS, n - 1) for a, n in some if n > ENDS})


def _places(
    bodies: Sequence[Expr], fine: Callable[[Expr, Axis], bool], first: Sequence[Axis] = ()
) -> list[Axis]:
    """The axes of sums that are fine, with all others that are an index of the same dim of the same
    tensor, of which each must be such an axis, or one of the first, and of as many places."""
    told: dict[Axis, bool] = {}
    for r in (r for body in bodies for r in reductions(body)):
        for a in r.axes:
            told[a] = told.get(a, True) and r.fn == "sum" and fine(r.body, a)
    read: dict[tuple[Tensor, int], set[Axis | None]] = {}
    for e in (e for body in bodies for e in parts(body) if isinstance(e, Load)):
        for d, i in enumerate(e.index):
            at = i if isinstance(i, Axis) and (i in told or i in first) else None
            read.setdefault((e.tensor, d), set()).add(at)
    bad = {a for a, yes in told.items() if not yes}
    while True:  # what is an index with one that is not fine is not, either
        more = set[Axis]()
        for some in read.values():
            own = {a for a in some if a is not None}
            if len(own) < len(some) or len(set(map(size_of, own))) > 1 or not own.isdisjoint(bad):
                more |= own
        if more <= bad:
            return [a for a in told if a not in bad]
        bad |= more


def _together(bodies: Sequence[Expr], some: Sequence[Axis]) -> list[set[Axis]]:
    """Those of these axes that are an index of the same dims."""
    read: nx.Graph[object] = nx.Graph()
    read.add_nodes_from(some)
    for e in (e for body in bodies for e in parts(body) if isinstance(e, Load)):
        read.add_edges_from(((e.tensor, d), i) for d, i in enumerate(e.index) if i in read)
    return [set(some).intersection(found) for found in nx.connected_components(read)]


def size_of(a: Axis) -> int:
    assert isinstance(a.extent, int)
    return a.extent


def _only_read(e: Expr, a: Axis) -> bool:
    """Does `a` occur only as an index of what is read?"""
    match e:
        case Axis():
            return e != a
        case Load(_, index):
            return all(i == a or a not in axes_of(i) for i in index)
        case Apply(_, args):
            return all(_only_read(x, a) for x in args)
        case Reduce(_, _, body):
            return _only_read(body, a)
        case Index(element, bound):
            return _only_read(element, a) and _only_read(bound, a)
    return True


def _nothing_but(e: Expr, a: Axis, zeros: bool = False) -> bool:
    """Is `e` 0 where all that is read at a place of `a` is? What a function has of it counts as one
    more thing that is read there, unless `zeros`."""
    match e:
        case Const(value):
            return value == 0
        case Load(_, index):
            return a in index
        case Reduce(_, _, body):
            return _nothing_but(body, a, zeros)
        case Apply("add" | "sub" | "neg", args):
            return all(_nothing_but(x, a, zeros) for x in args)
        case Apply("select", (_, *args)):
            return all(_nothing_but(x, a, zeros) for x in args)
        case Apply("div", (above, _)):
            return _nothing_but(above, a, zeros)
        case Apply("mul", args):
            return any(_nothing_but(x, a, zeros) for x in args)
        case Apply(fn, args) if zeros:
            return fn in _UNBOUNDED and all(_nothing_but(x, a, zeros) for x in args)
        case Apply(_, args):
            return any(a in axes_of(x) for x in args)
    return False


_UNBOUNDED = frozenset(("max", "min", "abs", "tan"))  # 0 of 0; of others few are never much


def _with(bodies: Sequence[Expr], change: Mapping[Axis, tuple[int, int]]) -> list[Expr]:
    """Instead of each of these sums one over so many places, every step-th."""
    if not change:
        return list(bodies)
    over = {a: Axis(a.name, count) for a, (count, _) in change.items()}
    at: dict[Expr, Expr] = {a: ix.as_index(x * change[a][1]) for a, x in over.items()}
    done: Done = {}
    return [_over(over, replaced(b, at, done), {}) for b in bodies]


def _over(axes: Mapping[Axis, Axis], e: Expr, done: Done) -> Expr:
    """With sums over other axes."""
    if e.dtype == INDEX and not isinstance(e, Index):
        return e
    if id(e) not in done:
        made = rebuilt(e, [_over(axes, x, done) for x in operands(e)])
        if isinstance(made, Reduce):
            over = tuple(axes.get(a, a) for a in made.axes)
            made = Reduce(made.fn, over, made.body, made.dtype)
        done[id(e)] = (e, made)
    return done[id(e)][1]
