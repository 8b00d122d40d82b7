"""Lower the loops of a scheduled tensor to statements on tiles.

The innermost unrolled or vectorized loops over elements are the tile, as are virtual threads
anywhere. Without a reduction a tile is stored. With one, it accumulates in registers:

    for m < 22                          for m < 22
      for k0 < 8 reduced                  total[i, j] = 0
        for i < 6 unroll          =>      for k0 < 8
          for j < 64 vectorize              total[i, j] sum= a[m, i, k0] * b[k0, j]
                                          y[m, i, j] = total[i, j]

If loops over elements are inside reduction loops, a local buffer over all of these holds the
accumulators, which are in registers while the innermost reduction loops run. Stages computed at a
loop stand at the beginning of its body.
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
Numbered = tuple[int, Loop]  # the depth of a loop's body, and the loop
Inner = Mapping[int, Callable[[], tuple[Stmt, ...]]]  # stages by the depth they are computed at


@dataclass(frozen=True, slots=True)
class _Work:
    """What is computed, in which loops, over which tile axes. cache_write: the buffer that collects
    results, and its index."""

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
    """Return the statements that compute the tensor into its buffer as scheduled, inside
    `outer`."""
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
    """Split off the tile: among loops inside the deepest compute_at depth."""
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
    """Return the longest suffix of loops for which the predicate holds."""
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
    """Collect results until all loops inside this depth have ended."""
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
    """Return the loops around a body, with the stages computed in them, if given."""
    for depth, x in reversed(loops):
        before = inner[depth]() if inner is not None and depth in inner else ()
        if x.kind == PIPELINE and inner is not None:
            if depth not in inner:
                raise IllegalSchedule(
                    f"pipeline({x.axis.name}, {x.stages}): nothing is computed there by cache_read "
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
    """Store a value at its result's index."""
    env = w.s.env
    before: list[Stmt] = []
    where = tuple(index(w.nest, env[a], {}, w.axes, before) for a in w.s.tensor.axes)
    kept = w.nest.stored[w.s.tensor]
    return (*before, Store(kept.buffer, kept.place(where), new, w.axes))


def _summed(w: _Work, found: Reduce, inner: Sequence[Numbered]) -> tuple[Stmt, ...]:
    """Accumulate in registers over the whole reduction."""
    total = _registers(w, found)
    return (
        Store(total, w.axes, start(found), w.axes),
        *around(inner, _updated(w, found, total), w.inner),
        *_stored(w, put_for(w.body, found, total, w.axes)),
    )


def _added(
    w: _Work, found: Reduce, inner: Sequence[Numbered], kept: Tensor, place: tuple[Axis, ...]
) -> tuple[Stmt, ...]:
    """Accumulate in registers while the innermost reduction loops run."""
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
        raise IllegalSchedule(f"{w.s.intrinsic} computes all steps, some beyond the reduction")
    term = value(w.nest, body, w.s.env, w.axes, before)
    return (*before, Update(total, w.axes, found.fn, term, w.axes, w.over, w.s.intrinsic))


def _within(found: Reduce, env: Mapping[Expr, Expr]) -> Expr:
    """Return the term of the reduction, the identity beyond its axes (loop_transforms.cover)."""
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
    """Return the value where `inside` holds, and 0 elsewhere."""
    if isinstance(e, Apply) and e.fn == "cast":
        return Apply("cast", (_kept(inside, e.args[0]),), e.dtype)
    return select(inside, e, const(0, e.dtype))


def _registers(w: _Work, found: Reduce) -> Tensor:
    return summed(w.nest, found, tuple(a.extent for a in w.axes), "register")


def put_for(e: Expr, found: Reduce, total: Tensor, place: tuple[Axis, ...]) -> Expr:
    """Return `e` with the reduction replaced by the accumulated total."""
    if e == found:
        return cast(total[place], found.dtype)
    if isinstance(e, Apply):
        return Apply(e.fn, tuple(put_for(a, found, total, place) for a in e.args), e.dtype)
    return e
