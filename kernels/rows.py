"""Kernels of rows: all that is computed of one row, while it is in the cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from superopt.kernels.schedule import ComputeAt, Parallel, Primitive, Schedule, Split, Vectorize
from superopt.kernels.transform import reduction
from superopt.kernels.walk import stages
from superopt.te.expr import Tensor
from superopt.te.node import Axis

CHUNKS = 8
SUMMED = 256  # lanes of a sum at a time, at most


def scheduled(t: Tensor, lead: int, lanes: int) -> Mapping[Tensor, Schedule]:
    """Of a tensor and of its stages: these are computed in the loop over rows, of which `lead` axes
    say which. lanes: elements at a time."""
    out = within(t, lead, lanes)
    out[t] = (*out[t], *(Parallel(name) for name in shared(t.axes[:lead])))
    return out


def within(t: Tensor, lead: int, lanes: int) -> dict[Tensor, Schedule]:
    """The same, as a part of another kernel."""
    row = t.axes[lead - 1].name
    out: dict[Tensor, Schedule] = {}
    for s in stages([t]):
        steps = [] if s is t else [ComputeAt(t.name, row)]
        found = reduction(s)
        if found is not None:
            out[s] = (*steps, *_sum(found.axes[-1]))
        else:
            out[s] = (*steps, *_vectors(s.axes[-1], lanes if s.rank == t.rank else 1))
    return out


def shared(axes: Sequence[Axis]) -> Iterator[str]:
    """The outer loops that threads share: enough chunks for all of them, and no more, for each one
    is a call."""
    chunks = 1
    for a in axes:
        if chunks >= CHUNKS:
            break
        yield a.name
        chunks *= _size(a)


def _vectors(last: Axis, lanes: int) -> list[Primitive]:
    if _size(last) <= lanes:
        return [Vectorize(last.name)]
    return [Split(last.name, lanes), Vectorize(f"{last.name}.i")]


def _sum(last: Axis) -> list[Primitive]:
    """Across vectors, as many as divide what is summed."""
    extent = _size(last)
    if extent <= SUMMED:
        return [Vectorize(last.name)]
    factor = next((n for n in range(SUMMED, SUMMED // 16, -1) if extent % n == 0), 0)
    return [Split(last.name, factor), Vectorize(f"{last.name}.i")] if factor else []


def _size(a: Axis) -> int:
    assert isinstance(a.extent, int)
    return a.extent
