"""Integers of 8 bits that are stored in place of wider values that are computed from them.

    y = quantize(dequantize(p) + dequantize(q))     p = quantize(x * w), q = quantize(u * v)

One product is computed with y as its epilogue; of the other's results y could read the sums, of 32
bits, or q, of 8. Stored are all but the last.

    y = depthwise convolution, or average, of f32(q)

reads q. A depthwise convolution has as few operations for each element as conversions cost.

    y[h, d, m] = f32(q[m, h, d])            q = quantize(x * w)

reads q: the product is computed in its own order of axes.

    y = table[q]            q = quantize(x * w)

reads q, as many elements at a time as vectors have bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from superopt.kernels.loops.element import is_range_guard
from superopt.te.analysis.walk import (
    has_ordered_axes,
    index_axes,
    loads,
    operands,
    reductions,
    subexpressions,
    with_operands,
)
from superopt.te.expr.dtype import F32
from superopt.te.expr.node import Apply, Const, Expr, Index, Load, Reduce
from superopt.te.expr.tensor import Tensor, cast, const, select

NARROW_BITS = 8


def narrow_results(current: Mapping[Tensor, Tensor], are_kernels_cheap: bool) -> set[Tensor]:
    """Return the tensors of 8-bit integers to store.

    current: the definitions, producers first. are_kernels_cheap: also store what another kernel
    than the product's then moves, or looks up.
    """
    readers = _readers(current)
    casts = _depthwise_casts(current, readers)
    out = _other_addends(current, readers) | {casts[t].tensor for t in casts}
    return out | _reread_results(current, readers) if are_kernels_cheap else out


def _reread_results(
    current: Mapping[Tensor, Tensor], readers: Mapping[Tensor, list[Tensor]]
) -> set[Tensor]:
    """Return the quantized results of products that are only read in another order of axes, or as
    indices."""
    of_products: set[Tensor] = set()
    out: set[Tensor] = set()
    for t, now in current.items():
        if _is_product(now):
            of_products.add(t)
        elif reductions(now.body):
            continue
        elif not isinstance(now.body, Load) and of_products & {*_operands(now)}:
            of_products.add(t)
            if (
                now.dtype.is_int
                and now.dtype.bits == NARROW_BITS
                and _is_reread(t, current, readers)
            ):
                out.add(t)
    return out


def _is_reread(
    t: Tensor, current: Mapping[Tensor, Tensor], readers: Mapping[Tensor, list[Tensor]]
) -> bool:
    """True if what reads `t`, after reshapes and casts, reads it in another order of axes, or as
    indices."""
    some = [current[r] for r in readers.get(t, [])]
    return bool(some) and all(
        _reads_as_index(now, t)
        or (isinstance(now.body, Load) and not has_ordered_axes(now))
        or (_is_load_or_cast(now.body) and _is_reread(r, current, readers))
        for r, now in zip(readers[t], some, strict=True)
    )


def _is_load_or_cast(e: Expr | None) -> bool:
    return isinstance(e, Load) or (
        isinstance(e, Apply) and e.fn == "cast" and isinstance(e.args[0], Load)
    )


def _reads_as_index(now: Tensor, t: Tensor) -> bool:
    """True if an element of `t` decides which element of another tensor is read."""
    return now.body is not None and any(
        isinstance(i, Index) and any(x.tensor == t for x in loads(i.element))
        for e in subexpressions(now.body) if isinstance(e, Load)
        for i in e.index
    )  # fmt: skip


def _is_product(now: Tensor) -> bool:
    return any(isinstance(r.body, Apply) and r.body.fn == "mul" for r in reductions(now.body))


def _operands(t: Tensor) -> list[Tensor]:
    """Return the tensors that a definition reads."""
    return [] if t.body is None else [*dict.fromkeys(x.tensor for x in loads(t.body))]


def _readers(current: Mapping[Tensor, Tensor]) -> dict[Tensor, list[Tensor]]:
    out: dict[Tensor, list[Tensor]] = {}
    for t, now in current.items():
        for x in _operands(now):
            out.setdefault(x, []).append(t)
    return out


def _other_addends(
    current: Mapping[Tensor, Tensor], readers: Mapping[Tensor, list[Tensor]]
) -> set[Tensor]:
    """Return the quantized results of products that an expression reads beside another one's."""
    ends: dict[Tensor, Tensor] = {}  # where the elementwise chain from a tensor ends
    for t in reversed([*current]):
        (only, *more) = readers.get(t, [t])
        chained = not more and only is not t and not reductions(current[only].body)
        ends[t] = ends[only] if chained else t
    groups: dict[Tensor, list[Tensor]] = {}
    of_products: set[Tensor] = set()
    for t, now in current.items():
        if _is_product(now):
            of_products.add(t)
            continue
        before = set(_operands(now)) & of_products
        if not before or reductions(now.body) or any(len(readers[x]) > 1 for x in before):
            continue
        if now.dtype.bits > NARROW_BITS:
            of_products.add(t)
        else:
            groups.setdefault(ends[t], []).append(t)
    return {t for some in groups.values() for t in some[:-1]}


def read_narrow_images(
    current: Mapping[Tensor, Tensor], materialized: Collection[Tensor]
) -> dict[Tensor, Tensor]:
    """Return the definitions with depthwise convolutions of integers as float32 reading the
    integers. Beyond an edge they read 0, which a border of zeros may hold in memory."""
    readers = _readers(current)
    casts = _depthwise_casts(current, readers)
    casts = {t: x for t, x in casts.items() if t not in materialized}
    out = {}
    for t, now in current.items():
        if t in casts:
            continue
        reads = now.body is not None and any(x in casts for x in _operands(now))
        out[t] = now
        if reads and now.body is not None:
            body = _read_integers(now.body, casts)
            out[t] = Tensor(now.name, now.dtype, now.shape, now.axes, body)
    return out


def _depthwise_casts(
    current: Mapping[Tensor, Tensor], readers: Mapping[Tensor, list[Tensor]]
) -> dict[Tensor, Load]:
    """Return the tensors that are 8-bit integers as float32, and that only depthwise convolutions
    and averages read, with the loads of the integers."""
    out: dict[Tensor, Load] = {}
    for t, now in current.items():
        match now.body:
            case Apply("cast", (Load(q, index) as load,), dtype) if dtype == F32:
                fits = q.dtype.is_int and q.dtype.bits == NARROW_BITS
                some = readers.get(t, [])
                if fits and index == now.axes and some:
                    out |= {t: load} if all(_is_depthwise(current[r], t) for r in some) else {}
    return out


def _is_depthwise(now: Tensor, image: Tensor) -> bool:
    """True if all that reads an image is a sum over a window of one channel."""
    if now.rank < 3 or any(x.tensor == image for x in _loads_outside(now.body)):
        return False
    for r in reductions(now.body):
        some = [x for x in loads(r.body) if x.tensor == image]
        if not some:
            continue
        others = [x for x in loads(r.body) if x.tensor != image]
        own = {now.axes[1]}
        channel = all({a for a in index_axes(x.index[1]) if a.extent != 1} == own for x in some)
        shared = all(any(now.axes[1] in index_axes(i) for i in x.index) for x in others)
        if r.fn != "sum" or not shared or not channel:
            return False
    return True


def _loads_outside(e: Expr | None) -> list[Load]:
    """Return the loads outside of reductions."""
    match e:
        case None | Reduce():
            return []
        case Load():
            return [e]
    return [x for a in operands(e) for x in _loads_outside(a)]


def _read_integers(e: Expr, casts: Mapping[Tensor, Load]) -> Expr:
    match e:
        case Apply("select", (guard, Load(t, index) as inside, Const(value=0) as zero)) if (
            t in casts and is_range_guard(guard, inside, zero)
        ):
            q = casts[t].tensor
            return cast(select(guard, Load(q, index, q.dtype), const(0, q.dtype)), F32)
        case Load(t, index) if t in casts:
            q = casts[t].tensor
            return cast(Load(q, index, q.dtype), F32)
        case Reduce(fn, axes, body, dtype):
            return Reduce(fn, axes, _read_integers(body, casts), dtype)
        case Apply():
            return with_operands(e, [_read_integers(x, casts) for x in operands(e)])
    return e
