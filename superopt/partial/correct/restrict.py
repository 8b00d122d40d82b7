"""Restrict a program to a part of its result, computed from the parts of its inputs that it
needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from superopt.ir import graph
from superopt.ops import OPS
from superopt.partial.regions.boxes import Box, Span, full_box

MAX_INSPECTED_ELEMENTS = 1 << 16  # elements of constants that are looked at


class NeedsWhole(Exception):
    """A part needs the whole operator."""


def slice_box(v: graph.Value, box: Box) -> graph.Value:
    """Slice a value to a box; return the value itself for the full box."""
    shape = static_shape(v)
    axes = [d for d, (s, n) in enumerate(zip(box, shape, strict=True)) if s != Span(0, n)]
    if not axes:
        return v
    own = [box[d] for d in axes]
    return graph.node(
        OPS["Slice"], [v], axes=tuple(axes), starts=tuple(s.begin for s in own),
        ends=tuple(s.end for s in own), steps=tuple(s.step for s in own),
    )  # fmt: skip


def restrict(v: graph.Value, box: Box) -> graph.Value:
    """Return v[box] computed from restricted operands; a Slice of the result if that saves
    nothing."""
    if box == full_box(static_shape(v)):
        return v
    n = graph.producer(v)
    if n is None or n.op.domain:
        return slice_box(v, box)
    part = _restrict_elementwise if "elementwise" in n.op.laws else _RESTRICTIONS.get(n.op.name)
    if part is None or len(n.types) > 1:
        return slice_box(v, box)
    try:
        return part(n, box)
    except NeedsWhole:
        return slice_box(v, box)


def _restrict_conv(n: graph.Node, box: Box) -> graph.Value:
    """Restrict to the inputs under these windows, by image and by kernel."""
    x, w = n.inputs[0], n.inputs[1]
    assert x is not None
    assert w is not None
    xs, ws = static_shape(x), static_shape(w)
    group = _attr(n, "group")
    over, kernels = Span(0, xs[1]), [Span(0, d) for d in ws]
    if box[1] != Span(0, ws[0]):
        if group != 1:
            raise NeedsWhole
        kernels[0] = box[1]
    spatial, geometry = _restrict_windows(n, box[2:], xs[2:], ws[2:])
    given: list[graph.Value | None] = [
        restrict(x, (box[0], over, *spatial)),
        slice_box(w, tuple(kernels)),
    ]
    bias = n.inputs[2] if len(n.inputs) > 2 else None
    if bias is not None:
        given.append(slice_box(bias, (box[1],)))
    return graph.node(n.op, given, group=group, dilations=_attr(n, "dilations"), **geometry)


def _restrict_pool(n: graph.Node, box: Box) -> graph.Value:
    means = n.op.name == "AveragePool"
    if means and n.attr("count_include_pad") == 0:
        raise NeedsWhole  # the divisor of a window depends on the whole image
    (x,) = n.inputs
    assert x is not None
    size = _attr(n, "kernel_shape")
    spatial, geometry = _restrict_windows(n, box[2:], static_shape(x)[2:], size)
    beyond = zip(geometry["pads"], _attr(n, "pads"), strict=True)
    if any(has > own for has, own in beyond):
        raise NeedsWhole  # of `ceil_mode`: a mean there is of fewer places
    given = restrict(x, (*box[:2], *spatial))
    attrs = {"count_include_pad": 1} if means else {}
    return graph.node(n.op, [given], kernel_shape=size, dilations=_attr(n, "dilations"),
                  **geometry, **attrs)  # fmt: skip


def _restrict_windows(
    n: graph.Node, box: Box, sizes: Sequence[int], kernel: Sequence[int]
) -> tuple[list[Span], dict[str, Any]]:
    """Return the input spans that these results read, and the strides and pads within them."""
    pads, strides = _attr(n, "pads"), _attr(n, "strides")
    seen, steps, begins, ends = [], [], [], []
    for d, (own, size, k) in enumerate(zip(box, sizes, kernel, strict=True)):
        reach = (k - 1) * _attr(n, "dilations")[d] + 1
        low = own.begin * strides[d] - pads[d]
        high = own.indices()[-1] * strides[d] - pads[d] + reach
        begins.append(max(0, -low))
        ends.append(max(0, high - size))
        seen.append(Span(max(0, low), min(size, high)))
        steps.append(strides[d] * own.step)
        if seen[-1].count < 1:
            raise NeedsWhole
    return seen, {"strides": tuple(steps), "pads": (*begins, *ends)}


def _restrict_concat(n: graph.Node, box: Box) -> graph.Value:
    axis = _attr(n, "axis")
    own = box[axis]
    out, begin = [], 0
    for x in n.inputs:
        assert x is not None
        size = static_shape(x)[axis]
        there = [i - begin for i in own.indices() if begin <= i < begin + size]
        if there:
            part = list(box)
            part[axis] = Span(there[0], there[-1] + 1, own.step if len(there) > 1 else 1)
            out.append(restrict(x, tuple(part)))
        begin += size
    return out[0] if len(out) == 1 else graph.node(n.op, out, axis=axis)


def _restrict_matmul(n: graph.Node, box: Box) -> graph.Value:
    a, b = n.inputs
    assert a is not None
    assert b is not None
    if len(static_shape(a)) < 2 or len(static_shape(b)) < 2:
        raise NeedsWhole
    left = _broadcast_box(a, box)
    left[-1] = Span(0, static_shape(a)[-1])
    right = _broadcast_box(b, box)
    right[-2] = Span(0, static_shape(b)[-2])
    return graph.node(n.op, [restrict(a, tuple(left)), restrict(b, tuple(right))])


def _restrict_gemm(n: graph.Node, box: Box) -> graph.Value:
    a, b, *bias = n.inputs
    assert a is not None
    assert b is not None
    if n.attr("transA"):
        raise NeedsWhole
    summed = Span(0, static_shape(a)[1])
    rows = restrict(a, (box[0], summed))
    columns = (box[1], summed) if n.attr("transB") else (summed, box[1])
    more = [restrict(c, tuple(_broadcast_box(c, box))) for c in bias if c is not None]
    return graph.node(n.op, [rows, restrict(b, columns), *more], **dict(n.attrs))


def _restrict_elementwise(n: graph.Node, box: Box) -> graph.Value:
    given = [None if x is None else restrict(x, tuple(_broadcast_box(x, box))) for x in n.inputs]
    (out,) = n.types
    if any(
        x is not None and x.type.shape == out.shape and not _uniform_scalar(x) for x in n.inputs
    ):
        given = [_uniform_scalar(x) or part for x, part in zip(n.inputs, given, strict=True)]
    return graph.node(n.op, given, **dict(n.attrs))


def _uniform_scalar(x: graph.Value | None) -> graph.Constant | None:
    """Return the scalar that a constant has everywhere, in the form that rules use, or None."""
    if (
        not isinstance(x, graph.Constant)
        or not x.type.shape
        or prod(static_shape(x)) not in range(1, MAX_INSPECTED_ELEMENTS)
    ):
        return None
    numbers = x.load()
    first = numbers.reshape(-1)[0]
    return graph.constant(first) if (numbers == first).all() else None


def _broadcast_box(x: graph.Value, box: Box) -> list[Span]:
    """Return the box of a possibly broadcast operand for a part of the result."""
    shape = static_shape(x)
    own = box[len(box) - len(shape) :]
    return [Span(0, 1) if n == 1 else s for s, n in zip(own, shape, strict=True)]


def _restrict_transpose(n: graph.Node, box: Box) -> graph.Value:
    (x,) = n.inputs
    assert x is not None
    perm = _attr(n, "perm")
    part = [box[perm.index(d)] for d in range(len(perm))]
    return graph.node(n.op, [restrict(x, tuple(part))], perm=perm)


_RESTRICTIONS: dict[str, Callable[[graph.Node, Box], graph.Value]] = {
    "Conv": _restrict_conv,
    "AveragePool": _restrict_pool,
    "MaxPool": _restrict_pool,
    "Concat": _restrict_concat,
    "MatMul": _restrict_matmul,
    "Gemm": _restrict_gemm,
    "Transpose": _restrict_transpose,
}


def static_shape(v: graph.Value) -> tuple[int, ...]:
    assert v.type.shape is not None
    out = tuple(d for d in v.type.shape if isinstance(d, int))
    assert len(out) == len(v.type.shape), v.type
    return out


def _attr(n: graph.Node, name: str) -> Any:
    return n.attr(name)
