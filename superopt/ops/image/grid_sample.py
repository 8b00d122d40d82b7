"""AffineGrid and GridSample: interpolation at coordinates that are data."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from itertools import product as combinations
from operator import mul

from superopt.ir.op import Attr, InferError, Types, op
from superopt.ops.movement.layout import known_type
from superopt.ops.shared.scalars import (
    accumulation_dtype,
    canonical_flags,
    expect_kinds,
    interpolate,
    widen,
)
from superopt.ops.shared.sizes import size_tuple
from superopt.te.expr import index
from superopt.te.expr.dtype import I64, DType
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
    select,
)

_CANONICAL_MODES = {"bilinear": "linear", "bicubic": "cubic", "linear": "linear", "cubic": "cubic"}
_CANONICAL_MODES["nearest"] = "nearest"
CUBIC_COEFFICIENT = -0.75  # the coefficient of Keys' cubic convolution that ONNX fixes here


def _affine_grid_attrs(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    return canonical_flags("align_corners")(types, attrs) | {
        "size": size_tuple(attrs["size"], "size")
    }


@op("AffineGrid", example="f32[2,2,3] size=(2,3,4,5)", since=20, canonical=_affine_grid_attrs)
def affine_grid(theta: Tensor, *, size: tuple[Dim, ...], align_corners: int = 0) -> Tensor:
    """theta times (x, y, 1), or (x, y, z, 1), for each place of a grid from -1 to 1."""
    space = size[2:]
    rank = len(space)
    what = f"AffineGrid of {theta.type} to {size}"
    expect_kinds("AffineGrid", "f", theta)
    if rank not in (2, 3) or theta.shape != (size[0], rank, rank + 1):
        raise InferError(f"{what}: it takes ({size[0]}, {rank}, {rank + 1})")
    if align_corners and 1 in space:
        raise InferError(f"{what}: one element has no corners to align")
    kind = theta.dtype

    def place(i: Expr, n: Dim) -> Expr:
        if align_corners:
            return (
                cast(index.as_index(i * 2), kind)
                / cast(index.as_index(index.as_index(n) - 1), kind)
                - 1
            )
        return cast(index.as_index(i * 2 + 1), kind) / cast(index.as_index(n), kind) - 1

    def element(*i: Expr) -> Expr:
        row: Expr = theta[i[0], i[-1], rank]
        for d in range(rank):  # theta's columns are x first, the grid's axes x last
            axis = rank - 1 - d
            row = row + theta[i[0], i[-1], d] * place(i[1 + axis], space[axis])
        return row

    return compute((size[0], *space, rank), element)


def _grid_sample_attrs(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    t, _ = known_type(types)
    if attrs["mode"] not in _CANONICAL_MODES:
        raise InferError(f"GridSample of {t}: mode {attrs['mode']}")
    if attrs["padding_mode"] not in ("zeros", "border", "reflection"):
        raise InferError(f"GridSample of {t}: padding_mode {attrs['padding_mode']}")
    return canonical_flags("align_corners")(types, attrs) | {
        "mode": _CANONICAL_MODES[str(attrs["mode"])]
    }


def _clamp(x: Expr, low: Expr, high: Expr) -> Expr:
    return apply("min", apply("max", x, low), high)


def _pad_coordinate(x: Expr, n: Dim, padding: str, align: bool) -> Expr:
    """Clamp or reflect a coordinate; unchanged for zero padding."""
    last = cast(index.as_index(index.as_index(n) - 1), x.dtype)
    if padding == "zeros":
        return x
    if padding == "border":
        return _clamp(x, const(0, x.dtype), last)
    low = const(0, x.dtype) if align else const(-0.5, x.dtype)
    high = last if align else last + 0.5
    reach = high - low
    distance = apply("abs", x - low)
    flips = apply("floor", distance / reach)
    rest = distance - flips * reach
    even = compare("eq", flips - apply("floor", flips / 2) * 2, 0)
    mirrored = select(even, low + rest, high - rest)
    outside = apply("or", compare("lt", x, low), compare("lt", high, x))
    return select(outside, mirrored, x)


def _tap_index(i: Expr, n: Dim, padding: str, align: bool) -> tuple[Expr | bool, Expr]:
    """Return (guard, index) of the element at the integer coordinate `i`, an i64."""
    size = cast(index.as_index(n), I64)
    zero = const(0, I64)
    if padding == "zeros":
        return conjunction(compare("le", zero, i), compare("lt", i, size)), gather(i, n)
    if padding == "border":
        return True, gather(_clamp(i, zero, size - 1), n)
    if align:
        period = apply("max", (size - 1) * 2, 1)
        there = apply("mod", i, period)
        return True, gather(apply("min", there, (size - 1) * 2 - there), n)
    there = apply("mod", i, size * 2)
    return True, gather(apply("min", there, size * 2 - 1 - there), n)


def _tap_weights(mode: str, r: Expr) -> list[tuple[int, Expr]]:
    """Return (tap, weight) pairs around a coordinate that is `r` past tap 0."""
    if mode == "linear":
        return [(0, 1 - r), (1, r)]

    def far(d: Expr) -> Expr:
        return (
            (d * CUBIC_COEFFICIENT - 5 * CUBIC_COEFFICIENT) * d + 8 * CUBIC_COEFFICIENT
        ) * d - 4 * CUBIC_COEFFICIENT

    def close(d: Expr) -> Expr:
        return (d * (CUBIC_COEFFICIENT + 2) - (CUBIC_COEFFICIENT + 3)) * d * d + 1

    return [(-1, far(r + 1)), (0, close(r)), (1, close(1 - r)), (2, far(2 - r))]


@op(
    "GridSample",
    example=("f32[1,2,3,4] f32[1,2,3,2]", 'f32[1,1,3,4] f32[1,2,2,2] padding_mode="border"'),
    since=16,
    canonical=_grid_sample_attrs,
)
def grid_sample(
    x: Tensor,
    grid: Tensor,
    *,
    align_corners: int = 0,
    mode: str = "linear",
    padding_mode: str = "zeros",
) -> Tensor:
    """`x` interpolated at the places of `grid`, (x, y) or (x, y, z) from -1 to 1.

    fp16 and bf16 are interpolated in float32 and rounded once. Between equal elements lies that
    element, to the bit; a tap that padding_mode "zeros" leaves out is an element of 0.
    """
    rank = x.rank - 2
    what = f"GridSample of {x.type} at {grid.type}"
    expect_kinds("GridSample", "f", x, grid)
    if rank < 1 or grid.rank != x.rank or grid.shape[0] != x.shape[0] or grid.shape[-1] != rank:
        raise InferError(f"{what}: batches and ranks differ")
    if mode == "cubic" and rank != 2:
        raise InferError(f"{what}: cubic in {rank} dimensions")
    align = bool(align_corners)
    kind = accumulation_dtype(x.dtype)
    space = x.shape[2:]
    if padding_mode == "reflection" and align and 1 in space:
        raise InferError(f"{what}: one element has no sides to reflect at")
    shape = (x.shape[0], *grid.shape[1:-1])
    places = [
        compute(
            shape,
            _sample_coordinate(grid, rank - 1 - d, n, mode, padding_mode, align),
            name="place",
        )
        for d, n in enumerate(space)
    ]

    def element(b: Expr, c: Expr, *o: Expr) -> Expr:
        at = [p[(b, *o)] for p in places]
        taps = [
            _axis_taps(mode, p, n, padding_mode, align, kind)
            for p, n in zip(at, space, strict=True)
        ]
        values, weights = [], []
        for chosen in combinations(*taps):
            guard = conjunction(*(there for there, _, _ in chosen))
            value = x[(b, c, *(i for _, i, _ in chosen))]
            values.append(cast(select(guard, value, const(0, x.dtype)), kind))
            weights.append(reduce(mul, (w for _, _, w in chosen)))
        return cast(interpolate(values, weights), x.dtype)

    return compute((*x.shape[:2], *grid.shape[1:-1]), element)


def _sample_coordinate(
    grid: Tensor, column: int, n: Dim, mode: str, padding: str, align: bool
) -> Callable[..., Expr]:
    """The coordinate of a sample on an axis of `n` elements, in elements."""

    def element(*i: Expr) -> Expr:
        g = widen(grid[(*i, column)])
        size = cast(index.as_index(n), g.dtype)
        x = (g + 1) / 2 * (size - 1) if align else ((g + 1) * size - 1) / 2
        x = apply("round", x) if mode == "nearest" else x
        if mode == "cubic" and padding == "border":
            return x  # as in torch and onnxruntime: it is elements that the border stands for
        return _pad_coordinate(x, n, padding, align)

    return element


def _axis_taps(
    mode: str, place: Expr, n: Dim, padding: str, align: bool, dtype: DType
) -> list[tuple[Expr | bool, Expr, Expr]]:
    """Return (guard, index, weight) for each tap around a coordinate."""
    if mode == "nearest":
        return [(*_tap_index(cast(place, I64), n, padding, align), const(1, dtype))]
    floor = apply("floor", place)
    whole = cast(floor, I64)
    return [
        (*_tap_index(whole + t if t else whole, n, padding, align), cast(w, dtype))
        for t, w in _tap_weights(mode, place - floor)
    ]
