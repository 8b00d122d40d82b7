"""Pad and CenterCropPad."""

from __future__ import annotations

from superopt.ir.op import Attr, InferError, Types, op
from superopt.ops.movement.layout import format_shape, known_type, zero_of
from superopt.ops.shared.broadcasting import normalize_axis
from superopt.ops.shared.sizes import (
    ceil_div,
    floor_div,
    integer_tuple,
    is_at_most,
    max_size,
    size_tuple,
    subtract_sizes,
)
from superopt.te.expr import index
from superopt.te.expr.dtype import INDEX
from superopt.te.expr.node import Expr
from superopt.te.expr.tensor import Dim, Tensor, compute, conjunction, const, in_range, select


def pad_constant(x: Tensor, begins: list[Dim], ends: list[Dim], fill: Expr, context: str) -> Tensor:
    """`x` with elements `fill` around it; a negative pad cuts."""
    shape: list[Dim] = []
    for axis, (n, b, e) in enumerate(zip(x.shape, begins, ends, strict=True)):
        size = index.dim(index.as_index(n) + b + e)
        if isinstance(size, int) and size < 0:
            raise InferError(f"{context} of {x.type} on axis {axis} by {b} and {e}: {size} < 0")
        shape.append(size)
    moved = [not (b == 0 and e == 0) for b, e in zip(begins, ends, strict=True)]

    def element(*i: Expr) -> Expr:
        where = tuple(index.as_index(k - b) for k, b in zip(i, begins, strict=True))
        guards = [in_range(w, n) for w, n, m in zip(where, x.shape, moved, strict=True) if m]
        return select(conjunction(*guards), x[where], fill)

    return compute(tuple(shape), element)


def _pad_attrs(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    """Pads of every axis; `axes` is then None."""
    t, shape = known_type(types)
    rank, pads = len(shape), size_tuple(attrs["pads"], "pads")
    given = range(rank) if attrs["axes"] is None else integer_tuple(attrs["axes"], "axes")
    axes = [normalize_axis(a, rank, "axes") for a in given]
    if len(pads) != 2 * len(axes):
        raise InferError(f"Pad of {t}: {len(pads)} pads for {len(axes)} axes")
    begins: list[Dim] = [0] * rank
    ends: list[Dim] = [0] * rank
    for n, a in enumerate(axes):
        begins[a], ends[a] = pads[n], pads[len(axes) + n]
    if attrs["mode"] not in ("constant", "edge", "reflect", "wrap"):
        raise InferError(f"Pad: mode {attrs['mode']} is not constant, edge, reflect or wrap")
    return {"pads": (*begins, *ends), "axes": None, "mode": attrs["mode"]}


def _source_index(i: Expr, n: Dim, mode: str) -> Expr:
    """Return the element of 0..n that is at position `i`, which may be outside."""
    if n == 1:
        return const(0, INDEX)
    last = index.as_index(index.as_index(n) - 1)
    if mode == "wrap":
        return index.mod(i, index.as_index(n))
    if mode == "edge":
        return index.apply("min", (index.apply("max", (i, const(0, INDEX)), INDEX), last), INDEX)
    period = index.as_index(
        max_size(index.dim(last * 2), 1)
    )  # reflect: there and back, the ends once
    there = index.mod(i, period)
    return index.apply(
        "min",
        (there, index.as_index(index.as_index(max_size(index.dim(last * 2), 0)) - there)),
        INDEX,
    )


@op(
    "Pad",
    example=("f32[2,3] f32[] pads=(1,-1,0,2)", 'f32[2,3] pads=(0,2,0,4) mode="reflect"'),
    since=11,
    canonical=_pad_attrs,
)
def pad(
    x: Tensor,
    constant_value: Tensor | None = None,
    *,
    pads: tuple[Dim, ...],
    axes: tuple[int, ...] | None = None,
    mode: str = "constant",
) -> Tensor:
    """`x` with `pads` (begins, then ends) elements around it; negative pads crop."""
    begins, ends = list(pads[: x.rank]), list(pads[x.rank :])
    if mode == "constant":
        if constant_value is None:
            return pad_constant(x, begins, ends, zero_of(x, "Pad"), "Pad")
        if constant_value.dtype != x.dtype or constant_value.shape not in ((), (1,)):
            raise InferError(f"Pad of {x.type}: constant_value is {constant_value.type}")
        return pad_constant(x, begins, ends, constant_value[(0,) * constant_value.rank], "Pad")
    for b, e in zip(begins, ends, strict=True):
        mixed = not (is_at_most(0, b) and is_at_most(0, e)) and not (
            is_at_most(b, 0) and is_at_most(e, 0)
        )
        if mixed and mode != "edge":
            raise InferError(f"Pad of {x.type} by {mode}: {b} and {e} crop and extend one axis")
    if any(n == 0 for n in x.shape):
        raise InferError(f"Pad of {x.type} by {mode}: an empty axis has no elements to repeat")
    shape = pad_constant(x, begins, ends, x[(0,) * x.rank], "Pad").shape

    def element(*i: Expr) -> Expr:
        return x[
            tuple(
                k if b == 0 and e == 0 else _source_index(index.as_index(k - b), n, mode)
                for k, n, b, e in zip(i, x.shape, begins, ends, strict=True)
            )
        ]

    return compute(shape, element)


def _center_crop_pad_attrs(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    """The shape of the whole result; `axes` is then None."""
    t, source = known_type(types)
    wanted = size_tuple(attrs["shape"], "shape")
    axes = range(len(source)) if attrs["axes"] is None else integer_tuple(attrs["axes"], "axes")
    if len(wanted) != len(axes):
        raise InferError(f"CenterCropPad of {t} to {format_shape(wanted)}: {len(axes)} axes")
    shape = list(source)
    for a, size in zip(axes, wanted, strict=True):
        shape[normalize_axis(a, len(source), "axes")] = size
    return {"shape": tuple(shape), "axes": None}


@op("CenterCropPad", example="f32[5,4] shape=(2,7)", since=18, canonical=_center_crop_pad_attrs)
def center_crop_pad(
    x: Tensor, *, shape: tuple[Dim, ...], axes: tuple[int, ...] | None = None
) -> Tensor:
    """The middle of `x`, or `x` in the middle of zeros; what is odd goes to the end."""
    begins: list[Dim] = []
    ends: list[Dim] = []
    for n, size in zip(x.shape, shape, strict=True):
        if is_at_most(size, n):  # cut
            cut = subtract_sizes(n, size)
            begins.append(subtract_sizes(0, floor_div(cut, 2)))
            ends.append(subtract_sizes(0, ceil_div(cut, 2)))
        elif is_at_most(n, size):
            more = subtract_sizes(size, n)
            begins.append(floor_div(more, 2))
            ends.append(ceil_div(more, 2))
        else:
            raise InferError(
                f"CenterCropPad of {x.type} to {format_shape(shape)}: is {n} < {size}?"
            )
    return pad_constant(x, begins, ends, zero_of(x, "CenterCropPad"), "CenterCropPad")
