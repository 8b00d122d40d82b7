"""Pad and CenterCropPad."""

from __future__ import annotations

from superopt.ir.op import Attr, InferError, Types, op
from superopt.ops.common import positive
from superopt.ops.layout import known, shown, zero
from superopt.ops.sizes import at_most, ceil_div, floor_div, integers, larger, minus, sizes
from superopt.te import index as ix
from superopt.te.dtype import INDEX
from superopt.te.expr import Dim, Tensor, both, compute, const, inside, select
from superopt.te.node import Expr


def padded(x: Tensor, begins: list[Dim], ends: list[Dim], fill: Expr, what: str) -> Tensor:
    """`x` with elements `fill` around it; a negative pad cuts."""
    shape: list[Dim] = []
    for axis, (n, b, e) in enumerate(zip(x.shape, begins, ends, strict=True)):
        size = ix.dim(ix.as_index(n) + b + e)
        if isinstance(size, int) and size < 0:
            raise InferError(f"{what} of {x.type} on axis {axis} by {b} and {e}: {size} < 0")
        shape.append(size)
    moved = [not (b == 0 and e == 0) for b, e in zip(begins, ends, strict=True)]

    def element(*i: Expr) -> Expr:
        where = tuple(ix.as_index(k - b) for k, b in zip(i, begins, strict=True))
        guards = [inside(w, n) for w, n, m in zip(where, x.shape, moved, strict=True) if m]
        return select(both(*guards), x[where], fill)

    return compute(tuple(shape), element)


def _pads(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    """Pads of every axis; `axes` is then None."""
    t, shape = known(types)
    rank, pads = len(shape), sizes(attrs["pads"], "pads")
    given = range(rank) if attrs["axes"] is None else integers(attrs["axes"], "axes")
    axes = [positive(a, rank, "axes") for a in given]
    if len(pads) != 2 * len(axes):
        raise InferError(f"Pad of {t}: {len(pads)} pads for {len(axes)} axes")
    begins: list[Dim] = [0] * rank
    ends: list[Dim] = [0] * rank
    for n, a in enumerate(axes):
        begins[a], ends[a] = pads[n], pads[len(axes) + n]
    if attrs["mode"] not in ("constant", "edge", "reflect", "wrap"):
        raise InferError(f"Pad: mode {attrs['mode']} is not constant, edge, reflect or wrap")
    return {"pads": (*begins, *ends), "axes": None, "mode": attrs["mode"]}


def _source(i: Expr, n: Dim, mode: str) -> Expr:
    """Return the element of 0..n that is at position `i`, which may be outside."""
    if n == 1:
        return const(0, INDEX)
    last = ix.as_index(ix.as_index(n) - 1)
    if mode == "wrap":
        return ix.mod(i, ix.as_index(n))
    if mode == "edge":
        return ix.apply("min", (ix.apply("max", (i, const(0, INDEX)), INDEX), last), INDEX)
    period = ix.as_index(larger(ix.dim(last * 2), 1))  # reflect: there and back, the ends once
    there = ix.mod(i, period)
    return ix.apply(
        "min", (there, ix.as_index(ix.as_index(larger(ix.dim(last * 2), 0)) - there)), INDEX
    )


@op(
    "Pad",
    example=("f32[2,3] f32[] pads=(1,-1,0,2)", 'f32[2,3] pads=(0,2,0,4) mode="reflect"'),
    since=11,
    canonical=_pads,
)
def pad(
    x: Tensor,
    constant_value: Tensor | None = None,
    *,
    pads: tuple[Dim, ...],
    axes: tuple[int, ...] | None = None,
    mode: str = "constant",
) -> Tensor:
    """`x` with `pads` (begins, then ends) elements around it; negative pads cut."""
    begins, ends = list(pads[: x.rank]), list(pads[x.rank :])
    if mode == "constant":
        if constant_value is None:
            return padded(x, begins, ends, zero(x, "Pad"), "Pad")
        if constant_value.dtype != x.dtype or constant_value.shape not in ((), (1,)):
            raise InferError(f"Pad of {x.type} with {constant_value.type}: not one {x.dtype}")
        return padded(x, begins, ends, constant_value[(0,) * constant_value.rank], "Pad")
    for b, e in zip(begins, ends, strict=True):
        mixed = not (at_most(0, b) and at_most(0, e)) and not (at_most(b, 0) and at_most(e, 0))
        if mixed and mode != "edge":
            raise InferError(f"Pad of {x.type} by {mode}: {b} before and {e} after cut and repeat")
    if any(n == 0 for n in x.shape):
        raise InferError(f"Pad of {x.type} by {mode}: there is nothing to repeat")
    shape = padded(x, begins, ends, x[(0,) * x.rank], "Pad").shape

    def element(*i: Expr) -> Expr:
        return x[
            tuple(
                k if b == 0 and e == 0 else _source(ix.as_index(k - b), n, mode)
                for k, n, b, e in zip(i, x.shape, begins, ends, strict=True)
            )
        ]

    return compute(shape, element)


def _centre(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    """The shape of the whole result; `axes` is then None."""
    t, source = known(types)
    wanted = sizes(attrs["shape"], "shape")
    axes = range(len(source)) if attrs["axes"] is None else integers(attrs["axes"], "axes")
    if len(wanted) != len(axes):
        raise InferError(f"CenterCropPad of {t} to {shown(wanted)}: {len(axes)} axes")
    shape = list(source)
    for a, size in zip(axes, wanted, strict=True):
        shape[positive(a, len(source), "axes")] = size
    return {"shape": tuple(shape), "axes": None}


@op("CenterCropPad", example="f32[5,4] shape=(2,7)", since=18, canonical=_centre)
def center_crop_pad(
    x: Tensor, *, shape: tuple[Dim, ...], axes: tuple[int, ...] | None = None
) -> Tensor:
    """The middle of `x`, or `x` in the middle of zeros; what is odd goes to the end."""
    begins: list[Dim] = []
    ends: list[Dim] = []
    for n, size in zip(x.shape, shape, strict=True):
        if at_most(size, n):  # cut
            cut = minus(n, size)
            begins.append(minus(0, floor_div(cut, 2)))
            ends.append(minus(0, ceil_div(cut, 2)))
        elif at_most(n, size):
            more = minus(size, n)
            begins.append(floor_div(more, 2))
            ends.append(ceil_div(more, 2))
        else:
            raise InferError(f"CenterCropPad of {x.type} to {shown(shape)}: is {n} < {size}?")
    return padded(x, begins, ends, zero(x, "CenterCropPad"), "CenterCropPad")
