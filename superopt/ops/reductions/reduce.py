"""Reductions over axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from superopt.ir.op import Attr, Op, Types, op
from superopt.ops.shared.broadcasting import canonical_axes, rank_of
from superopt.ops.shared.scalars import expect_kinds, widen
from superopt.te.expr import index as te_index
from superopt.te.expr.dtype import F64, DType
from superopt.te.expr.node import Const, Expr
from superopt.te.expr.tensor import (
    Dim,
    Tensor,
    apply,
    cast,
    compare,
    compute,
    product,
    reduction,
    select,
)

Body = Callable[[Tensor, tuple[int, ...], tuple[Expr, ...]], Expr]
_sorted_axes = canonical_axes()


def reduced_shape(x: Tensor, axes: Sequence[int], keepdims: bool = True) -> tuple[Dim, ...]:
    """Return the shape after reducing `axes` of `x`."""
    if keepdims:
        return tuple(1 if a in axes else n for a, n in enumerate(x.shape))
    return tuple(n for a, n in enumerate(x.shape) if a not in axes)


def reduce_over(
    fn: str, x: Tensor, axes: Sequence[int], i: Sequence[Expr], element: Callable[..., Expr]
) -> Expr:
    """`fn` of `element(index into x)` over `axes`, the other axes at `i`.

    `i` has one index for each axis of `x` (those of `axes` are ignored) or for each kept axis.
    """
    kept = [a for a in range(x.rank) if a not in axes]
    chosen = [i[a] for a in kept] if len(i) == x.rank else list(i)
    at = dict(zip(kept, chosen, strict=True))

    def body(*k: Expr) -> Expr:
        index = at | dict(zip(axes, k, strict=True))
        return element(*(index[a] for a in range(x.rank)))

    return reduction(fn, [x.shape[a] for a in axes], body)


def element_count(x: Tensor, axes: Sequence[int], dtype: DType) -> Expr:
    """Return the number of elements that a reduction over `axes` takes, as a number of `dtype`."""
    return cast(te_index.as_index(product(x.shape[a] for a in axes)), dtype)


def mean_of(
    x: Tensor, axes: Sequence[int], i: Sequence[Expr], element: Callable[..., Expr]
) -> Expr:
    """The mean of `element(index into x)` over `axes`."""
    total = reduce_over("sum", x, axes, i, element)
    n = element_count(x, axes, total.dtype)
    return total if n == Const(1, n.dtype) else total / n


def _reduction_attrs(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    """The axes spelled out; the flag is set only where no axis is reduced."""
    rank = rank_of(types)
    axes, noop = attrs["axes"], attrs["noop_with_empty_axes"]
    if axes is None or axes == ():
        axes = () if noop else None
    full = _sorted_axes(types, attrs | {"axes": axes})
    return full | {
        "keepdims": int(bool(attrs["keepdims"])),
        "noop_with_empty_axes": int(not full["axes"] and rank > 0),
    }


def _reduction_op(name: str, body: Body, kinds: str, laws: str = "") -> Op:
    """A reduction whose element at `i`, an index into the kept axes, is `body(x, axes, i)`."""

    @op(
        name,
        example=("f32[2,3,4] axes=(1,)", "f32[2,3,4] axes=(0,2) keepdims=0"),
        laws=laws,
        canonical=_reduction_attrs,
    )
    def reduced(
        x: Tensor,
        *,
        axes: tuple[int, ...] | None = None,
        keepdims: int = 1,
        noop_with_empty_axes: int = 0,
    ) -> Tensor:
        expect_kinds(name, kinds, x)
        assert axes is not None

        def element(*i: Expr) -> Expr:
            kept = tuple(e for a, e in enumerate(i) if a not in axes) if keepdims else i
            return cast(body(x, axes, kept), x.dtype)

        return compute(reduced_shape(x, axes, bool(keepdims)), element)

    return reduced


def _plain_body(fn: str, boolean: str = "") -> Body:
    def body(x: Tensor, axes: tuple[int, ...], i: tuple[Expr, ...]) -> Expr:
        chosen = boolean if x.dtype.kind == "b" else fn
        return reduce_over(chosen, x, axes, i, lambda *k: x[k])

    return body


def _sum_body(each: Callable[[Expr], Expr], last: Callable[[Expr], Expr] = lambda e: e) -> Body:
    """`last` of the sum of `each` element, in the precision of sums."""

    def body(x: Tensor, axes: tuple[int, ...], i: tuple[Expr, ...]) -> Expr:
        return last(reduce_over("sum", x, axes, i, lambda *k: each(widen(x[k]))))

    return body


def _float_sqrt(e: Expr) -> Expr:
    return apply("sqrt", e if e.dtype.is_float else cast(e, F64))


def _log_sum_exp_body(x: Tensor, axes: tuple[int, ...], i: tuple[Expr, ...]) -> Expr:
    """log(sum(exp(x))), shifted by the greatest element so that nothing overflows."""
    top = compute(
        reduced_shape(x, axes, keepdims=False),
        lambda *j: reduce_over("max", x, axes, j, lambda *k: widen(x[k])),
    )
    # an infinite maximum must not be subtracted from itself
    shift = select(compare("eq", top[i] - top[i], 0), top[i], 0)
    total = reduce_over("sum", x, axes, i, lambda *k: apply("exp", widen(x[k]) - shift))
    return apply("log", total) + shift


def _mean_body(x: Tensor, axes: tuple[int, ...], i: tuple[Expr, ...]) -> Expr:
    return mean_of(x, axes, i, lambda *k: widen(x[k]))


def _square(e: Expr) -> Expr:
    return e * e


reduce_sum = _reduction_op("ReduceSum", _sum_body(lambda e: e), "uif", "linear")
reduce_mean = _reduction_op("ReduceMean", _mean_body, "uif", "linear")
reduce_prod = _reduction_op("ReduceProd", _plain_body("prod"), "uif")
reduce_max = _reduction_op("ReduceMax", _plain_body("max", "any"), "uifb")
reduce_min = _reduction_op("ReduceMin", _plain_body("min", "all"), "uifb")
reduce_l1 = _reduction_op("ReduceL1", _sum_body(lambda e: apply("abs", e)), "uif")
reduce_l2 = _reduction_op("ReduceL2", _sum_body(_square, _float_sqrt), "uif")
reduce_log_sum = _reduction_op(
    "ReduceLogSum", _sum_body(lambda e: e, lambda e: apply("log", e)), "f"
)
reduce_log_sum_exp = _reduction_op("ReduceLogSumExp", _log_sum_exp_body, "f")
reduce_sum_square = _reduction_op("ReduceSumSquare", _sum_body(_square), "uif")
