"""The loops of a scheduled tensor as statements on tiles.

The innermost loops that are unrolled or vectorized, and go over elements, are the tile. Without a
sum a tile is stored, and that is all. With one, it is summed in registers:

    for m < 22                          for m < 22
      for k0 < 8 reduced                  total[i, j] = 0
        for i < 6 unroll          =>      for k0 < 8
          for j < 64 vectorize              total[i, j] sum= a[m, i, k0] * b[k0, j]
                                          y[m, i, j] = total[i, j]

Where loops over elements are inside those of the sum, what is summed waits in a local buffer, over
all of these loops, and is in registers while the innermost loops of the sum run.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from superopt.kernels.element import Nest, index, start, summed, value
from superopt.kernels.tile import For, Stmt, Store, Update
from superopt.kernels.transform import UNROLL, VECTORIZE, Loop, Scheduled, reduction
from superopt.te.expr import Tensor, cast
from superopt.te.node import Apply, Axis, Expr, Reduce

TILED = (UNROLL, VECTORIZE)


def nested(nest: Nest, s: Scheduled, outer: tuple[Axis, ...] = ()) -> tuple[Stmt, ...]:
    """The tensor's elements, computed into its buffer as the schedule says, inside `outer`."""
    t = s.tensor
    nest.order = (*outer, *(x.axis for x in s.loops))
    assert t.body is not None
    if any(x.extent == 0 for x in s.loops if not x.reduced):
        return ()
    tile = tuple(takewhile(lambda x: x.kind in TILED and not x.reduced, reversed(s.loops)))[::-1]
    loops = s.loops[: len(s.loops) - len(tile)]
    axes = tuple(x.axis for x in tile)
    found = reduction(t)
    if found is None or not any(x.reduced for x in loops):
        return around(loops, _stored(nest, s, t.body, axes))
    first = next(n for n, x in enumerate(loops) if x.reduced)
    inner = loops[first:]
    own = [n for n, x in enumerate(inner) if not x.reduced]
    if not own:
        return around(loops[:first], _summed(nest, s, found, inner, axes))
    waiting = [inner[n] for n in own]
    kept = summed(nest, found, tuple(x.extent for x in (*waiting, *tile)), "local")
    place = (*(x.axis for x in waiting), *axes)
    last = max(own) + 1
    body = (
        *around(waiting, (Store(kept, place, start(found), axes),)),
        *around(inner[:last], _added(nest, s, found, inner[last:], axes, kept, place)),
        *around(waiting, _stored(nest, s, put_for(t.body, found, kept, place), axes)),
    )
    return around(loops[:first], body)


def around(loops: Sequence[Loop], body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    for x in reversed(loops):
        kind = "unroll" if x.kind in TILED else x.kind
        body = (For(x.axis, body, kind),)
    return body


def _stored(nest: Nest, s: Scheduled, body: Expr, axes: tuple[Axis, ...]) -> tuple[Stmt, ...]:
    env = s.env
    before: list[Stmt] = []
    new = value(nest, body, env, axes, before)
    where = tuple(index(nest, env[a], {}, axes, before) for a in s.tensor.axes)
    kept = nest.stored[s.tensor]
    return (*before, Store(kept.buffer, kept.place(where), new, axes))


def _summed(
    nest: Nest, s: Scheduled, found: Reduce, inner: Sequence[Loop], axes: tuple[Axis, ...]
) -> tuple[Stmt, ...]:
    """In registers from the first to the last."""
    assert s.tensor.body is not None
    total = _registers(nest, found, axes)
    inner, over = _across(inner, axes)
    return (
        Store(total, axes, start(found), axes),
        *around(inner, _updated(nest, s, found, total, axes, over)),
        *_stored(nest, s, put_for(s.tensor.body, found, total, axes), axes),
    )


def _added(
    nest: Nest, s: Scheduled, found: Reduce, inner: Sequence[Loop], axes: tuple[Axis, ...],
    kept: Tensor, place: tuple[Axis, ...],
) -> tuple[Stmt, ...]:  # fmt: skip
    """In registers for as long as the innermost loops of the sum run."""
    total = _registers(nest, found, axes)
    inner, over = _across(inner, axes)
    return (
        Store(total, axes, kept[place], axes),
        *around(inner, _updated(nest, s, found, total, axes, over)),
        Store(kept, place, total[axes], axes),
    )


def _across(
    inner: Sequence[Loop], axes: tuple[Axis, ...]
) -> tuple[Sequence[Loop], tuple[Axis, ...]]:
    """The loops of a sum, and the innermost one where its steps are lanes."""
    if inner and not axes and inner[-1].kind == VECTORIZE:
        return inner[:-1], (inner[-1].axis,)
    return inner, ()


def _updated(
    nest: Nest, s: Scheduled, found: Reduce, total: Tensor, axes: tuple[Axis, ...],
    over: tuple[Axis, ...],
) -> tuple[Stmt, ...]:  # fmt: skip
    before: list[Stmt] = []
    term = value(nest, found.body, s.env, axes, before)
    return (*before, Update(total, axes, found.fn, term, axes, over))


def _registers(nest: Nest, found: Reduce, axes: tuple[Axis, ...]) -> Tensor:
    return summed(nest, found, tuple(a.extent for a in axes), "register")


def put_for(e: Expr, found: Reduce, total: Tensor, place: tuple[Axis, ...]) -> Expr:
    """`e`, with what was summed in the place of the sum."""
    if e == found:
        return cast(total[place], found.dtype)
    if isinstance(e, Apply):
        return Apply(e.fn, tuple(put_for(a, found, total, place) for a in e.args), e.dtype)
    return e
