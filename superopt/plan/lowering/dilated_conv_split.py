"""Split dilated convolutions whose windows reach far beyond the edge into parts that sum fewer
terms.

If the kernel of a dilated convolution is as wide as the image (atrous pyramid pooling; Chen et al.,
arXiv:1706.05587), most terms are zeros of the padding. The result is cut wherever the set of terms
that count changes along an axis. Each part sums only its own terms and is written in place. So it
is along a depth of few slices, half of whose terms are padding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

from superopt.kernels.loops.element import is_range_guard
from superopt.plan.lowering.polyphase import StridedPart, strided_part
from superopt.te.analysis.affine import affine
from superopt.te.analysis.walk import reductions
from superopt.te.expr import index
from superopt.te.expr.node import Apply, Axis, Expr, Load, Reduce
from superopt.te.expr.tensor import Tensor

# Shares of the terms that may remain, at most: of all, and along an axis, else it is not cut. Cut
# along its depth of 2 only, a 3 x 3 x 3 convolution of 7 x 7 pixels and 512 channels takes 7.1 ms;
# cut along all axes 17.1 ms, as a whole 10.3 ms.
MAX_REMAINING_SHARE = 0.7
MAX_AXIS_SHARE = 0.75
MAX_PARTS = 25  # parts


@dataclass(frozen=True, slots=True)
class _Cut:
    """A part along one axis of the result: outputs [begin, begin + size), kernel terms [first,
    first + count)."""

    output_axis: Axis
    kernel_axis: Axis
    begin: int
    size: int
    first: int
    count: int


def split_windows(t: Tensor) -> list[StridedPart]:
    """Return the parts of a tensor; an empty list where computing it as a whole is as fast."""
    found = reductions(t.body)
    if len(found) != 1 or found[0].fn != "sum" or t.body is None:
        return []
    (total,) = found
    cuts = [some for some in _axis_cuts(t, total) if _remaining_share(some) <= MAX_AXIS_SHARE]
    if not cuts or prod(map(len, cuts)) > MAX_PARTS:
        return []
    if prod(map(_remaining_share, cuts)) > MAX_REMAINING_SHARE:
        return []
    return [_build_part(t, some) for some in product(*cuts)]


def _remaining_share(cuts: list[_Cut]) -> float:
    """Return the share of the terms that the parts along an axis sum."""
    terms = sum(c.size * c.count for c in cuts)
    return terms / (cuts[0].output_axis.size * cuts[0].kernel_axis.size)


def _axis_cuts(t: Tensor, total: Reduce) -> list[list[_Cut]]:
    out = []
    for load in _zero_padded_loads(total.body):
        for i, n in zip(load.index, load.tensor.shape, strict=True):
            form = affine(i)
            if form is None or len(form.terms) != 2 or not isinstance(n, int):
                continue
            own = [(a, c) for a, c in form.terms if isinstance(a, Axis) and a in t.axes]
            over = [(a, c) for a, c in form.terms if isinstance(a, Axis) and a in total.axes]
            if len(own) == len(over) == 1 and index.bounds(i) != (0, n - 1):
                (o, step), (k, apart) = own[0], over[0]
                if step > 0 and apart > 0:
                    out.append(_cut_axis(o, k, [(o, step), (k, apart)], form.base, n))
    axes = [some[0].output_axis for some in out]
    return out if len(set(axes)) == len(axes) else []


def _cut_axis(o: Axis, k: Axis, terms: list[tuple[Axis, int]], base: int, n: int) -> list[_Cut]:
    """Return the axis cut wherever another term begins or ends to count."""
    (_, step), (_, apart) = terms
    size, most = o.size, k.size

    def ceil_div(value: int, divisor: int) -> int:
        """Return the least x such that divisor * x >= value."""
        return -(-value // divisor)

    edges = (e - x * apart - base for x in range(most) for e in (0, n))
    begins = sorted({0, *(p for e in edges if 0 < (p := ceil_div(e, step)) < size)})
    out: list[_Cut] = []
    for at, end in zip(begins, [*begins[1:], size], strict=True):
        first = max(ceil_div(-base - at * step, apart), 0)
        count = min(ceil_div(n - base - at * step, apart), most) - first
        if count <= 0:
            first, count = 0, 1  # all of its terms are zeros
        if out and (out[-1].first, out[-1].count) == (first, count):
            out[-1] = _Cut(o, k, out[-1].begin, out[-1].size + end - at, first, count)
        else:
            out.append(_Cut(o, k, at, end - at, first, count))
    return out


def _zero_padded_loads(e: Expr) -> Iterator[Load]:
    """Yield the loads that read zero beyond the edge."""
    match e:
        case Apply("select", (guard, Load() as load, zero)) if is_range_guard(guard, load, zero):
            yield load
        case Apply(_, args):
            for a in args:
                yield from _zero_padded_loads(a)


def _build_part(t: Tensor, cuts: tuple[_Cut, ...]) -> StridedPart:
    begin, sizes = [0] * t.rank, [a.size for a in t.axes]
    for c in cuts:
        d = t.axes.index(c.output_axis)
        begin[d], sizes[d] = c.begin, c.size
    terms = {c.kernel_axis: (c.count, 1, c.first) for c in cuts}
    return strided_part("part", t, begin, (1,) * t.rank, sizes, terms)
