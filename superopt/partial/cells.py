"""Where programs may begin or cease to be equal: the break points of their index maps.

Along an axis of the output these are the places where a condition on indices turns (the edges of
padding, the seams of what was joined), for any place in a sum; and where a quotient or a rest does
(what was folded). What is folded by little (every other row) is not cut there but taken apart, into
every n-th element. Within such a cell no condition changes and all index maps are affine, so that
few elements tell of all (Wang et al., PET, OSDI 2021, section 5).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import gcd, prod

from superopt.partial.boxes import Box, Span, whole
from superopt.te import affine
from superopt.te import index as ix
from superopt.te.dtype import INDEX
from superopt.te.node import Apply, Axis, Const, Expr
from superopt.te.walk import parts

PERIOD = 8  # the largest step of cells
PLACES = 1 << 14  # of a sum, at most, in a condition
CELLS = 1 << 16


class TooMany(ValueError):
    """More cells than are worth looking at."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A box, and the programs' elements in it, by axes that count from 0 there."""

    box: Box
    axes: tuple[Axis, ...]
    bodies: tuple[Expr, ...]


def cells(axes: Sequence[Axis], bodies: Sequence[Expr]) -> list[Cell]:
    """The cells of programs that have these axes, which must have numbers for extents. Raises
    TooMany."""
    shape = [_extent(a) for a in axes]
    out: list[Cell] = []
    if 0 in shape:
        return out
    todo = [Cell(whole(shape), tuple(axes), tuple(bodies))]
    while todo:
        cell = todo.pop()
        cut = _next_cut(cell)
        if cut is None:
            out.append(cell)
        else:
            axis, spans = cut
            todo += [_part(cell, axis, s) for s in spans]
        if len(out) + len(todo) > CELLS:
            raise TooMany(f"more than {CELLS} cells")
    return out


def _part(cell: Cell, k: int, own: Span) -> Cell:
    """The part of a cell at some places along its k-th axis."""
    old = cell.axes[k]
    box = list(cell.box)
    box[k] = box[k].part(own.begin, own.end, own.step)
    new = Axis(f"{old.name.partition('@')[0]}@{box[k]}", own.count)
    value = ix.as_index(new * own.step + own.begin) if own.count > 1 else ix.as_index(own.begin)
    bodies = tuple(affine.substitute(b, {old: value}) for b in cell.bodies)
    return Cell(tuple(box), (*cell.axes[:k], new, *cell.axes[k + 1 :]), bodies)


def _next_cut(cell: Cell) -> tuple[int, list[Span]] | None:
    """An axis, and the spans into which it is to be cut; None where nothing breaks."""
    forms: list[Expr] = []
    for e in dict.fromkeys(e for b in cell.bodies for e in _asked(b)):
        if e.fn in ("floordiv", "mod"):
            cut = _folded(cell, e)
            if cut is not None:
                return cut
        else:
            forms.append(ix.as_index(e.args[0] - e.args[1]))
    points: dict[int, set[int]] = {}
    for gap in forms:
        form = affine.affine(gap)
        own = [] if form is None else [a for a, _ in form.terms if a in cell.axes]
        if form is None or len(own) > 1:
            cut = _apart(cell, gap)
            if cut is not None:
                return cut
        elif own:
            c = form.coefficient(own[0])
            turns = {p for rest in _rests(form, own) for p in _around(-rest, c)}
            points.setdefault(cell.axes.index(own[0]), set()).update(turns)
    for k, some in points.items():
        spans = _between(some, _extent(cell.axes[k]))
        if len(spans) > 1:
            return k, spans
    return None


def _asked(e: Expr) -> Iterator[Apply]:
    """Conditions on indices, quotients, rests, and the lesser and greater of indices."""
    for x in parts(e):
        if isinstance(x, Apply) and x.args[0].dtype == INDEX and x.fn in _BREAKS:
            yield x


_BREAKS = frozenset(("lt", "le", "eq", "ne", "floordiv", "mod", "min", "max"))


def _folded(cell: Cell, e: Apply) -> tuple[int, list[Span]] | None:
    """How to cut for a quotient or rest: taken apart by little, or cut where it turns. None where
    that is decided, or hangs on what is cut first."""
    x, by = e.args
    if not affine.free_axes(x) & set(cell.axes):
        return None
    form = affine.affine(x)
    if form is None or not isinstance(by, Const):
        inner = any(affine.free_axes(a) & set(cell.axes) for a in affine.atoms_of(x))
        return None if inner else _apart(cell, x)
    n = int(by.value)
    own = [(a, c) for a, c in form.terms if a in cell.axes]
    for a, c in own:
        period, size = n // gcd(c, n), _extent(a)
        if 1 < period <= min(PERIOD, size - 1) and size * abs(c) > period * n:
            return cell.axes.index(a), [Span(r, size, period) for r in range(period)]
    if len(own) > 1:
        return _apart(cell, x)
    ((a, c),) = own
    ends: set[int] = set()
    for rest in _rests(form, [a]):
        low, high = sorted((rest, c * (_extent(a) - 1) + rest))
        for m in range(-(-low // n), high // n + 1):  # c a + rest reaches n m
            ends |= _around(n * m - rest, c) if c < 0 else {-((rest - n * m) // c)}
    spans = _between(ends, _extent(a))
    return (cell.axes.index(a), spans) if len(spans) > 1 else None


def _between(points: set[int], size: int) -> list[Span]:
    ends = sorted({0, size, *(p for p in points if 0 < p < size)})
    return [Span(a, b) for a, b in pairwise(ends)]


def _apart(cell: Cell, e: Expr) -> tuple[int, list[Span]] | None:
    """Each index by itself along the shortest axis that `e` hangs on."""
    own = [k for k, a in enumerate(cell.axes) if a in affine.free_axes(e) and _extent(a) > 1]
    if not own:
        return None
    k = min(own, key=lambda k: _extent(cell.axes[k]))
    return k, [Span(i, i + 1) for i in range(_extent(cell.axes[k]))]


def _around(x: int, c: int) -> set[int]:
    """The first places from which on c p reaches x, and passes it."""
    if c < 0:
        x, c = -x, -c
    return {-(-x // c), x // c + 1}


def _rests(form: affine.Affine, but: Sequence[Axis]) -> set[int]:
    """What a form may be without these axes, at all places of sums."""
    over = [(a, c) for a, c in form.terms if a not in but]
    if prod(_extent(a) for a, _ in over) > PLACES:
        raise TooMany(f"more than {PLACES} places of a sum")
    return {
        form.base + sum(c * i for (_, c), i in zip(over, at, strict=True))
        for at in product(*(range(_extent(a)) for a, _ in over))
    }


def _extent(a: Axis) -> int:
    if not isinstance(a.extent, int):
        raise TooMany(f"{a} has the symbolic extent {a.extent}")
    return a.extent
