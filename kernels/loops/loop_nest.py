"""Lower the loops of a scheduled tensor to statements on tiles.

The innermost unrolled or vectorized loops over elements are the tile. Without a reduction a tile is
stored. With one, it accumulates in registers:

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

from superopt.kernels.loops.element import (
    KernelState,
    lower_index,
    lower_value,
    reduction_buffer,
    reduction_identity,
)
from superopt.kernels.loops.loop_transforms import (
    UNROLL,
    VECTORIZE,
    Loop,
    Scheduled,
    reduction,
)
from superopt.kernels.loops.tile import For, Limits, Stmt, Store, Update
from superopt.te.analysis import affine
from superopt.te.analysis.walk import index_axes
from superopt.te.expr import index as te_index
from superopt.te.expr.functions import identity_element
from superopt.te.expr.node import Apply, Axis, Expr, Reduce
from superopt.te.expr.symbolic_int import is_in_range, is_symbolic, masks_tiles
from superopt.te.expr.tensor import Tensor, cast, compare, conjunction, const, select

TILE_KINDS = (UNROLL, VECTORIZE)
NumberedLoop = tuple[int, Loop]  # the depth of a loop's body, and the loop
InnerStatements = Mapping[
    int, Callable[[], tuple[Stmt, ...]]
]  # stages by the depth they are computed at


@dataclass(frozen=True, slots=True)
class _TiledNest:
    """What is computed, in which loops, over which tile axes."""

    nest: KernelState
    s: Scheduled
    inner: InnerStatements
    loops: tuple[NumberedLoop, ...]
    axes: tuple[Axis, ...]
    reduction_axes: tuple[Axis, ...]
    limits: Limits = ()

    @property
    def body(self) -> Expr:
        assert self.s.tensor.body is not None
        return self.s.tensor.body


def emit_loop_nest(
    nest: KernelState,
    s: Scheduled,
    outer: tuple[Axis, ...] = (),
    inner: InnerStatements | None = None,
) -> tuple[Stmt, ...]:
    """Return the statements that compute the tensor into its buffer as scheduled, inside
    `outer`."""
    inner = inner or {}
    nest.loop_order = (*outer, *(x.axis for x in s.loops))
    if any(x.extent <= 0 for x in s.loops if not x.reduced):
        return ()
    w = _split_tile(nest, s, inner, max((0, *inner)))
    body = _emit_computation(w)
    return (*inner[0](), *body) if 0 in inner else body


def _split_tile(
    nest: KernelState, s: Scheduled, inner: InnerStatements, compute_at_depth: int
) -> _TiledNest:
    """Split off the tile: among loops inside the deepest compute_at depth. Unrolled reduction loops
    inside a vectorized one belong to it, as terms that are added one after the other."""
    numbered = tuple(enumerate(s.loops, 1))
    free = s.loops[compute_at_depth:]
    count = sum(1 for _ in takewhile(lambda x: x.kind == UNROLL and x.reduced, reversed(free)))
    over = free[len(free) - count :]
    around = free[: len(free) - count]
    if not around or around[-1].kind != VECTORIZE or around[-1].reduced:
        over, around = (), free
    tile = list(takewhile(lambda x: x.kind in TILE_KINDS and not x.reduced, reversed(around)))[::-1]
    if not tile and free and free[-1].kind == VECTORIZE:
        over = free[-1:]
    loops = numbered[: len(numbered) - len(tile) - len(over)]
    axes, reduction_axes = (tuple(x.axis for x in some) for some in (tile, over))
    return _TiledNest(nest, s, inner, loops, axes, reduction_axes, _element_limits(s))


def _element_limits(s: Scheduled) -> Limits:
    """Return the limits of the tensor's own axes that masked tiles may exceed."""
    if not masks_tiles():
        return ()
    own = [(te_index.as_index(e), a.size) for a, e in s.axis_values if a in s.tensor.axes]
    return tuple(_dividend_limit(i, te_index.as_index(n)) for i, n in own if not _is_inside(i, n))


def _is_inside(i: Expr, n: int) -> bool:
    known = None if is_symbolic(n) else affine.interval(i)
    return known[1] < n if known is not None else is_in_range(i, te_index.as_index(n))


def _dividend_limit(i: Expr, n: Expr) -> tuple[Expr, Expr]:
    """Return x < n * m for x // m < n."""
    match i:
        case Apply("floordiv", (x, m)):
            return _dividend_limit(x, te_index.as_index(n * m))
    return i, n


def _limit_statements(body: Sequence[Stmt], limits: Limits) -> tuple[Stmt, ...]:
    """Return the statements, limited."""
    if not limits:
        return tuple(body)
    out: list[Stmt] = []
    for s in body:
        if isinstance(s, For):
            out.append(replace(s, body=_limit_statements(s.body, limits)))
        else:
            out.append(replace(s, limits=limits))
    return tuple(out)


def _emit_computation(w: _TiledNest) -> tuple[Stmt, ...]:
    found = reduction(w.s.tensor)
    if found is None or not any(x.reduced for x in w.s.loops):
        return wrap_in_loops(w.loops, _emit_element(w, w.body), w.inner)
    first = next((n for n, (_, x) in enumerate(w.loops) if x.reduced), len(w.loops))
    outside, inner = w.loops[:first], w.loops[first:]
    own = [n for n, (_, x) in enumerate(inner) if not x.reduced]
    if not own:
        return wrap_in_loops(outside, _sum_in_registers(w, found, inner), w.inner)
    waiting = [inner[n] for n in own]
    sizes = (*(x.extent for _, x in waiting), *(a.extent for a in w.axes))
    kept = reduction_buffer(w.nest, found, sizes, "local")
    place = (*(x.axis for _, x in waiting), *w.axes)
    last = max(own) + 1
    body = (
        *wrap_in_loops(waiting, (Store(kept, place, reduction_identity(found), w.axes),)),
        *wrap_in_loops(
            inner[:last], _sum_in_local_buffer(w, found, inner[last:], kept, place), w.inner
        ),
        *wrap_in_loops(waiting, _emit_element(w, replace_reduction(w.body, found, kept, place))),
    )
    return wrap_in_loops(outside, body, w.inner)


def wrap_in_loops(
    loops: Sequence[NumberedLoop], body: tuple[Stmt, ...], inner: InnerStatements | None = None
) -> tuple[Stmt, ...]:
    """Return the loops around a body, with the stages computed in them, if given."""
    for depth, x in reversed(loops):
        before = inner[depth]() if inner is not None and depth in inner else ()
        kind = UNROLL if x.kind in TILE_KINDS else x.kind
        body = (For(x.axis, (*before, *body), kind),)
    return body


def _emit_element(w: _TiledNest, body: Expr) -> tuple[Stmt, ...]:
    before: list[Stmt] = []
    new = lower_value(w.nest, body, w.s.env, w.axes, before)
    return _limit_statements((*before, *_emit_result_store(w, new)), w.limits)


def _emit_result_store(w: _TiledNest, new: Expr) -> tuple[Stmt, ...]:
    """Store a value at its result's index."""
    env = w.s.env
    before: list[Stmt] = []
    where = tuple(lower_index(w.nest, env[a], {}, w.axes, before) for a in w.s.tensor.axes)
    kept = w.nest.stored[w.s.tensor]
    return (*before, Store(kept.buffer, kept.buffer_index(where), new, w.axes))


def _sum_in_registers(
    w: _TiledNest, reduction_expr: Reduce, inner: Sequence[NumberedLoop]
) -> tuple[Stmt, ...]:
    """Accumulate in registers over the whole reduction."""
    total = _register_total(w, reduction_expr)
    covered = _covered_extent(w, inner)
    summed = (
        wrap_in_loops(inner, _emit_update(w, reduction_expr, total), w.inner)
        if covered is None
        else _sum_lanes_last(w, reduction_expr, inner, total, covered)
    )
    return (
        Store(total, w.axes, reduction_identity(reduction_expr), w.axes),
        *summed,
        *_emit_element(w, replace_reduction(w.body, reduction_expr, total, w.axes)),
    )


def _sum_lanes_last(
    w: _TiledNest,
    reduction_expr: Reduce,
    inner: Sequence[NumberedLoop],
    total: Tensor,
    extent: Expr,
) -> tuple[Stmt, ...]:
    """Accumulate the lanes of a reduction of symbolic extent separately, first all full vectors,
    then the masked rest, and combine them at the end."""
    (lane,) = w.reduction_axes
    blocks = inner[-1][1].axis
    lanes = reduction_buffer(w.nest, reduction_expr, (lane.extent,), "register")
    where = (lane,)
    last = te_index.as_index(extent // lane.extent)
    full = Axis(blocks.name, te_index.dim(last))

    def accumulate(block: Expr) -> tuple[Stmt, ...]:
        env = {a: te_index.substitute(e, {blocks: block}) for a, e in w.s.env.items()}
        before: list[Stmt] = []
        term = lower_value(w.nest, _masked_term(reduction_expr, env), env, where, before)
        return (*before, Update(lanes, where, reduction_expr.fn, term, where))

    return (
        Store(lanes, where, reduction_identity(reduction_expr), where),
        *wrap_in_loops(inner[:-1], (For(full, accumulate(full)), *accumulate(last)), w.inner),
        Update(total, (), reduction_expr.fn, lanes[where], (), where),
    )


def _covered_extent(w: _TiledNest, inner: Sequence[NumberedLoop]) -> Expr | None:
    """Return the symbolic extent of the reduction axis that the innermost loop and the lanes cover;
    None if there is none."""
    if masks_tiles() or not (w.reduction_axes and inner and is_symbolic(inner[-1][1].extent)):
        return None
    blocks, (lane,) = inner[-1][1].axis, w.reduction_axes
    place = te_index.as_index(blocks * lane.extent + lane)
    some = (a.extent for a, e in w.s.axis_values if te_index.as_index(e) == place)
    return next(map(te_index.as_index, some), None)


def _sum_in_local_buffer(
    w: _TiledNest,
    reduction_expr: Reduce,
    inner: Sequence[NumberedLoop],
    kept: Tensor,
    place: tuple[Axis, ...],
) -> tuple[Stmt, ...]:
    """Accumulate in registers while the innermost reduction loops run."""
    total = _register_total(w, reduction_expr)
    return (
        Store(total, w.axes, kept[place], w.axes),
        *wrap_in_loops(inner, _emit_update(w, reduction_expr, total), w.inner),
        Store(kept, place, total[w.axes], w.axes),
    )


def _emit_update(w: _TiledNest, reduction_expr: Reduce, total: Tensor) -> tuple[Stmt, ...]:
    before: list[Stmt] = []
    body = _masked_term(reduction_expr, w.s.env)
    term = lower_value(w.nest, body, w.s.env, w.axes, before)
    update = Update(total, w.axes, reduction_expr.fn, term, w.axes, w.reduction_axes)
    return _limit_statements((*before, update), w.limits)


def _masked_term(reduction_expr: Reduce, env: Mapping[Expr, Expr]) -> Expr:
    """Return the term of the reduction, the identity beyond its axes (loop_transforms.cover)."""
    places = [(te_index.as_index(env[a]), a.size) for a in reduction_expr.axes]
    inside = conjunction(*(compare("lt", i, n) for i, n in places if not _is_below(i, n)))
    return mask_term(reduction_expr, reduction_expr.body, inside)


def mask_term(reduction_expr: Reduce, term: Expr, inside: Expr | bool) -> Expr:
    """Return a term of the reduction where `inside` holds, and the identity elsewhere."""
    identity = const(identity_element(reduction_expr.fn, reduction_expr.dtype), term.dtype)
    if isinstance(inside, bool):
        return term if inside else identity
    match reduction_expr.fn, term:
        case "sum", Apply("mul", (x, y), dtype):  # still a product, which has instructions
            return Apply("mul", (_value_or_zero(inside, x), _value_or_zero(inside, y)), dtype)
    return select(inside, term, identity)


def _is_below(i: Expr, n: int) -> bool:
    if is_symbolic(n) or any(not isinstance(a.extent, int) for a in index_axes(i)):
        return is_in_range(i, te_index.as_index(n))
    known = affine.interval(i)
    return known is None or known[1] < n


def _value_or_zero(inside: Expr, e: Expr) -> Expr:
    """Return the value where `inside` holds, and 0 elsewhere."""
    if isinstance(e, Apply) and e.fn == "cast":
        return Apply("cast", (_value_or_zero(inside, e.args[0]),), e.dtype)
    return select(inside, e, const(0, e.dtype))


def _register_total(w: _TiledNest, reduction_expr: Reduce) -> Tensor:
    return reduction_buffer(w.nest, reduction_expr, tuple(a.extent for a in w.axes), "register")


def replace_reduction(
    e: Expr, reduction_expr: Reduce, total: Tensor, index: tuple[Axis, ...]
) -> Expr:
    """Return `e` with the reduction replaced by the accumulated total."""
    if e == reduction_expr:
        return cast(total[index], reduction_expr.dtype)
    if isinstance(e, Apply):
        return Apply(
            e.fn, tuple(replace_reduction(a, reduction_expr, total, index) for a in e.args), e.dtype
        )
    return e
