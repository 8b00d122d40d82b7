"""Restrict a program to a part of its result, computed from the parts of its inputs that it
needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from superopt.ir import graph as g
from superopt.ops import OPS
from superopt.partial.boxes import Box, Span, whole

MANY = 1 << 16  # elements of constants that are looked at


class Everything(Exception):
    """A part needs the whole operator."""


def sliced(v: g.Value, box: Box) -> g.Value:
    """Slice a value to a box; return the value itself for the full box."""
    shape = shape_of(v)
    axes = [d for d, (s, n) in enumerate(zip(box, shape, strict=True)) if s != Span(0, n)]
    if not axes:
        return v
    own = [box[d] for d in axes]
    return g.node(
        OPS["Slice"], [v], axes=tuple(axes), starts=tuple(s.begin for s in own),
        ends=tuple(s.end for s in own), steps=tuple(s.step for s in own),
    )  # fmt: skip


def restricted(v: g.Value, box: Box) -> g.Value:
    """Return v[box] computed from restricted operands; a Slice of the result if that saves
    nothing."""
    if box == whole(shape_of(v)):
        return v
    n = g.producer(v)
    if n is None or n.op.domain:
        return sliced(v, box)
    part = _elementwise if "elementwise" in n.op.laws else _PARTS.get(n.op.name)
    if part is None or len(n.types) > 1:
        return sliced(v, box)
    try:
        return part(n, box)
    except Everything:
        return sliced(v, box)


def _conv(n: g.Node, box: Box) -> g.Value:
    """Restrict to the inputs under these windows, by image and by kernel."""
    x, w = n.inputs[0], n.inputs[1]
    assert x is not None
    assert w is not None
    xs, ws = shape_of(x), shape_of(w)
    group = _attr(n, "group")
    over, kernels = Span(0, xs[1]), [Span(0, d) for d in ws]
    if box[1] != Span(0, ws[0]):
        if group != 1:
            raise Everything
        kernels[0] = box[1]
    spatial, geometry = _windows(n, box[2:], xs[2:], ws[2:])
    given: list[g.Value | None] = [
        restricted(x, (box[0], over, *spatial)),
        sliced(w, tuple(kernels)),
    ]
    bias = n.inputs[2] if len(n.inputs) > 2 else None
    if bias is not None:
        given.append(sliced(bias, (box[1],)))
    return g.node(n.op, given, group=group, dilations=_attr(n, "dilations"), **geometry)


def _pool(n: g.Node, box: Box) -> g.Value:
    means = n.op.name == "AveragePool"
    if means and n.attr("count_include_pad") == 0:
        raise Everything  # a window says how many places of its picture it has
    (x,) = n.inputs
    assert x is not None
    size = _attr(n, "kernel_shape")
    spatial, geometry = _windows(n, box[2:], shape_of(x)[2:], size)
    beyond = zip(geometry["pads"], _attr(n, "pads"), strict=True)
    if any(has > own for has, own in beyond):
        raise Everything  # of `ceil_mode`: a mean there is of fewer places
    given = restricted(x, (*box[:2], *spatial))
    attrs = {"count_include_pad": 1} if means else {}
    return g.node(n.op, [given], kernel_shape=size, dilations=_attr(n, "dilations"),
                  **geometry, **attrs)  # fmt: skip


def _windows(
    n: g.Node, box: Box, sizes: Sequence[int], kernel: Sequence[int]
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
            raise Everything
    return seen, {"strides": tuple(steps), "pads": (*begins, *ends)}


def _concat(n: g.Node, box: Box) -> g.Value:
    axis = _attr(n, "axis")
    own = box[axis]
    out, begin = [], 0
    for x in n.inputs:
        assert x is not None
        size = shape_of(x)[axis]
        there = [i - begin for i in own.indices() if begin <= i < begin + size]
        if there:
            part = list(box)
            part[axis] = Span(there[0], there[-1] + 1, own.step if len(there) > 1 else 1)
            out.append(restricted(x, tuple(part)))
        begin += size
    return out[0] if len(out) == 1 else g.node(n.op, out, axis=axis)


def _matmul(n: g.Node, box: Box) -> g.Value:
    a, b = n.inputs
    assert a is not None
    assert b is not None
    if len(shape_of(a)) < 2 or len(shape_of(b)) < 2:
        raise Everything
    left = _broadcast(a, box)
    left[-1] = Span(0, shape_of(a)[-1])
    right = _broadcast(b, box)
    right[-2] = Span(0, shape_of(b)[-2])
    return g.node(n.op, [restricted(a, tuple(left)), restricted(b, tuple(right))])


def _gemm(n: g.Node, box: Box) -> g.Value:
    a, b, *bias = n.inputs
    assert a is not None
    assert b is not None
    if n.attr("transA"):
        raise Everything
    summed = Span(0, shape_of(a)[1])
    rows = restricted(a, (box[0], summed))
    columns = (box[1], summed) if n.attr("transB") else (summed, box[1])
    more = [restricted(c, tuple(_broadcast(c, box))) for c in bias if c is not None]
    return g.node(n.op, [rows, restricted(b, columns), *more], **dict(n.attrs))


def _elementwise(n: g.Node, box: Box) -> g.Value:
    given = [None if x is None else restricted(x, tuple(_broadcast(x, box))) for x in n.inputs]
    (out,) = n.types
    if any(x is not None and x.type.shape == out.shape and not _same(x) for x in n.inputs):
        given = [_same(x) or part for x, part in zip(n.inputs, given, strict=True)]
    return g.node(n.op, given, **dict(n.attrs))


def _same(x: g.Value | None) -> g.Constant | None:
    """Return the scalar that a constant has everywhere, in the form that rules use, or None."""
    if not isinstance(x, g.Constant) or not x.type.shape or prod(shape_of(x)) not in range(1, MANY):
        return None
    numbers = x.load()
    first = numbers.reshape(-1)[0]
    return g.constant(first) if (numbers == first).all() else None


def _broadcast(x: g.Value, box: Box) -> list[Span]:
    """Return the box of a possibly broadcast operand for a part of the result."""
    shape = shape_of(x)
    own = box[len(box) - len(shape) :]
    return [Span(0, 1) if n == 1 else s for s, n in zip(own, shape, strict=True)]


def _transpose(n: g.Node, box: Box) -> g.Value:
    (x,) = n.inputs
    assert x is not None
    perm = _attr(n, "perm")
    part = [box[perm.index(d)] for d in range(len(perm))]
    return g.node(n.op, [restricted(x, tuple(part))], perm=perm)


_PARTS: dict[str, Callable[[g.Node, Box], g.Value]] = {
    "Conv": _conv, "AveragePool": _pool, "MaxPool": _pool, "Concat": _concat, "MatMul": _matmul,
    "Gemm": _gemm, "Transpose": _transpose,
}  # fmt: skip


def shape_of(v: g.Value) -> tuple[int, ...]:
    assert v.type.shape is not None
    out = tuple(d for d in v.type.shape if isinstance(d, int))
    assert len(out) == len(v.type.shape), v.type
    return out


def _attr(n: g.Node, name: str) -> Any:
    return n.attr(name)
