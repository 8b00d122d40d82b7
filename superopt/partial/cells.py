"""Where programs may begin or cease to be equal: the break points of their index maps.

Along an axis of the output these are the places where a condition on indices turns (the edges of
padding, the seams of what was joined), for any place in a sum; and where a quotient or a rest does
(what was folded). What is folded by little (every other row) is not cut there but taken apart, into
every n-th element. Within such a cell no condition changes and all index maps are affine, so that
few elements tell of all (Wang et al., PET, OSDI 2021, section 5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise, product
from math import gcd, prod

import numpy as np

from superopt.partial.boxes import Box, Span, whole
from superopt.partial.indices import number
from superopt.te import affine
from superopt.te import index as ix
from superopt.te.dtype import INDEX
from superopt.te.node import Apply, Axis, Const, Expr, Index
from superopt.te.walk import operands, parts

PERIOD = 8  # the largest step of cells
PLACES = 1 << 14  # of a sum, at most, in a condition
CELLS = 1 << 16


class TooMany(ValueError):
    """More cells than are worth looking at."""


@dataclass(frozen=True, slots=True)
class _Cell:
    """A box, and the programs' elements in it, by axes that count from 0 there."""

    box: Box
    axes: tuple[Axis, ...]
    bodies: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class _Form:
    """base + sum of coefficient * axis + other, which is no such sum."""

    base: int
    terms: tuple[tuple[Axis, int], ...]
    other: Expr

    def coefficient(self, axis: Axis) -> int:
        return next((c for a, c in self.terms if a == axis), 0)

    def hangs_on(self, axes: Sequence[Axis]) -> bool:
        """Does what is no sum of axes hang on these, or on what is given?"""
        given = any(isinstance(e, Index) for e in parts(self.other))
        return given or not affine.free_axes(self.other).isdisjoint(axes)


def _form(e: Expr) -> _Form:
    linear: ix.Poly = {}
    other: ix.Poly = {}
    for atoms, c in ix.polynomial(e).items():
        alone = not atoms or (len(atoms) == 1 and isinstance(atoms[0], Axis))
        (linear if alone else other)[atoms] = c
    form = affine.affine(ix.from_polynomial(linear))
    assert form is not None
    return _Form(form.base, form.terms, ix.from_polynomial(other))


def cells(axes: Sequence[Axis], bodies: Sequence[Expr]) -> list[Box]:
    """The cells of programs that have these axes, which must have numbers for extents. Raises
    TooMany."""
    shape = [_extent(a) for a in axes]
    out: list[Box] = []
    if 0 in shape:
        return out
    cutter = _Cutter()
    todo = [_Cell(whole(shape), tuple(axes), tuple(affine.substitute(b, {}) for b in bodies))]
    while todo:
        cell = todo.pop()
        cuts, last = cutter.next(cell)
        if len(out) + len(todo) + prod(map(len, cuts.values())) > CELLS:
            raise TooMany(f"more than {CELLS} cells")
        if last:
            out += product(*(_parts(s, cuts.get(k)) for k, s in enumerate(cell.box)))
        else:
            todo += [cutter.part(cell, k, s) for k, spans in cuts.items() for s in spans]
    return out


def _parts(own: Span, spans: Sequence[Span] | None) -> list[Span]:
    return [own] if spans is None else [own.part(s.begin, s.end, s.step) for s in spans]


@dataclass(slots=True)
class _Cutter:
    """Cuts cells; remembers what it made of an expression, since cells that are alike along an axis
    share most of theirs. done: by axis, and what is put for it. asked, gaps: by the ids of
    expressions, which are held."""

    done: dict[tuple[Axis, Expr], affine.Done] = field(default_factory=dict)
    asked: dict[int, tuple[Expr, tuple[Apply, ...]]] = field(default_factory=dict)
    gaps: dict[int, tuple[Apply, Expr, _Form]] = field(default_factory=dict)

    def part(self, cell: _Cell, k: int, own: Span) -> _Cell:
        """The part of a cell at some places along its k-th axis."""
        old = cell.axes[k]
        box = list(cell.box)
        box[k] = box[k].part(own.begin, own.end, own.step)
        new = Axis(f"{old.name.partition('@')[0]}@{box[k]}", own.count)
        at = ix.as_index(new * own.step + own.begin) if own.count > 1 else ix.as_index(own.begin)
        done = self.done.setdefault((old, at), {})
        bodies = tuple(affine.replaced(b, {old: at}, done) for b in cell.bodies)
        return _Cell(tuple(box), (*cell.axes[:k], new, *cell.axes[k + 1 :]), bodies)

    def next(self, cell: _Cell) -> tuple[dict[int, list[Span]], bool]:
        """Axes, and the spans into which they are to be cut, and whether nothing breaks then: one
        axis after another where it may, all at once where each condition hangs on one only."""
        forms: list[tuple[Expr, _Form]] = []
        last = True
        for e in dict.fromkeys(e for b in cell.bodies for e in self.asked_in(b)):
            if e.fn in ("floordiv", "mod"):
                cut = _folded(cell, e)
                if cut is not None:
                    return dict([cut]), False
                last &= not _form(e.args[0]).hangs_on(cell.axes)
            else:
                forms.append(self.gap(e))
        points: dict[int, set[int]] = {}
        nested: list[Expr] = []
        for gap, form in forms:
            own = [a for a, _ in form.terms if a in cell.axes]
            if self.nests(form, cell.axes):
                nested.append(gap)
            elif len(own) > 1 or form.hangs_on(cell.axes):
                cut = _apart(cell, gap)
                if cut is not None:
                    return dict([cut]), False
            elif own:
                c = form.coefficient(own[0])
                turns = {p for rest in _rests(form, own) for p in _around(-rest, c)}
                points.setdefault(cell.axes.index(own[0]), set()).update(turns)
        each = {k: _between(some, _extent(cell.axes[k])) for k, some in points.items()}
        cuts = {k: spans for k, spans in each.items() if len(spans) > 1}
        if nested and not cuts:
            cut = next(filter(None, (_apart(cell, gap) for gap in nested)), None)
            if cut is not None:
                return dict([cut]), False
        if (last and not nested) or not cuts:
            return cuts, True
        return dict([next(iter(cuts.items()))]), False

    def nests(self, form: _Form, axes: Sequence[Axis]) -> bool:
        """Does it hang on the lesser or greater of indices that break, too? Cut there first: what
        is clipped at both ends of an image is one thing between them."""
        inner = (e for e in self.asked_in(form.other) if e.fn in ("min", "max"))
        return any(not affine.free_axes(e).isdisjoint(axes) for e in inner)

    def gap(self, e: Apply) -> tuple[Expr, _Form]:
        """The difference of what is compared, and its form."""
        found = self.gaps.get(id(e))
        if found is None:
            gap = ix.as_index(e.args[0] - e.args[1])
            found = self.gaps[id(e)] = (e, gap, _form(gap))
        return found[1:]

    def asked_in(self, e: Expr) -> tuple[Apply, ...]:
        """Conditions on indices, quotients, rests, and the lesser and greater of indices."""
        found = self.asked.get(id(e))
        if found is None:
            inner = dict.fromkeys(x for part in operands(e) for x in self.asked_in(part))
            if isinstance(e, Apply) and e.fn in _BREAKS and e.args[0].dtype == INDEX:
                inner = {e: None, **inner}
            found = self.asked[id(e)] = (e, tuple(inner))
        return found[1]


_BREAKS = frozenset(("lt", "le", "eq", "ne", "floordiv", "mod", "min", "max"))


def _folded(cell: _Cell, e: Apply) -> tuple[int, list[Span]] | None:
    """How to cut for a quotient or rest: taken apart by little, or cut where it turns. None where
    that is decided, or hangs on what is cut first."""
    x, by = e.args
    if not affine.free_axes(x) & set(cell.axes):
        return None
    form = _form(x)
    if form.hangs_on(cell.axes) or not isinstance(by, Const):
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


def _apart(cell: _Cell, e: Expr) -> tuple[int, list[Span]] | None:
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


def _rests(form: _Form, but: Sequence[Axis]) -> set[int]:
    """What a form may be without these axes, at all places of sums."""
    over = tuple((a, c) for a, c in form.terms if a not in but)
    return {form.base + x for x in _sums(over, form.other)}


@lru_cache(maxsize=1 << 12)
def _sums(over: tuple[tuple[Axis, int], ...], other: Expr) -> tuple[int, ...]:
    """What a sum of coefficient * axis, and more, may be."""
    axes = list(dict.fromkeys((*(a for a, _ in over), *affine.free_axes(other))))
    if prod(map(_extent, axes)) > PLACES:
        raise TooMany(f"more than {PLACES} places of a sum")
    at = dict(zip(axes, np.ogrid[tuple(slice(_extent(a)) for a in axes)], strict=True))
    some = sum((c * at[a] for a, c in over), number(other, at))
    return tuple(np.unique(some).tolist())


def _extent(a: Axis) -> int:
    if not isinstance(a.extent, int):
        raise TooMany(f"{a} has the symbolic extent {a.extent}")
    return a.extent
