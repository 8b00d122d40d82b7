"""Find the boxes on which two programs are equal, from few elements of each.

Programs are compared cell by cell (`cells.py`), at m + 1 elements along m axes and some more, on
random inputs over a prime field (PET, section 5.2). The result is a claim about the cells, which
`claims.py` states and the verifier proves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from superopt.ir import graph
from superopt.partial.regions.boxes import Box, Span, mask, merge_boxes, split_box, volume
from superopt.partial.regions.cells import find_cells
from superopt.partial.regions.composition import Composer
from superopt.partial.regions.concat_seams import find_seams
from superopt.partial.regions.degrees import chance_degree
from superopt.partial.regions.equality import FIELD_INPUTS, Comparison
from superopt.partial.regions.points import MODULUS, term_count
from superopt.partial.regions.translation import translated_axes
from superopt.te.analysis.inline import substitute_axes
from superopt.te.analysis.walk import share_subexpressions
from superopt.te.expr.node import Axis, Expr
from superopt.te.expr.tensor import Tensor, compute

MAX_EXHAUSTIVE_ELEMENTS = 4096  # elements of a result of which each is compared
MAX_EXHAUSTIVE_TERMS = 1 << 24  # terms of sums, beyond which this is not done
MAX_LATER_TERMS = (
    1 << 17
)  # terms of sums that are computed to compare each element of cells that differ
MAX_TWO_SAMPLE_CELLS = (
    64  # cells of which two elements are compared, though they are one as the other
)
RANDOM_SAMPLES_PER_CELL = 3  # elements of a cell beside its first and those next to it


@dataclass(frozen=True, slots=True)
class Regions:
    """equal, different: boxes that partition the shape. elements: how many were compared. chance:
    upper bound (Schwartz-Zippel) that one of them is equal by chance: the degree over the modulus,
    for each input; None for programs beyond sums, products and quotients.

    exact: no element of `different` is equal. Index maps may coincide on less than a box (a
    transpose keeps the diagonal), which an exhaustive comparison finds if the result is small
    enough; and not all laws of functions are known (`equality.py`). Otherwise `different` may
    contain equal elements, which are recomputed; `equal` never contains one that differs.
    """

    shape: tuple[int, ...]
    equal: tuple[Box, ...]
    different: tuple[Box, ...]
    compared_elements: int
    chance: Fraction | None
    is_exact: bool = True

    @property
    def equal_share(self) -> float:
        """The share of equal elements."""
        total = sum(map(volume, self.equal)) + sum(map(volume, self.different))
        return sum(map(volume, self.equal)) / total if total else 1.0

    def mask(self) -> np.ndarray:
        return mask(self.equal, self.shape)


def find_regions(
    a: graph.Value, b: graph.Value, max_exhaustive: int = MAX_EXHAUSTIVE_ELEMENTS
) -> Regions:
    """Return where a == b for all inputs. They must have the same static type; constants may be
    anything. max_exhaustive: up to how many result elements are all compared. Raises ValueError for
    different types, InferError for an operator without a tensor expression, TooManyCells if the
    index maps have too many break points."""
    both = Composer()
    return regions_of_tensors(both.tensor(a), both.tensor(b), max_exhaustive)


def regions_of_tensors(
    a: Tensor, b: Tensor, max_exhaustive: int = MAX_EXHAUSTIVE_ELEMENTS
) -> Regions:
    """As `find_regions`, for tensors that read inputs only."""
    if a.type != b.type:
        raise ValueError(f"{a.type} and {b.type}")
    shape = tuple(d for d in a.shape if isinstance(d, int))
    if len(shape) < a.rank:
        raise ValueError(f"{a.type} has symbolic sizes")
    a, b = _as_computed(a), _as_computed(b)
    assert a.body is not None
    assert b.body is not None
    bodies = share_subexpressions(
        [a.body, substitute_axes(b.body, dict(zip(b.axes, a.axes, strict=True)))]
    )
    told = _compare_seams(a.axes, bodies, max_exhaustive)
    return Regions(
        shape,
        merge_boxes(told.equal, shape),
        merge_boxes(told.different, shape),
        told.elements,
        told.chance,
        told.exact,
    )


def _compare_seams(
    axes: Sequence[Axis], bodies: Sequence[Expr], max_exhaustive: int
) -> _FoundRegions:
    """Compare programs that concatenate the same parts part by part."""
    apart = find_seams(axes, bodies)
    if apart is None:
        return _compare_programs(axes, bodies, max_exhaustive)
    k, own = apart
    some = [_compare_programs(p.axes, p.bodies, max_exhaustive) for p in own]
    pairs = list(zip(own, some, strict=True))
    known = [told.chance for told in some if told.chance is not None]
    return _FoundRegions(
        [_shift_box(b, k, p.begin) for p, told in pairs for b in told.equal],
        [_shift_box(b, k, p.begin) for p, told in pairs for b in told.different],
        sum(told.elements for told in some),
        all(told.exact for told in some),
        max(known) if len(known) == len(some) else None,
    )


class _FoundRegions(NamedTuple):
    """As `Regions`, with unmerged boxes."""

    equal: list[Box]
    different: list[Box]
    elements: int
    exact: bool
    chance: Fraction | None


def _compare_programs(
    axes: Sequence[Axis], bodies: Sequence[Expr], max_exhaustive: int
) -> _FoundRegions:
    found = find_cells(axes, bodies)
    programs = Comparison.from_bodies(axes, bodies)
    equal, different, count, exact = _compare_cells(programs, found, max_exhaustive)
    most = chance_degree(*programs.full_bodies)
    chance = Fraction(most, MODULUS) ** FIELD_INPUTS if programs.is_rational else None
    return _FoundRegions(equal, different, count, exact, chance)


def _shift_box(box: Box, k: int, by: int) -> Box:
    s = box[k]
    return (*box[:k], Span(s.begin + by, s.end + by, s.step), *box[k + 1 :])


def _as_computed(t: Tensor) -> Tensor:
    return t if t.body is not None else compute(t.shape, lambda *i: t[i])


def _compare_cells(
    programs: Comparison, found: Sequence[Box], max_exhaustive: int
) -> tuple[list[Box], list[Box], int, bool]:
    """Return the equal boxes, the different boxes, how many elements were compared, and whether the
    result is exact; see `Regions.exact`."""
    if not found:
        return [], [], 0, True
    axes, rank = programs.axes, len(programs.axes)
    along = _translated_axes(axes, programs.bodies, found) | programs.interchangeable_axes
    as_first = dict(zip(found, along.tolist(), strict=True))
    alike = [c for c in found if all(as_first[c])]
    unlike = [c for c in found if not all(as_first[c])]
    others = [_collapse_along(c, as_first[c]) for c in unlike]
    cost = sum(map(term_count, programs.bodies))
    small = sum(map(volume, others)) <= min(max_exhaustive, MAX_EXHAUSTIVE_TERMS // cost)
    few, first = _sample_elements(alike, rank, ends_only=True)
    many, behind = _all_elements(others, rank) if small else _sample_elements(others, rank)
    places, begins = np.concatenate((few, many)), np.concatenate((first, behind + len(few)))
    found = [*alike, *unlike]
    cores = [*alike, *others]
    sizes = [volume(c) for c in cores]
    same, doubtful = programs.compare(places)
    every = np.logical_and.reduceat(same, begins).tolist()
    some = np.logical_or.reduceat(same, begins).tolist()
    left = MAX_LATER_TERMS // cost
    equal: list[Box] = []
    different: list[Box] = []
    apart: list[Box] = []
    exact = not doubtful.any()
    for n in sorted(range(len(found)), key=lambda n: (not some[n], sizes[n])):  # equal ones first
        if every[n]:
            equal.append(found[n])
        elif (small or n < len(alike)) and not some[n]:
            different.append(found[n])
        elif sizes[n] <= left:
            left -= sizes[n]
            apart.append(found[n])
        else:
            different.append(found[n])
            exact = False
    core = dict(zip(found, cores, strict=True))
    more, begins = _all_elements([core[c] for c in apart], rank)
    same, doubtful = programs.compare(more)
    each = np.split(same, begins[1:]) if apart else []
    for box, own in zip(apart, each, strict=True):
        if own.any():
            some_equal, some_different = split_box(core[box], own)
            equal += [_expand_core(x, box, core[box]) for x in some_equal]
            different += [_expand_core(x, box, core[box]) for x in some_different]
        else:
            different.append(box)
    return equal, different, len(places) + len(more), exact and not doubtful.any()


def _collapse_along(cell: Box, along: Sequence[bool]) -> Box:
    """Collapse the cell along axes on which all of its elements are equivalent."""
    return tuple(Span(s.begin, s.begin + 1) if a else s for s, a in zip(cell, along, strict=True))


def _expand_core(part: Box, cell: Box, core: Box) -> Box:
    """Expand a part of a cell's core along the collapsed axes."""
    return tuple(p if s == c else s for p, s, c in zip(part, cell, core, strict=True))


def _span_arrays(boxes: Sequence[Box], rank: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return begins, steps and counts of boxes: (boxes, axes) each."""
    told = np.array([(s.begin, s.step, s.count) for b in boxes for s in b], np.int64)
    begins, steps, counts = told.reshape(len(boxes) * rank, 3).T.reshape(3, len(boxes), rank)
    return begins, steps, counts


def _all_elements(boxes: Sequence[Box], rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Return all elements, (count, axes), in row-major order, and where those of each box begin."""
    begins, steps, counts = _span_arrays(boxes, rank)
    sizes = counts.prod(1)
    first = np.cumsum(sizes) - sizes
    box = np.repeat(np.arange(len(boxes)), sizes)
    left = np.arange(len(box)) - first[box]
    out = np.empty((len(box), counts.shape[1]), np.int64)
    for d in reversed(range(counts.shape[1])):
        left, out[:, d] = np.divmod(left, counts[box, d])
    return out * steps[box] + begins[box], first


def _translated_axes(
    axes: Sequence[Axis], bodies: Sequence[Expr], boxes: Sequence[Box]
) -> np.ndarray:
    begins, steps, counts = _span_arrays(boxes, len(axes))
    return translated_axes(axes, bodies, begins, np.where(counts > 1, steps, 0))


def _sample_elements(
    boxes: Sequence[Box], rank: int, ends_only: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Return sampled elements without duplicates: of each box the first, its neighbours along each
    axis, the last, and some random ones; ends_only: the first, and the last if there are few boxes.
    """
    begins, steps, counts = _span_arrays(boxes, rank)
    number = len(boxes)
    most = counts[:, None, :] - 1
    near = np.minimum(np.eye(rank + 1, rank, k=-1, dtype=np.int64), most)
    drawn = np.random.default_rng(0).random((number, RANDOM_SAMPLES_PER_CELL, rank))
    at = np.concatenate((near, most, (drawn * counts[:, None, :]).astype(np.int64)), 1)
    at = at[:, :: rank + 1][:, : 1 + (number <= MAX_TWO_SAMPLE_CELLS)] if ends_only else at
    box = np.repeat(np.arange(number), at.shape[1])
    at = at.reshape(len(box), rank)
    places = begins[box] + at * steps[box]
    once = np.unique(np.column_stack((box, places)), axis=0)
    return once[:, 1:], np.searchsorted(once[:, 0], np.arange(number))
