"""Boxes: strided sub-ranges of a tensor along each axis."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

PERIODS = (2, 3, 4, 5, 6, 7, 8)  # steps that are looked for
MIN_PERIODIC_COUNT = 3  # elements that make a step


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """The indices begin, begin + step, ... below end."""

    begin: int
    end: int
    step: int = 1

    @property
    def count(self) -> int:
        return max(0, -((self.begin - self.end) // self.step))

    def indices(self) -> range:
        return range(self.begin, self.end, self.step)

    def index_at(self, k: int) -> int:
        """Return the k-th index."""
        return self.begin + k * self.step

    def part(self, begin: int, end: int, step: int = 1) -> Span:
        """Return the sub-span of positions begin, begin + step, ... below end."""
        last = begin + (len(range(begin, end, step)) - 1) * step
        return Span(self.index_at(begin), self.index_at(last) + 1, self.step * step)

    def __str__(self) -> str:
        if self.count == 1:
            return str(self.begin)
        return f"{self.begin}:{self.end}" + (f":{self.step}" if self.step > 1 else "")


Box = tuple[Span, ...]


def full_box(shape: Sequence[int]) -> Box:
    return tuple(Span(0, n) for n in shape)


def volume(box: Box) -> int:
    """Return the number of elements of a box."""
    return prod(s.count for s in box)


def split_box(box: Box, inside: np.ndarray) -> tuple[list[Box], list[Box]]:
    """Split a box into the boxes inside and outside a mask, along its last axis. inside: one flag
    for each element, in row-major order."""
    *before, last = box or (Span(0, 1),)
    rows = inside.reshape(-1, last.count)
    begin = np.ones_like(rows)
    begin[:, 1:] = rows[:, 1:] != rows[:, :-1]
    row, at = np.nonzero(begin)
    behind = np.append(at[1:], 0)
    ends = np.where(behind == 0, last.count, behind)  # the next run begins a row
    places = np.unravel_index(row, [s.count for s in before]) if before else ()
    some = [s.begin + p * s.step for s, p in zip(before, places, strict=True)]
    told: tuple[list[Box], list[Box]] = ([], [])
    for *own, a, b, yes in zip(
        *(x.tolist() for x in (*some, at, ends, rows[row, at])), strict=True
    ):
        one = (*(Span(i, i + 1) for i in own), last.part(a, b))
        told[0 if yes else 1].append(one if box else box)
    return told


def format_box(box: Box) -> str:
    return "[" + ", ".join(map(str, box)) + "]"


def slices(box: Box) -> tuple[slice, ...]:
    """Return the box as numpy slices."""
    return tuple(slice(s.begin, s.end, s.step) for s in box)


def mask(boxes: Iterable[Box], shape: Sequence[int]) -> np.ndarray:
    """Return which elements are in one of the boxes."""
    out = np.zeros(tuple(shape), bool)
    for b in boxes:
        out[slices(b)] = True
    return out


def merge_boxes(boxes: Iterable[Box], shape: Sequence[int]) -> tuple[Box, ...]:
    """Merge disjoint boxes into fewer ones. Boxes that differ in one axis only are merged, axis by
    axis, from the last one."""
    some = list(boxes)
    before = 0
    while len(some) != before:
        before = len(some)
        for axis in reversed(range(len(shape))):
            some = _merge_along(axis, some, shape[axis])
    return tuple(sorted(some))


def _merge_along(axis: int, boxes: Iterable[Box], size: int) -> list[Box]:
    alike: dict[tuple[Box, Box], list[Span]] = {}
    for b in boxes:
        alike.setdefault((b[:axis], b[axis + 1 :]), []).append(b[axis])
    return [
        (*before, s, *behind)
        for (before, behind), spans in alike.items()
        for s in merge_spans(spans, size)
    ]


def merge_spans(spans: Sequence[Span], size: int) -> list[Span]:
    """Return the same indices, all below `size`, as few spans: contiguous or strided runs."""
    if len(spans) == 1:
        return list(spans)
    there = np.zeros(size, bool)
    for s in spans:
        there[s.begin : s.end : s.step] = True
    least = _strided_runs(there, 1, size + 1)
    for step in PERIODS:
        if len(least) > 1 and step < size:
            other = _strided_runs(there, step, len(least))
            if other and all(
                s.count not in range(2, MIN_PERIODIC_COUNT) for s in other
            ):  # two are no period
                least = other
    return least


def _strided_runs(there: np.ndarray, step: int, limit: int) -> list[Span]:
    """Return the strided runs of a mask, or an empty list if there are `limit` or more."""
    size = len(there)
    wide = np.zeros(size + 2 * step, bool)
    wide[step : size + step] = there
    begins = np.flatnonzero(there & ~wide[:size])
    if len(begins) >= limit:
        return []
    ends = np.flatnonzero(there & ~wide[2 * step :])
    if step > 1:  # the ends of a run have the same rest
        begins, ends = (x[np.argsort(x % step, kind="stable")] for x in (begins, ends))
    return [
        Span(first, last + 1, step if last > first else 1)
        for first, last in zip(begins.tolist(), ends.tolist(), strict=True)
    ]
