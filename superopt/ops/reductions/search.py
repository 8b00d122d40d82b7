"""ArgMax, ArgMin, Hardmax, TopK, OneHot and cumulative sums."""

from __future__ import annotations

from superopt.ir.op import Attr, InferError, Op, Types, op
from superopt.ops.reductions.reduce import reduce_over, reduced_shape
from superopt.ops.shared.broadcasting import (
    canonical_axis,
    chain_canonical,
    normalize_axis,
    rank_of,
)
from superopt.ops.shared.scalars import canonical_flags, expect_kinds
from superopt.ops.shared.sizes import is_at_most, single_size
from superopt.te.expr import index as te_index
from superopt.te.expr.dtype import BOOL, I32, I64
from superopt.te.expr.node import Expr
from superopt.te.expr.tensor import (
    Dim,
    Tensor,
    apply,
    cast,
    compare,
    compute,
    conjunction,
    const,
    gather,
    reduction,
    select,
)


def _extreme_position(fn: str, x: Tensor, axis: int, last: bool, shape: tuple[Dim, ...]) -> Tensor:
    """Where along `axis` the `fn` (max or min) of `x` is; NaN is the extreme, as in numpy."""
    expect_kinds("ArgMax" if fn == "max" else "ArgMin", "uif", x)
    axes = (axis,)
    best = compute(
        reduced_shape(x, axes, keepdims=False),
        lambda *i: reduce_over(fn, x, axes, i, lambda *k: x[k]),
    )

    def element(*i: Expr) -> Expr:
        kept = i if len(i) == x.rank - 1 else (*i[:axis], *i[axis + 1 :])

        def position(*k: Expr) -> Expr:
            hit = compare("eq", x[k], best[kept])
            if x.dtype.is_float:
                hit = apply("or", hit, apply("isnan", x[k], dtype=BOOL))
            other = const(-1, I64) if last else cast(te_index.as_index(x.shape[axis]), I64)
            return select(hit, cast(k[axis], I64), other)

        return reduce_over("max" if last else "min", x, axes, i, position)

    return compute(shape, element)


def _arg_op(name: str, fn: str) -> Op:
    @op(
        name,
        example=("f32[2,3,4] axis=1", "f32[2,3,4] axis=2 keepdims=0 select_last_index=1"),
        canonical=chain_canonical(
            canonical_axis(), canonical_flags("keepdims", "select_last_index")
        ),
    )
    def position(
        x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0
    ) -> Tensor:
        shape = reduced_shape(x, (axis,), bool(keepdims))
        return _extreme_position(fn, x, axis, bool(select_last_index), shape)

    return position


arg_max = _arg_op("ArgMax", "max")
arg_min = _arg_op("ArgMin", "min")


@op("Hardmax", example="f32[2,3,4] axis=1", since=13, canonical=canonical_axis())
def hardmax(x: Tensor, *, axis: int = -1) -> Tensor:
    """1 at the first maximum along `axis`, 0 elsewhere."""
    expect_kinds("Hardmax", "f", x)
    first = _extreme_position("max", x, axis, False, reduced_shape(x, (axis,), keepdims=False))

    def element(*i: Expr) -> Expr:
        hit = compare("eq", cast(i[axis], I64), first[(*i[:axis], *i[axis + 1 :])])
        return select(hit, const(1, x.dtype), 0)

    return compute(x.shape, element)


def _top_k_attrs(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    if attrs["sorted"] == 0:
        raise InferError("TopK in an order that each runtime chooses")
    return attrs | {"k": (single_size(attrs["k"], "k"),)}  # as ONNX has it


def _is_greater(a: Expr, b: Expr) -> Expr:
    """a > b in the order in which NaN is greater than all numbers and equal to itself."""
    if not a.dtype.is_float:
        return compare("lt", b, a)
    numbers = apply("not", compare("le", a, b))  # or one of them is NaN
    return apply("and", numbers, apply("not", apply("isnan", b, dtype=BOOL)))


@op(
    "TopK",
    example=("f32[2,5,4] k=(3,) axis=1", "i32[2,6] k=(2,) largest=0"),
    since=11,
    canonical=chain_canonical(_top_k_attrs, canonical_axis(), canonical_flags("largest", "sorted")),
)
def top_k(
    x: Tensor, *, k: tuple[Dim], axis: int = -1, largest: int = 1, sorted: int = 1
) -> tuple[Tensor, Tensor]:
    """The k first elements along `axis`, the greatest first or the least, and their indices.

    NaN counts as greater than all numbers; of equal elements the one of the lower index comes
    first. The rank of an element is the number of elements that come before it.

    Raises InferError where `axis` has less than k elements.
    """
    expect_kinds("TopK", "uif", x)
    n, (count,) = x.shape[axis], k
    if not is_at_most(count, n):
        raise InferError(f"TopK: {count} of {x.type} along axis {axis}")

    def at(i: tuple[Expr, ...], there: Expr) -> tuple[Expr, ...]:
        return (*i[:axis], there, *i[axis + 1 :])

    def place(*i: Expr) -> Expr:
        def before(j: Expr) -> Expr:
            own, other = x[i], x[at(i, j)]
            high, low = (other, own) if largest else (own, other)
            tie = apply("not", _is_greater(low, high))
            first = apply("or", _is_greater(high, low), conjunction(tie, j < i[axis]), dtype=BOOL)
            return select(first, const(1, I32), 0)

        return reduction("sum", n, before)

    places = compute(x.shape, place)

    def index(*i: Expr) -> Expr:
        def here(j: Expr) -> Expr:
            found = compare("eq", places[at(i, j)], cast(i[axis], I32))
            return select(found, cast(j, I64), 0)

        return reduction("max", n, here)

    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    indices = compute(shape, index)
    return compute(shape, lambda *i: x[at(i, gather(indices[i], n))]), indices


def _one_hot_attrs(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    depth = attrs["depth"]
    if isinstance(depth, tuple) and len(depth) == 1:
        (depth,) = depth
    if isinstance(depth, float):
        depth = int(depth)
    return {"axis": normalize_axis(attrs["axis"], rank_of(types) + 1), "depth": depth}


@op(
    "OneHot",
    example=("i64[2,3] f32[2] depth=4", "i64[2,3] f32[2] depth=4 axis=0"),
    since=11,
    canonical=_one_hot_attrs,
)
def one_hot(indices: Tensor, values: Tensor, *, depth: Dim, axis: int = -1) -> Tensor:
    """values[1] where the new axis is at the index, values[0] elsewhere.

    An index outside of [-depth, depth) is nowhere.
    """
    expect_kinds("OneHot", "uif", indices)
    if values.shape != (2,):
        raise InferError(f"OneHot takes two values, off and on, not {values.type}")
    size = cast(te_index.as_index(depth), I64)

    def element(*i: Expr) -> Expr:
        given = cast(indices[(*i[:axis], *i[axis + 1 :])], I64)
        place = select(given < 0, given + size, given)
        return select(compare("eq", place, cast(i[axis], I64)), values[1], values[0])

    return compute((*indices.shape[:axis], depth, *indices.shape[axis:]), element)


def _cumulative_attrs(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    axis = attrs["axis"]
    if isinstance(axis, tuple) and len(axis) == 1:
        (axis,) = axis
    return attrs | {"axis": normalize_axis(axis, rank_of(types))}


def _cumulative_op(name: str, fn: str, since: int, neutral: int) -> Op:
    @op(
        name,
        example=("f32[2,3,4] axis=1", "f32[2,3,4] axis=2 exclusive=1 reverse=1"),
        laws="linear" if fn == "sum" else "",
        since=since,
        canonical=chain_canonical(_cumulative_attrs, canonical_flags("exclusive", "reverse")),
    )
    def running(x: Tensor, *, axis: int, exclusive: int = 0, reverse: int = 0) -> Tensor:
        """`fn` of the elements up to each along `axis`, or from each on."""
        expect_kinds(name, "uif", x)

        def element(*i: Expr) -> Expr:
            def term(k: Expr) -> Expr:
                low, high = (i[axis], k) if reverse else (k, i[axis])
                taken = low < high if exclusive else low <= high
                return select(taken, x[(*i[:axis], k, *i[axis + 1 :])], neutral)

            return reduction(fn, x.shape[axis], term)

        return compute(x.shape, element)

    return running


cum_sum = _cumulative_op("CumSum", "sum", 11, 0)
cum_prod = _cumulative_op("CumProd", "prod", 26, 1)
