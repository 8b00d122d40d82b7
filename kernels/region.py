"""Which part of a tensor is read inside a loop: where it begins, and how far it goes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from superopt.kernels.transform import Region, Scheduled
from superopt.te import affine
from superopt.te import index as ix
from superopt.te.expr import Tensor
from superopt.te.node import Axis, Expr
from superopt.te.walk import axes_of, loads


def region(t: Tensor, readers: Sequence[Scheduled], outer: Iterable[Axis]) -> Region:
    """The box of `t` that all `readers` read while the axes `outer` stand still.

    An index a + b, where a hangs on these and b on others, begins at a + min b. What is no such
    sum, hangs on data, or goes beyond the tensor, is a whole axis.
    """
    fixed = frozenset(outer)
    reads = [
        tuple(ix.substitute(i, r.env) for i in load.index)
        for r in readers
        if r.tensor.body is not None
        for load in loads(r.tensor.body)
        if load.tensor is t
    ]
    out = []
    for d, n in enumerate(t.shape):
        assert isinstance(n, int)
        found = [_span(index[d], fixed) for index in reads]
        out.append(_joined(found, n))
    return tuple(out)


Span = tuple[Expr, int, int]  # what stands still, and from where to where the rest goes


def _span(i: Expr, fixed: frozenset[Axis]) -> Span | None:
    still: ix.Poly = {}
    moving: ix.Poly = {}
    for atoms, c in ix.polynomial(i).items():
        axes = frozenset[Axis]().union(*map(axes_of, atoms)) if atoms else frozenset()
        if any(True for a in atoms for _ in loads(a)):
            return None
        if atoms and axes <= fixed:
            still[atoms] = c
        elif axes & fixed:
            return None
        else:
            moving[atoms] = c
    rest = affine.interval(ix.from_polynomial(moving))
    return None if rest is None else (ix.from_polynomial(still), *rest)


def _joined(spans: Sequence[Span | None], n: int) -> tuple[Expr, int]:
    whole = ix.as_index(0), n
    known = [s for s in spans if s is not None]
    if len(known) < len(spans) or not known or len({s[0] for s in known}) > 1:
        return whole
    low, high = min(s[1] for s in known), max(s[2] for s in known)
    begin = ix.as_index(known[0][0] + low)
    where = affine.interval(begin)
    if where is None or where[0] < 0 or where[1] + high - low >= n:
        return whole
    return begin, high - low + 1
