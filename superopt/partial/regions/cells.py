"""Cells: boxes between the break points of index maps, where equality may change.

Along an output axis a break point is where a condition on indices changes (edges of padding, seams
of a Concat), for any place in a sum, and where a quotient or remainder changes (folded axes). An
axis that is folded by a small factor is not cut but split into its residue classes. Within a cell
no condition changes and all index maps are affine, so a few elements decide for all (Wang et al.,
PET, OSDI 2021, section 5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise, product
from math import gcd, prod

import numpy as np

from superopt.partial.regions.boxes import Box, Span, full_box
from superopt.partial.regions.index_functions import evaluate_index
from superopt.te.analysis import affine
from superopt.te.analysis.walk import operands, subexpressions
from superopt.te.expr import index
from superopt.te.expr.dtype import INDEX
from superopt.te.expr.node import Apply, Axis, Const, Expr, Index

MAX_PERIOD = 8  # the largest step of cells
MAX_SUM_PLACES = 1 << 14  # of a sum, at most, in a condition
MAX_CELLS = 1 << 16


class TooManyCells(ValueError):
    """There are more cells than are worth comparing."""


@dataclass(frozen=True, slots=True)
class _Cell:
    """A box, and the bodies of the programs in it over axes that start at 0."""

    box: Box
    axes: tuple[Axis, ...]
    bodies: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class _PartiallyAffine:
    """base + sum of coefficient * axis + other, where `other` is not affine."""

    base: int
    terms: tuple[tuple[Axis, int], ...]
    other: Expr

    def coefficient(self, axis: Axis) -> int:
        return next((c for a, c in self.terms if a == axis), 0)

    def depends_on(self, axes: Sequence[Axis]) -> bool:
        """True if the part that is not affine depends on these axes or on data."""
        given = any(isinstance(e, Index) for e in subexpressions(self.other))
        return given or not affine.free_axes(self.other).isdisjoint(axes)


def _partially_affine(e: Expr) -> _PartiallyAffine:
    linear: index.Poly = {}
    other: index.Poly = {}
    for atoms, c in index.polynomial(e).items():
        alone = not atoms or (len(atoms) == 1 and isinstance(atoms[0], Axis))
        (linear if alone else other)[atoms] = c
    form = affine.affine(index.from_polynomial(linear))
    assert form is not None
    return _PartiallyAffine(form.base, form.terms, index.from_polynomial(other))


def find_cells(axes: Sequence[Axis], bodies: Sequence[Expr]) -> list[Box]:
    """Return the cells of programs over these axes, which must have static extents. Raises
    TooManyCells."""
    shape = [_extent(a) for a in axes]
    out: list[Box] = []
    if 0 in shape:
        return out
    cutter = _Cutter()
    todo = [_Cell(full_box(shape), tuple(axes), tuple(affine.substitute(b, {}) for b in bodies))]
    while todo:
        cell = todo.pop()
        cuts, last = cutter.next_cuts(cell)
        if len(out) + len(todo) + prod(map(len, cuts.values())) > MAX_CELLS:
            raise TooManyCells(f"more than {MAX_CELLS} cells")
        if last:
            out += product(*(_parts(s, cuts.get(k)) for k, s in enumerate(cell.box)))
        else:
            todo += [cutter.part(cell, k, s) for k, spans in cuts.items() for s in spans]
    return out


def _parts(own: Span, spans: Sequence[Span] | None) -> list[Span]:
    return [own] if spans is None else [own.part(s.begin, s.end, s.step) for s in spans]


@dataclass(slots=True)
class _Cutter:
    """Cuts cells, with caches, since cells that are alike along an axis share most expressions.
    done: by axis and its substitute. asked, gaps: by ids of expressions, which are kept alive."""

    substitutions: dict[tuple[Axis, Expr], affine.SubstitutionMemo] = field(default_factory=dict)
    break_points: dict[int, tuple[Expr, tuple[Apply, ...]]] = field(default_factory=dict)
    gaps: dict[int, tuple[Apply, Expr, _PartiallyAffine]] = field(default_factory=dict)

    def part(self, cell: _Cell, k: int, own: Span) -> _Cell:
        """Return the part of a cell in a sub-span of its k-th axis."""
        old = cell.axes[k]
        box = list(cell.box)
        box[k] = box[k].part(own.begin, own.end, own.step)
        new = Axis(f"{old.name.partition('@')[0]}@{box[k]}", own.count)
        at = (
            index.as_index(new * own.step + own.begin)
            if own.count > 1
            else index.as_index(own.begin)
        )
        done = self.substitutions.setdefault((old, at), {})
        bodies = tuple(affine.substitute_unsimplified(b, {old: at}, done) for b in cell.bodies)
        return _Cell(tuple(box), (*cell.axes[:k], new, *cell.axes[k + 1 :]), bodies)

    def next_cuts(self, cell: _Cell) -> tuple[dict[int, list[Span]], bool]:
        """Return the axes to cut with their spans, and whether no break point remains then. Axes
        are cut one at a time, or all at once if each condition depends on one axis only."""
        forms: list[tuple[Expr, _PartiallyAffine]] = []
        last = True
        for e in dict.fromkeys(e for b in cell.bodies for e in self.breaking_expressions(b)):
            if e.fn in ("floordiv", "mod"):
                cut = _cut_folded(cell, e)
                if cut is not None:
                    return dict([cut]), False
                last &= not _partially_affine(e.args[0]).depends_on(cell.axes)
            else:
                forms.append(self.gap(e))
        points: dict[int, set[int]] = {}
        nested: list[Expr] = []
        for gap, form in forms:
            own = [a for a, _ in form.terms if a in cell.axes]
            if self.depends_on_extremum(form, cell.axes):
                nested.append(gap)
            elif len(own) > 1 or form.depends_on(cell.axes):
                cut = _cut_each(cell, gap)
                if cut is not None:
                    return dict([cut]), False
            elif own:
                c = form.coefficient(own[0])
                turns = {
                    p for rest in _remaining_values(form, own) for p in _turning_points(-rest, c)
                }
                points.setdefault(cell.axes.index(own[0]), set()).update(turns)
        each = {k: _spans_between(some, _extent(cell.axes[k])) for k, some in points.items()}
        cuts = {k: spans for k, spans in each.items() if len(spans) > 1}
        if nested and not cuts:
            cut = next(filter(None, (_cut_each(cell, gap) for gap in nested)), None)
            if cut is not None:
                return dict([cut]), False
        if (last and not nested) or not cuts:
            return cuts, True
        return dict([next(iter(cuts.items()))]), False

    def depends_on_extremum(self, form: _PartiallyAffine, axes: Sequence[Axis]) -> bool:
        """True if the form depends on a min or max of indices that has break points, too. These are
        cut first: an index clipped at both ends of an image is affine between them."""
        inner = (e for e in self.breaking_expressions(form.other) if e.fn in ("min", "max"))
        return any(not affine.free_axes(e).isdisjoint(axes) for e in inner)

    def gap(self, e: Apply) -> tuple[Expr, _PartiallyAffine]:
        """Return the difference of the compared indices, and its form."""
        found = self.gaps.get(id(e))
        if found is None:
            gap = index.as_index(e.args[0] - e.args[1])
            found = self.gaps[id(e)] = (e, gap, _partially_affine(gap))
        return found[1:]

    def breaking_expressions(self, e: Expr) -> tuple[Apply, ...]:
        """Return index conditions, quotients, remainders, minima and maxima."""
        found = self.break_points.get(id(e))
        if found is None:
            inner = dict.fromkeys(
                x for part in operands(e) for x in self.breaking_expressions(part)
            )
            if isinstance(e, Apply) and e.fn in _BREAKING_FUNCTIONS and e.args[0].dtype == INDEX:
                inner = {e: None, **inner}
            found = self.break_points[id(e)] = (e, tuple(inner))
        return found[1]


_BREAKING_FUNCTIONS = frozenset(("lt", "le", "eq", "ne", "floordiv", "mod", "min", "max"))


def _cut_folded(cell: _Cell, e: Apply) -> tuple[int, list[Span]] | None:
    """Return how to cut for a quotient or remainder: into residue classes for a small period, else
    where it changes. None if it is decided, or depends on something that is cut first."""
    x, by = e.args
    if not affine.free_axes(x) & set(cell.axes):
        return None
    form = _partially_affine(x)
    if form.depends_on(cell.axes) or not isinstance(by, Const):
        inner = any(affine.free_axes(a) & set(cell.axes) for a in affine.atoms_of(x))
        return None if inner else _cut_each(cell, x)
    n = int(by.value)
    own = [(a, c) for a, c in form.terms if a in cell.axes]
    for a, c in own:
        period, size = n // gcd(c, n), _extent(a)
        if 1 < period <= min(MAX_PERIOD, size - 1) and size * abs(c) > period * n:
            return cell.axes.index(a), [Span(r, size, period) for r in range(period)]
    if len(own) > 1:
        return _cut_each(cell, x)
    ((a, c),) = own
    ends: set[int] = set()
    for rest in _remaining_values(form, [a]):
        low, high = sorted((rest, c * (_extent(a) - 1) + rest))
        for m in range(-(-low // n), high // n + 1):  # c a + rest reaches n m
            ends |= _turning_points(n * m - rest, c) if c < 0 else {-((rest - n * m) // c)}
    spans = _spans_between(ends, _extent(a))
    return (cell.axes.index(a), spans) if len(spans) > 1 else None


def _spans_between(points: set[int], size: int) -> list[Span]:
    ends = sorted({0, size, *(p for p in points if 0 < p < size)})
    return [Span(a, b) for a, b in pairwise(ends)]


def _cut_each(cell: _Cell, e: Expr) -> tuple[int, list[Span]] | None:
    """Cut into single indices along the shortest axis that `e` depends on."""
    own = [k for k, a in enumerate(cell.axes) if a in affine.free_axes(e) and _extent(a) > 1]
    if not own:
        return None
    k = min(own, key=lambda k: _extent(cell.axes[k]))
    return k, [Span(i, i + 1) for i in range(_extent(cell.axes[k]))]


def _turning_points(x: int, c: int) -> set[int]:
    """Return the first places at which c p reaches x, and exceeds it."""
    if c < 0:
        x, c = -x, -c
    return {-(-x // c), x // c + 1}


def _remaining_values(form: _PartiallyAffine, excluded: Sequence[Axis]) -> set[int]:
    """Return the values of a form without the excluded axes, over all places of sums."""
    over = tuple((a, c) for a, c in form.terms if a not in excluded)
    return {form.base + x for x in _sum_values(over, form.other)}


@lru_cache(maxsize=1 << 12)
def _sum_values(over: tuple[tuple[Axis, int], ...], other: Expr) -> tuple[int, ...]:
    """Return the values of a sum of coefficient * axis plus `other`."""
    axes = list(dict.fromkeys((*(a for a, _ in over), *affine.free_axes(other))))
    if prod(map(_extent, axes)) > MAX_SUM_PLACES:
        raise TooManyCells(f"more than {MAX_SUM_PLACES} places of a sum")
    at = dict(zip(axes, np.ogrid[tuple(slice(_extent(a)) for a in axes)], strict=True))
    some = sum((c * at[a] for a, c in over), evaluate_index(other, at))
    return tuple(np.unique(some).tolist())


def _extent(a: Axis) -> int:
    if not isinstance(a.extent, int):
        raise TooManyCells(f"{a} has the symbolic extent {a.extent}")
    return a.extent
