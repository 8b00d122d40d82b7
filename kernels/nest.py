"""The loops of a scheduled tensor as statements on tiles.

The innermost loops that are unrolled or vectorized, and go over elements, are the tile, and so are
virtual threads, wherever they are. Without a sum a tile is stored, and that is all. With one, it is
summed in registers:

    for m < 22                          for m < 22
      for k0 < 8 reduced                  total[i, j] = 0
        for i < 6 unroll          =>      for k0 < 8
          for j < 64 vectorize              total[i, j] sum= a[m, i, k0] * b[k0, j]
                                          y[m, i, j] = total[i, j]

Where loops over elements are inside those of the sum, what is summed waits in a local buffer, over
all of these loops, and is in registers while the innermost loops of the sum run. What other tensors
compute at a loop stands where its body begins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from superopt.kernels.buffering import ahead
from superopt.kernels.element import Nest, index, start, summed, value
from superopt.kernels.schedule import IllegalSchedule
from superopt.kernels.tile import For, Stmt, Store, Update
from superopt.kernels.transform import (
    PIPELINE,
    SERIAL,
    TENSORIZE,
    UNROLL,
    VECTORIZE,
    VTHREAD,
    Loop,
    Scheduled,
    reduction,
)
from superopt.te import affine
from superopt.te import index as ix
from superopt.te.expr import Tensor, both, cast, compare, const, select
from superopt.te.fn import unit
from superopt.te.node import Apply, Axis, Expr, Reduce

TILED = (UNROLL, VECTORIZE, TENSORIZE)
Numbered = tuple[int, Loop]  # a loop, and at which depth its body is
Inner = Mapping[int, Callable[[], tuple[Stmt, ...]]]  # what is computed at which depth


@dataclass(frozen=True, slots=True)
class _Work:
    """What is to be computed, in which loops and, at once, over which axes. waits: the buffer in
    which results wait, and where in it."""

    nest: Nest
    s: Scheduled
    inner: Inner
    loops: tuple[Numbered, ...]
    axes: tuple[Axis, ...]
    over: tuple[Axis, ...]
    waits: tuple[Tensor, tuple[Axis, ...]] | None = None

    @property
    def body(self) -> Expr:
        assert self.s.tensor.body is not None
        return self.s.tensor.body


def nested(
    nest: Nest, s: Scheduled, outer: tuple[Axis, ...] = (), inner: Inner | None = None
) -> tuple[Stmt, ...]:
    """The tensor's elements, computed into its buffer as the schedule says, inside `outer`."""
    inner = inner or {}
    nest.order = (*outer, *(x.axis for x in s.loops))
    if any(x.extent == 0 for x in s.loops if not x.reduced):
        return ()
    numbered = tuple(enumerate(s.loops, 1))
    waits = max((n for n, x in numbered if x.axis == s.waits), default=None)
    work = _tiled(nest, s, inner, max((0, waits or 0, *inner)))
    body = _computed(work) if waits is None else _waiting(work, waits)
    return (*inner[0](), *body) if 0 in inner else body


def _tiled(nest: Nest, s: Scheduled, inner: Inner, deepest: int) -> _Work:
    """Which loops are the tile: of those inside the deepest one that others compute at."""
    numbered = tuple(enumerate(s.loops, 1))
    threads = [x for x in numbered if x[1].kind == VTHREAD]
    rest = [x for x in numbered if x[1].kind != VTHREAD]
    free = [x for n, x in rest if n > deepest]
    over = _ending(free, lambda x: x.kind == TENSORIZE and x.reduced)
    tile = _ending(free[: len(free) - len(over)], lambda x: x.kind in TILED and not x.reduced)
    axes = (*(x.axis for _, x in threads), *(x.axis for x in tile))
    if not over and not axes and free and free[-1].kind == VECTORIZE:
        over = free[-1:]
    loops = tuple(rest[: len(rest) - len(tile) - len(over)])
    return _Work(nest, s, inner, loops, axes, tuple(x.axis for x in over))


def _ending(loops: Sequence[Loop], holds: Callable[[Loop], bool]) -> list[Loop]:
    return list(takewhile(holds, reversed(loops)))[::-1]


def _computed(w: _Work) -> tuple[Stmt, ...]:
    found = reduction(w.s.tensor)
    if found is None or not any(x.reduced for x in w.s.loops):
        return around(w.loops, _stored(w, w.body), w.inner)
    first = next((n for n, (_, x) in enumerate(w.loops) if x.reduced), len(w.loops))
    outside, inner = w.loops[:first], w.loops[first:]
    own = [n for n, (_, x) in enumerate(inner) if not x.reduced]
    if not own:
        return around(outside, _summed(w, found, inner), w.inner)
    waiting = [inner[n] for n in own]
    sizes = (*(x.extent for _, x in waiting), *(a.extent for a in w.axes))
    kept = summed(w.nest, found, sizes, "local")
    place = (*(x.axis for _, x in waiting), *w.axes)
    last = max(own) + 1
    body = (
        *around(waiting, (Store(kept, place, start(found), w.axes),)),
        *around(inner[:last], _added(w, found, inner[last:], kept, place), w.inner),
        *around(waiting, _stored(w, put_for(w.body, found, kept, place))),
    )
    return around(outside, body, w.inner)


def _waiting(w: _Work, depth: int) -> tuple[Stmt, ...]:
    """Results wait until all loops inside this depth have ended."""
    outside = [x for x in w.loops if x[0] <= depth]
    inside = tuple(x for x in w.loops if x[0] > depth)
    own = [x for x in inside if not x[1].reduced]
    place = (*(x.axis for _, x in own), *w.axes)
    t = w.s.tensor
    kept = Tensor(w.nest.fresh("t"), t.dtype, tuple(a.extent for a in place))
    w.nest.scratch.append((kept, "local"))
    computed = _computed(replace(w, loops=inside, waits=(kept, place)))
    return around(outside, (*computed, *around(own, _copied(w, kept[place]))), w.inner)


def around(
    loops: Sequence[Numbered], body: tuple[Stmt, ...], inner: Inner | None = None
) -> tuple[Stmt, ...]:
    """The loops around a body; and in them, where it is given, what is computed there."""
    for depth, x in reversed(loops):
        before = inner[depth]() if inner is not None and depth in inner else ()
        if x.kind == PIPELINE and inner is not None:
            if depth not in inner:
                raise IllegalSchedule(
                    f"pipeline({x.axis.name}, {x.stages}): nothing is copied there, by cache_read "
                    "or compute_at"
                )
            body = ahead(x, before, body)
            continue
        kind = "unroll" if x.kind in TILED else SERIAL if x.kind == PIPELINE else x.kind
        body = (For(x.axis, (*before, *body), kind),)
    return body


def _stored(w: _Work, body: Expr) -> tuple[Stmt, ...]:
    before: list[Stmt] = []
    new = value(w.nest, body, w.s.env, w.axes, before)
    if w.waits is None:
        return (*before, *_copied(w, new))
    kept, place = w.waits
    return (*before, Store(kept, place, new, w.axes))


def _copied(w: _Work, new: Expr) -> tuple[Stmt, ...]:
    """A result goes to its place."""
    env = w.s.env
    before: list[Stmt] = []
    where = tuple(index(w.nest, env[a], {}, w.axes, before) for a in w.s.tensor.axes)
    kept = w.nest.stored[w.s.tensor]
    return (*before, Store(kept.buffer, kept.place(where), new, w.axes))


def _summed(w: _Work, found: Reduce, inner: Sequence[Numbered]) -> tuple[Stmt, ...]:
    """In registers from the first to the last."""
    total = _registers(w, found)
    return (
        Store(total, w.axes, start(found), w.axes),
        *around(inner, _updated(w, found, total), w.inner),
        *_stored(w, put_for(w.body, found, total, w.axes)),
    )


def _added(
    w: _Work, found: Reduce, inner: Sequence[Numbered], kept: Tensor, place: tuple[Axis, ...]
) -> tuple[Stmt, ...]:
    """In registers for as long as the innermost loops of the sum run."""
    total = _registers(w, found)
    return (
        Store(total, w.axes, kept[place], w.axes),
        *around(inner, _updated(w, found, total), w.inner),
        Store(kept, place, total[w.axes], w.axes),
    )


def _updated(w: _Work, found: Reduce, total: Tensor) -> tuple[Stmt, ...]:
    before: list[Stmt] = []
    body = _within(found, w.s.env)
    if w.s.intrinsic and body is not found.body:
        raise IllegalSchedule(f"{w.s.intrinsic} computes all steps, and some are beyond the sum")
    term = value(w.nest, body, w.s.env, w.axes, before)
    return (*before, Update(total, w.axes, found.fn, term, w.axes, w.over, w.s.intrinsic))


def _within(found: Reduce, env: Mapping[Expr, Expr]) -> Expr:
    """What is summed; nothing of it where loops go beyond its axes (transform.cover)."""
    places = [(ix.as_index(env[a]), a.size) for a in found.axes]
    inside = both(*(compare("lt", i, n) for i, n in places if not _below(i, n)))
    if not isinstance(inside, Expr):
        return found.body
    match found.fn, found.body:
        case "sum", Apply("mul", (x, y), dtype):  # still a product, which has instructions
            return Apply("mul", (_kept(inside, x), _kept(inside, y)), dtype)
    return select(inside, found.body, const(unit(found.fn, found.dtype), found.body.dtype))


def _below(i: Expr, n: int) -> bool:
    known = affine.interval(i)
    return known is None or known[1] < n


def _kept(inside: Expr, e: Expr) -> Expr:
    """The value, and 0 elsewhere."""
    if isinstance(e, Apply) and e.fn == "cast":
        return Apply("cast", (_kept(inside, e.args[0]),), e.dtype)
    return select(inside, e, const(0, e.dtype))


def _registers(w: _Work, found: Reduce) -> Tensor:
    return summed(w.nest, found, tuple(a.extent for a in w.axes), "register")


def put_for(e: Expr, found: Reduce, total: Tensor, place: tuple[Axis, ...]) -> Expr:
    """`e`, with what was summed in the place of the sum."""
    if e == found:
        return cast(total[place], found.dtype)
    if isinstance(e, Apply):
        return Apply(e.fn, tuple(put_for(a, found, total, place) for a in e.args), e.dtype)
    return e
