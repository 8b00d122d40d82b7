"""Bounds inference: the region of a tensor that is read inside a loop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from superopt.kernels.loops.loop_transforms import Region, Scheduled
from superopt.te.analysis import affine
from superopt.te.analysis.walk import index_axes, loads
from superopt.te.expr import index as te_index
from superopt.te.expr.dtype import INDEX
from superopt.te.expr.node import Apply, Axis, Expr
from superopt.te.expr.symbolic_int import (
    is_in_range,
    is_nonnegative,
    is_symbolic,
    masks_tiles,
)
from superopt.te.expr.tensor import Tensor


def read_region(t: Tensor, readers: Sequence[Scheduled], outer: Iterable[Axis]) -> Region:
    """Return the box of `t` that all readers read at fixed values of the axes `outer`.

    An index a + b, with a over outer axes and b over others, begins at a + min b. The minimum of
    that and a constant (the last vector of an axis) begins at the minimum of both. Any other index,
    or one that depends on data, covers the whole axis.
    """
    fixed = frozenset(outer)
    reads = [
        tuple(te_index.substitute(i, r.env) for i in load.index)
        for r in readers
        if r.tensor.body is not None
        for load in loads(r.tensor.body)
        if load.tensor is t
    ]
    out = []
    for d, n in enumerate(t.sizes):
        found = [_span(index[d], fixed) for index in reads]
        out.append(_enclosing_range(found, n))
    return tuple(out)


Span = tuple[Expr, int, int]  # the fixed part, and the range of the rest


def _span(i: Expr, fixed: frozenset[Axis]) -> Span | None:
    still, moving, more = te_index.as_index(0), te_index.as_index(0), 0
    for atoms, c in te_index.polynomial(i).items():
        axes = frozenset[Axis]().union(*map(index_axes, atoms)) if atoms else frozenset()
        if any(True for a in atoms for _ in loads(a)):
            return None
        term = te_index.from_polynomial({atoms: c})
        if atoms and axes <= fixed:
            still = te_index.as_index(still + term)
        elif not axes & fixed:
            moving = te_index.as_index(moving + term)
        else:
            found = _min_range(atoms, fixed) if c > 0 else None
            if found is None:
                ones: dict[Expr, Expr] = {
                    a: te_index.as_index(0) for a in index_axes(i) if a.extent == 1
                }
                return _span(te_index.substitute(i, ones), fixed) if ones else None
            still, more = te_index.as_index(still + found[0] * c), more + found[1] * c
    rest = affine.interval(moving)
    return None if rest is None else (still, rest[0], rest[1] + more)


def _min_range(atoms: Sequence[Expr], fixed: frozenset[Axis]) -> tuple[Expr, int] | None:
    """Return where the minimum of a sum and a constant begins, and its maximal extent."""
    match atoms:
        case [Apply("min", (a, b))]:
            c, p = (a, b) if not index_axes(a) else (b, a)
            if index_axes(c):
                return None
            found = _span(p, fixed)
            if found is not None:
                begin, low, high = found
                return te_index.apply("min", (te_index.as_index(begin + low), c), INDEX), high - low
    return None


def _enclosing_range(spans: Sequence[Span | None], n: int) -> tuple[Expr, int]:
    whole = te_index.as_index(0), n
    known = [s for s in spans if s is not None]
    if len(known) < len(spans) or not known or len({s[0] for s in known}) > 1:
        return whole
    low, high = min(s[1] for s in known), max(s[2] for s in known)
    begin, size = te_index.as_index(known[0][0] + low), high - low + 1
    where = affine.interval(begin)
    is_above = is_nonnegative(begin) if where is None else where[0] >= 0
    if is_symbolic(n) and masks_tiles() and is_above:
        return begin, size  # what is beyond the tensor is masked
    if not is_above or size > n:
        return whole
    if is_symbolic(n) or where is None:
        is_inside = is_in_range(begin, te_index.as_index(n - size + 1))
    else:
        is_inside = where[1] + size <= n
    if not is_inside:  # reads are within the tensor
        begin = te_index.apply("min", (begin, te_index.as_index(n - size)), INDEX)
    return begin, size
