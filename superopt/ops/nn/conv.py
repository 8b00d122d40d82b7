"""Convolution, on any number of spatial axes."""

from __future__ import annotations

from collections.abc import Sequence

from superopt.ir.op import Attr, Canonical, InferError, Types, op
from superopt.ops.movement.layout import known_type
from superopt.ops.shared.precision import narrow_tensor, widen_tensor
from superopt.ops.shared.sizes import floor_div, is_at_most
from superopt.ops.shared.windows import (
    Window,
    canonical_windows,
    check_kernel_shape,
    element_indices,
    is_inside,
    windows,
)
from superopt.te.analysis.size_oracle import are_shapes_equal, are_sizes_equal
from superopt.te.expr import index
from superopt.te.expr.dtype import INDEX
from superopt.te.expr.node import Expr
from superopt.te.expr.tensor import Dim, Tensor, TensorType, compute, const, reduce_sum, select


def check_conv_operands(
    name: str, x: TensorType, w: TensorType, group: Attr, *, transposed: bool = False
) -> tuple[Dim, Dim, Dim]:
    """Return (groups, input channels per group, output channels per group). Raises InferError if
    the shapes disagree."""
    xs, ws = x.shape, w.shape
    assert xs is not None
    assert ws is not None
    what = f"{name} of x {x} with w {w}"
    if not isinstance(group, (int, Expr)) or not is_at_most(1, group):
        raise InferError(f"{what}: {group} groups")
    if len(xs) < 3 or len(xs) != len(ws):
        raise InferError(f"{what}: ranks {len(xs)} and {len(ws)}")
    if transposed:
        if not are_sizes_equal(xs[1], ws[0]):
            raise InferError(f"{what}: {xs[1]} channels != {ws[0]}")
        inner = floor_div(xs[1], group)
        if not are_sizes_equal(index.dim(index.as_index(inner) * group), xs[1]):
            raise InferError(f"{what}: {xs[1]} channels in {group} groups")
        return group, inner, ws[1]
    if not are_sizes_equal(index.dim(index.as_index(ws[1]) * group), xs[1]):
        raise InferError(f"{what}: {xs[1]} channels in {group} groups != {ws[1]}")
    outer = floor_div(ws[0], group)
    if not are_sizes_equal(index.dim(index.as_index(outer) * group), ws[0]):
        raise InferError(f"{what}: {ws[0]} output channels in {group} groups")
    return group, ws[1], outer


def check_bias(name: str, channels: Dim, b: Tensor | None) -> None:
    """Raise InferError unless `b` has one element for each output channel."""
    if b is not None and not are_shapes_equal(b.shape, (channels,)):
        raise InferError(f"{name}: bias has type {b.type}, expected [{channels}]")


def conv_geometry(
    name: str,
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    group: int,
    strides: tuple[int, ...] | None,
    dilations: tuple[int, ...] | None,
    pads: tuple[int, ...] | None,
    auto_pad: str,
) -> tuple[tuple[Dim, Dim, Dim], list[Window]]:
    """Return the groups of a convolution, as `check_conv_operands` does, and its windows."""
    what = f"{name} of x {x.type} with w {w.type}"
    groups = check_conv_operands(name, x.type, w.type, group)
    check_bias(what, w.shape[0], b)
    assert strides is not None
    assert dilations is not None
    ws = windows(
        what,
        x.shape[2:],
        w.shape[2:],
        strides=strides,
        dilations=dilations,
        pads=pads,
        auto_pad=auto_pad,
    )
    return groups, ws


def convolution(
    x: Tensor, w: Tensor, b: Tensor | None, groups: tuple[Dim, Dim, Dim], ws: Sequence[Window]
) -> Tensor:
    """Return the convolution in the element types of `x`, `w` and `b`, with zero padding."""
    group, inner, outer = groups

    def element(n: Expr, m: Expr, *o: Expr) -> Expr:
        first = index.as_index(m // outer * inner) if group != 1 else const(0, INDEX)

        def term(c: Expr, *k: Expr) -> Expr:
            value = x[(n, first + c, *element_indices(ws, o, k))]
            return select(is_inside(ws, o, k), value, const(0, x.dtype)) * w[(m, c, *k)]

        total = reduce_sum((inner, *(v.size for v in ws)), term)
        return total if b is None else total + b[m]

    return compute((x.shape[0], w.shape[0], *(v.count for v in ws)), element, name="conv")


def canonical_conv(name: str, w_operand: int = 1) -> Canonical:
    """Canonical form of a convolution's attributes; see `canonical_windows`."""

    def canonical(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
        x, _ = known_type(types)
        w, shape = known_type(types, w_operand)
        check_conv_operands(name, x, w, attrs["group"])
        what = f"{name} of x {x} with w {w}"
        full = check_kernel_shape(what, attrs, shape[2:])
        return canonical_windows(what, x, full, shape[2:])

    return canonical


@op(
    "Conv",
    example=(
        "f32[1,2,5,6] f32[3,2,3,3] f32[3] pads=(1,0,1,2) strides=(2,1)",
        "f32[2,4,7] f32[6,2,3] group=2 dilations=(2,)",
    ),
    laws="linear",
    canonical=canonical_conv("Conv"),
)
def conv(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: tuple[int, ...] | None = None,
    group: int = 1,
    kernel_shape: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Tensor:
    """Sums of x[n, c, ...] times w[m, c / group, ...] under a sliding kernel, plus b[m]."""
    groups, ws = conv_geometry("Conv", x, w, b, group, strides, dilations, pads, auto_pad)
    if x.dtype != w.dtype or (b is not None and b.dtype != x.dtype):
        raise InferError(f"Conv of x {x.type} with w {w.type}: dtypes differ")
    bias = None if b is None else widen_tensor(b)
    return narrow_tensor(convolution(widen_tensor(x), widen_tensor(w), bias, groups, ws), x.dtype)
