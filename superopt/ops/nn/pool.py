"""Pooling over windows, and global pooling."""

from __future__ import annotations

import math
from collections.abc import Callable

from superopt.ir.op import Attr, Canonical, InferError, Types, op
from superopt.ops.movement.layout import known_type
from superopt.ops.shared.precision import widen_tensor
from superopt.ops.shared.scalars import accumulation_dtype, expect_kinds, widen
from superopt.ops.shared.sizes import integer_tuple, is_at_most, size_tuple
from superopt.ops.shared.windows import (
    Window,
    canonical_windows,
    element_index,
    element_indices,
    is_inside,
    windows,
)
from superopt.te.expr import index
from superopt.te.expr.dtype import DType
from superopt.te.expr.node import Expr
from superopt.te.expr.tensor import (
    Dim,
    Tensor,
    apply,
    cast,
    compute,
    const,
    in_range,
    product,
    reduce_max,
    reduce_sum,
    reduction,
    select,
)


def _context(name: str, types: Types) -> str:
    return f"{name} of x {types[0]}"


def _pool_windows(
    name: str,
    x: Tensor,
    kernel: tuple[int, ...],
    strides: tuple[int, ...] | None,
    dilations: tuple[int, ...] | None,
    pads: tuple[int, ...] | None,
    auto_pad: str,
    ceil_mode: int,
) -> list[Window]:
    """The windows of a canonical node on `x`."""
    assert strides is not None
    assert dilations is not None
    return windows(
        f"{name} of x {x.type} by {kernel}",
        x.shape[2:],
        kernel,
        strides=strides,
        dilations=dilations,
        pads=pads,
        auto_pad=auto_pad,
        ceil=bool(ceil_mode),
    )


def _pool_attrs(name: str) -> Canonical:
    """Canonical attributes: explicit windows; modes without effect are 0."""

    def canonical(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
        t, shape = known_type(types)
        what = _context(name, types)
        if len(shape) < 3:
            raise InferError(f"{what}: no spatial axes")
        kernel = size_tuple(attrs["kernel_shape"], "kernel_shape")
        if not all(is_at_most(1, k) for k in kernel):
            raise InferError(f"{what}: kernel_shape {kernel}")
        full = canonical_windows(f"{what} by {kernel}", t, attrs, kernel) | {"kernel_shape": kernel}
        full["ceil_mode"] = int(
            bool(attrs["ceil_mode"]) and attrs["auto_pad"] in ("NOTSET", "VALID")
        )
        if full["ceil_mode"] and _has_same_counts(what, shape, full):
            full["ceil_mode"] = 0
        if attrs["auto_pad"] in ("SAME_UPPER", "SAME_LOWER"):
            steps = zip(kernel, integer_tuple(full["strides"], ""), strict=True)
            if set(integer_tuple(full["dilations"], "")) != {1} or any(k < s for k, s in steps):
                raise InferError(
                    f"{what} by {kernel}: strides {full['strides']}, dilations {full['dilations']},"
                    f" where runtimes differ on {attrs['auto_pad']}"
                )
        pads = full["pads"]
        if "count_include_pad" in full and isinstance(pads, tuple) and not any(pads):
            full["count_include_pad"] = 0
        if "storage_order" in full:
            full["storage_order"] = 0  # of the indices, which are no result here
        return full

    return canonical


def _has_same_counts(what: str, shape: tuple[Dim, ...], attrs: dict[str, Attr]) -> bool:
    """True if `ceil_mode` does not change the number of windows."""
    kernel, strides = size_tuple(attrs["kernel_shape"], ""), size_tuple(attrs["strides"], "")
    dilations, pads = size_tuple(attrs["dilations"], ""), size_tuple(attrs["pads"], "")
    down, up = (
        windows(
            what,
            shape[2:],
            kernel,
            strides=strides,
            dilations=dilations,
            pads=pads,
            auto_pad="NOTSET",
            ceil=ceil,
        )
        for ceil in (False, True)
    )
    return [w.count for w in down] == [w.count for w in up]


def _reduce_windows(
    x: Tensor, ws: list[Window], fn: str, term: Callable[[Expr], Expr], fill: Expr
) -> Tensor:
    """Reduce `term` of the elements of each window by `fn`; padding is `fill`."""

    def element(n: Expr, c: Expr, *o: Expr) -> Expr:
        return reduction(
            fn,
            [w.size for w in ws],
            lambda *k: term(
                select(is_inside(ws, o, k), x[(n, c, *element_indices(ws, o, k))], fill)
            ),
        )

    return compute((*x.shape[:2], *(w.count for w in ws)), element, name=fn)


def _averaged_counts(w: Window, include_pad: bool, dtype: DType) -> Tensor | None:
    """Return how many elements each window of an axis averages; None if it is always the full
    window."""
    if include_pad:
        past = index.dim(
            (index.as_index(w.count) - 1) * w.stride + (w.size - 1) * w.dilation + 1 - w.end
        )
        past = index.dim(index.as_index(past) - w.begin - w.extent)
        if not w.overhangs or (isinstance(past, int) and past <= 0):
            return None
    elif w.begin == 0 and not w.overhangs:
        return None
    extent = index.as_index(w.extent) + w.begin + w.end if include_pad else w.extent
    shift = w.begin if include_pad else 0

    def count(o: Expr) -> Expr:
        found = reduce_sum(
            w.size,
            lambda k: select(
                in_range(index.as_index(element_index(w, o, k) + shift), index.dim(extent)),
                const(1, dtype),
                const(0, dtype),
            ),
        )
        # A dilated window may lie outside of the image altogether: the mean of no elements is 0.
        return found if w.dilation == 1 else apply("max", found, const(1, dtype))

    return compute((w.count,), count, name="count")


@op(
    "AveragePool",
    example=(
        "f32[1,2,5,6] kernel_shape=(3,2) pads=(1,0,1,1) strides=(2,1)",
        "f32[1,2,7] kernel_shape=(3,) strides=(3,) ceil_mode=1",
    ),
    laws="linear",
    canonical=_pool_attrs("AveragePool"),
)
def average_pool(
    x: Tensor,
    *,
    kernel_shape: tuple[int, ...],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Tensor:
    """The mean of each window; padding counts if `count_include_pad`, what hangs past it never."""
    expect_kinds("AveragePool", "f", x)
    ws = _pool_windows(
        "AveragePool", x, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode
    )
    kind = accumulation_dtype(x.dtype)
    total = _reduce_windows(widen_tensor(x), ws, "sum", lambda e: e, const(0, kind))
    counts = [_averaged_counts(w, bool(count_include_pad), kind) for w in ws]

    def element(n: Expr, c: Expr, *o: Expr) -> Expr:
        whole = product(k for k, v in zip(kernel_shape, counts, strict=True) if v is None)
        divisor: Expr = cast(index.as_index(whole), kind)
        for v, e in zip(counts, o, strict=True):
            if v is not None:
                divisor = v[e] if divisor == const(1, kind) else divisor * v[e]
        return cast(total[(n, c, *o)] / divisor, x.dtype)

    return compute(total.shape, element)


def lowest_value(dtype: DType) -> Expr:
    """Return the least element of a number type."""
    if dtype.is_float:
        return const(-math.inf, dtype)
    return const(-(1 << (dtype.bits - 1)) if dtype.kind == "i" else 0, dtype)


@op(
    "MaxPool",
    example=(
        "f32[1,2,5,6] kernel_shape=(3,2) pads=(1,0,1,1) strides=(2,1)",
        "f32[1,2,9] kernel_shape=(3,) strides=(3,) dilations=(2,) ceil_mode=1",
    ),
    canonical=_pool_attrs("MaxPool"),
)
def max_pool(
    x: Tensor,
    *,
    kernel_shape: tuple[int, ...],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    storage_order: int = 0,
    strides: tuple[int, ...] | None = None,
) -> Tensor:
    """The greatest element of each window; padding is less than all. Indices are not expressed."""
    expect_kinds("MaxPool", "uif", x)
    ws = _pool_windows("MaxPool", x, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    return _reduce_windows(x, ws, "max", lambda e: e, lowest_value(x.dtype))


def _absolute_power(e: Expr, p: int) -> Expr:
    """|e| ** p."""
    if p == 1:
        return apply("abs", e)
    return e * e if p == 2 else apply("pow", apply("abs", e), const(p, e.dtype))


def _root(e: Expr, p: int) -> Expr:
    if p == 1:
        return e
    return apply("sqrt", e) if p == 2 else apply("pow", e, const(1 / p, e.dtype))


def _check_norm_order(attrs: dict[str, Attr], what: str) -> dict[str, Attr]:
    p = attrs["p"]
    if isinstance(p, bool) or not isinstance(p, (int, float)) or p != int(p) or p < 1:
        raise InferError(f"{what}: p = {p} is not an integer >= 1")
    return attrs | {"p": int(p)}


def _lp_pool_attrs(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    return _pool_attrs("LpPool")(types, _check_norm_order(attrs, _context("LpPool", types)))


@op(
    "LpPool",
    example=(
        "f32[1,2,5,6] kernel_shape=(3,2) strides=(2,1)",
        "f32[1,2,6] kernel_shape=(3,) pads=(1,1) p=3",
    ),
    since=2,
    canonical=_lp_pool_attrs,
)
def lp_pool(
    x: Tensor,
    *,
    kernel_shape: tuple[int, ...],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: tuple[int, ...] | None = None,
    p: int = 2,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Tensor:
    """The p-norm of each window."""
    expect_kinds("LpPool", "f", x)
    ws = _pool_windows("LpPool", x, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    kind = accumulation_dtype(x.dtype)
    total = _reduce_windows(
        widen_tensor(x), ws, "sum", lambda e: _absolute_power(e, p), const(0, kind)
    )
    return compute(total.shape, lambda *i: cast(_root(total[i], p), x.dtype))


def _global_pool(
    name: str, x: Tensor, body: Callable[[list[Dim], Callable[..., Expr]], Expr]
) -> Tensor:
    """`body(spatial extents, element at)` for each channel; the spatial axes stay as 1."""
    if x.rank < 3:
        raise InferError(f"{name} of {x.type}: no spatial axes")
    expect_kinds(name, "f", x)
    return compute(
        (*x.shape[:2], *(1,) * (x.rank - 2)),
        lambda n, c, *_: body(list(x.shape[2:]), lambda *k: x[(n, c, *k)]),
    )


@op("GlobalAveragePool", example="f32[2,3,4,5]", laws="linear")
def global_average_pool(x: Tensor) -> Tensor:
    """The mean of each channel."""

    def mean(extents: list[Dim], at: Callable[..., Expr]) -> Expr:
        total = reduce_sum(extents, lambda *k: widen(at(*k)))
        return cast(total / cast(index.as_index(product(extents)), total.dtype), x.dtype)

    return _global_pool("GlobalAveragePool", x, mean)


@op("GlobalMaxPool", example="f32[2,3,4,5]")
def global_max_pool(x: Tensor) -> Tensor:
    """The greatest element of each channel."""
    return _global_pool("GlobalMaxPool", x, reduce_max)


def _global_lp_pool_attrs(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    return _check_norm_order(attrs, _context("GlobalLpPool", types))


@op("GlobalLpPool", example="f32[2,3,4,5] p=3", since=2, canonical=_global_lp_pool_attrs)
def global_lp_pool(x: Tensor, *, p: int = 2) -> Tensor:
    """The p-norm of each channel."""

    def norm(extents: list[Dim], at: Callable[..., Expr]) -> Expr:
        return cast(
            _root(reduce_sum(extents, lambda *k: _absolute_power(widen(at(*k)), p)), p), x.dtype
        )

    return _global_pool("GlobalLpPool", x, norm)
