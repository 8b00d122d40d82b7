"""Sliding windows along an axis: counts, canonical pads, element indices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from superopt.ir.op import Attr, InferError
from superopt.ops.shared.sizes import (
    ceil_div,
    floor_div,
    is_at_most,
    max_size,
    min_size,
    size_tuple,
    subtract_sizes,
)
from superopt.te.expr import index
from superopt.te.expr.node import Expr
from superopt.te.expr.tensor import Dim, TensorType, conjunction, in_range

AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


@dataclass(frozen=True, slots=True)
class Window:
    """`count` windows of `size` elements on an axis of `extent`; `dilation` is the distance of
    elements, `stride` that of windows.

    begin, end: padding. hangs: the last window may cover elements past the axis, in the padding or
    beyond it.
    """

    extent: Dim
    count: Dim
    size: Dim
    stride: Dim
    dilation: Dim
    begin: Dim
    end: Dim
    overhangs: bool


def window_span(size: Dim, dilation: Dim) -> Dim:
    """Return the distance from the first to the last element of a window, plus one."""
    return index.dim((index.as_index(size) - 1) * dilation + 1)


def element_index(w: Window, position: Expr, k: Expr) -> Expr:
    """Return the index of the `k`-th element of window `position`; outside the axis it is
    padding."""
    return index.as_index(position * w.stride + k * w.dilation - w.begin)


def is_padded(w: Window) -> bool:
    """True if a window may cover an element outside the axis."""
    return w.begin != 0 or w.overhangs


def is_inside(ws: Sequence[Window], positions: Sequence[Expr], ks: Sequence[Expr]) -> Expr | bool:
    """Return the guard that the elements at `ks` of the windows are inside."""
    return conjunction(
        *(
            in_range(element_index(w, o, k), w.extent)
            for w, o, k in zip(ws, positions, ks, strict=True)
            if is_padded(w)
        )
    )


def element_indices(
    ws: Sequence[Window], positions: Sequence[Expr], ks: Sequence[Expr]
) -> list[Expr]:
    """Return `element_index` along each axis."""
    return [element_index(w, o, k) for w, o, k in zip(ws, positions, ks, strict=True)]


def _axis_values(context: str, value: Attr, rank: int, key: str, minimum: int) -> tuple[Dim, ...]:
    values = (1,) * rank if value is None else size_tuple(value, key)
    if len(values) != rank or not all(is_at_most(minimum, v) for v in values):
        raise InferError(f"{context}: {key} {values} on {rank} spatial axes")
    return values


def _same_padding(extent: Dim, size: Dim, stride: Dim, dilation: Dim) -> Dim:
    """Return the total padding of SAME modes, with which there is a window for each stride."""
    last = index.dim((index.as_index(ceil_div(extent, stride)) - 1) * stride)
    return max_size(
        subtract_sizes(index.dim(index.as_index(last) + window_span(size, dilation)), extent), 0
    )


def explicit_pads(
    context: str, attrs: dict[str, Attr], extents: Sequence[Dim], kernel: Sequence[Dim]
) -> tuple[Dim, ...]:
    """The pads of each axis, begins then ends; `auto_pad` worked out, so they may be symbolic."""
    rank, mode = len(extents), attrs["auto_pad"]
    pads = (0,) * (2 * rank) if attrs["pads"] is None else size_tuple(attrs["pads"], "pads")
    if mode not in AUTO_PADS:
        raise InferError(f"{context}: auto_pad {mode} is not one of {', '.join(AUTO_PADS)}")
    if len(pads) != 2 * rank:
        raise InferError(f"{context}: {len(pads)} pads on {rank} spatial axes")
    if mode == "NOTSET":
        return pads
    if mode == "VALID":
        return (0,) * (2 * rank)
    strides = _axis_values(context, attrs["strides"], rank, "strides", 1)
    dilations = _axis_values(context, attrs["dilations"], rank, "dilations", 1)
    total = [_same_padding(*axis) for axis in zip(extents, kernel, strides, dilations, strict=True)]
    less, more = [floor_div(t, 2) for t in total], [ceil_div(t, 2) for t in total]
    return (*less, *more) if mode == "SAME_UPPER" else (*more, *less)


def canonical_windows(
    context: str, t: TensorType, attrs: dict[str, Attr], kernel: Sequence[Dim]
) -> dict[str, Attr]:
    """strides, dilations and pads in full, and NOTSET.

    Only where SAME pads depend on a symbolic extent, for which ONNX has no other words, `auto_pad`
    stays and `pads` is None.
    """
    assert t.shape is not None
    extents = t.shape[2:]
    rank = len(extents)
    if rank < 1 or len(kernel) != rank:
        raise InferError(f"{context}: a kernel of {len(kernel)} axes on {rank} spatial axes")
    pads = explicit_pads(context, attrs, extents, kernel)
    found: dict[str, Attr] = {
        "strides": _axis_values(context, attrs["strides"], rank, "strides", 1),
        "dilations": _axis_values(context, attrs["dilations"], rank, "dilations", 1),
    }
    if attrs["auto_pad"] == "NOTSET" or all(isinstance(p, int) for p in pads):
        return attrs | found | {"pads": pads, "auto_pad": "NOTSET"}
    return attrs | found | {"pads": None}


def windows(
    context: str,
    extents: Sequence[Dim],
    kernel: Sequence[Dim],
    *,
    strides: Sequence[Dim],
    dilations: Sequence[Dim],
    pads: Sequence[Dim] | None,
    auto_pad: str,
    ceil: bool = False,
) -> list[Window]:
    """The windows of each spatial axis; `ceil` keeps a last one that only starts inside."""
    attrs: dict[str, Attr] = {
        "auto_pad": auto_pad,
        "pads": None if pads is None else tuple(pads),
        "strides": tuple(strides),
        "dilations": tuple(dilations),
    }
    full = explicit_pads(context, attrs, extents, kernel)
    out: list[Window] = []
    for a, (n, k, s, d) in enumerate(zip(extents, kernel, strides, dilations, strict=True)):
        begin, end = full[a], full[a + len(extents)]
        room = index.dim(index.as_index(n) + begin + end - window_span(k, d))
        if isinstance(room, int) and room < 0:
            raise InferError(
                f"{context}: a window of {window_span(k, d)} does not fit in {n} elements padded "
                f"by {begin}"
                f" and {end}"
            )
        count: Dim
        if auto_pad.startswith("SAME"):
            count = ceil_div(n, s)
        elif ceil:  # but none that sees only padding
            inner = ceil_div(index.dim(index.as_index(n) + begin), s)
            count = min_size(index.dim(index.as_index(ceil_div(room, s)) + 1), inner)
        else:
            count = index.dim(index.as_index(floor_div(room, s)) + 1)
        past = index.dim((index.as_index(count) - 1) * s + window_span(k, d) - begin - n)
        hangs = past > 0 if isinstance(past, int) else end != 0 or (ceil and s != 1)
        out.append(Window(n, count, k, s, d, begin, end, hangs))
    return out


def check_kernel_shape(
    context: str, attrs: dict[str, Attr], kernel: Sequence[Dim]
) -> dict[str, Attr]:
    """Check `kernel_shape` against the weights' shape, and drop it."""
    given = attrs["kernel_shape"]
    if given is not None and tuple(size_tuple(given, "kernel_shape")) != tuple(kernel):
        raise InferError(f"{context}: kernel_shape {given} != {tuple(kernel)} of w")
    return attrs | {"kernel_shape": None}
