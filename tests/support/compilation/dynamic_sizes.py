"""Nodes whose shapes are computed from sizes, as exporters do, or from values."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from tests.support.compilation.dynamic_builder import Builder, Dim, Tensor, bound_values


def _axis_size(b: Builder, name: str, axis: int) -> str:
    (size,) = b.node("Shape", name, start=axis, end=axis + 1)
    return size


def cut_axis(b: Builder) -> None:
    """The first part of an axis, up to a computed end."""
    x = b.pick(lambda t: len(t.shape) >= 1)
    if x is None:
        return
    axis = b.random.randrange(len(x.shape))
    n = x.shape[axis]
    size = _axis_size(b, x.name, axis)
    match b.random.randrange(4):
        case 0:
            (end,) = b.node("Div", b.node("Add", size, b.ints(1))[0], b.ints(2))
            cut = f"(({n}+1)//2)"
        case 1:
            (number,) = b.node("Cast", size, to=TensorProto.FLOAT)
            (half,) = b.node("Mul", number, b.constant(np.float32([0.5])))
            (rounded,) = b.node("Ceil", half)
            (end,) = b.node("Cast", rounded, to=TensorProto.INT64)
            cut = f"(({n}+1)//2)"
        case 2:
            (number,) = b.node("Cast", size, to=TensorProto.FLOAT)
            (part,) = b.node("Div", number, b.constant(np.float32([3])))
            (end,) = b.node("Cast", b.node("Ceil", part)[0], to=TensorProto.INT64)
            cut = f"(({n}+2)//3)"
        case _:
            (end,) = b.node("Min", size, b.ints(7))
            cut = f"(7-max(7-{n},0))"
    found: Dim = eval(cut, {"max": max}) if isinstance(n, int) else cut
    shape = (*x.shape[:axis], found, *x.shape[axis + 1 :])
    b.add("Slice", shape, x.name, b.ints(0), end, b.ints(axis), bounded=x.is_bounded)


def pad_to_multiple(b: Builder) -> None:
    """Pad the last axis to a multiple of 4, and split it."""
    x = b.pick(lambda t: 1 <= len(t.shape) <= 3)
    if x is None:
        return
    n, rank = x.shape[-1], len(x.shape)
    (negative,) = b.node("Neg", _axis_size(b, x.name, rank - 1))
    (rest,) = b.node("Mod", negative, b.ints(4))
    (pads,) = b.node("Concat", b.ints(*[0] * (2 * rank - 1)), rest, axis=0)
    tiles = f"(({n}+3)//4)"
    tile_count: Dim = (n + 3) // 4 if isinstance(n, int) else tiles
    padded: Dim = tile_count * 4 if isinstance(tile_count, int) else f"(4*{tiles})"
    y = b.add("Pad", (*x.shape[:-1], padded), x.name, pads, bounded=x.is_bounded)
    if b.random.random() < 0.5 and rank < 4:
        shape = b.ints(*[0] * (rank - 1), -1, 4)
        b.add("Reshape", (*x.shape[:-1], tile_count, 4), y.name, shape, bounded=x.is_bounded)


def positions(b: Builder) -> None:
    """Add positions along the last axis, of a Range of integers or floats."""
    x = b.pick(lambda t: len(t.shape) >= 1)
    if x is None:
        return
    (size,) = b.node("Squeeze", _axis_size(b, x.name, len(x.shape) - 1), b.ints(0))
    if b.random.random() < 0.5:
        zero, one = b.constant(np.int64(0)), b.constant(np.int64(1))
        (places,) = b.node("Cast", b.node("Range", zero, size, one)[0], to=TensorProto.FLOAT)
    else:
        (limit,) = b.node("Cast", size, to=TensorProto.FLOAT)
        zero, one = b.constant(np.float32(0)), b.constant(np.float32(1))
        (places,) = b.node("Range", zero, limit, one)
    (small,) = b.node("Mul", places, b.constant(np.float32(0.01)))
    b.add("Add", x.shape, x.name, small)


def last_elements(b: Builder) -> None:
    """The last elements of an axis, from a start that may be negative for small sizes."""
    x = b.pick(lambda t: len(t.shape) >= 1)
    if x is None:
        return
    axis = b.random.randrange(len(x.shape))
    n = x.shape[axis]
    size = _axis_size(b, x.name, axis)
    (start,) = b.node("Sub", size, b.ints(2))
    last: Dim = min(n, 2) if isinstance(n, int) else f"(2-max(2-{n},0))"
    shape = (*x.shape[:axis], last, *x.shape[axis + 1 :])
    b.add("Slice", shape, x.name, start, size, b.ints(axis), bounded=x.is_bounded)


def halves(b: Builder) -> None:
    """The first half of an axis, whose size may be odd."""
    x = b.pick(lambda t: any(n != 1 for n in t.shape))
    if x is None:
        return
    axis = b.random.choice([k for k, n in enumerate(x.shape) if n != 1])
    n = x.shape[axis]
    first, _ = b.node("Split", x.name, outputs=2, axis=axis, num_outputs=2)
    half: Dim = (n + 1) // 2 if isinstance(n, int) else f"(({n}+1)//2)"
    b.pool.append(Tensor(first, (*x.shape[:axis], half, *x.shape[axis + 1 :]), x.is_bounded))


def selected_elements(b: Builder) -> None:
    """Scale by the mean of the elements that a condition selects, of which there may be none."""
    x = b.pick(lambda t: len(t.shape) >= 1)
    if x is None:
        return
    x = bound_values(b, x)
    limit = b.constant(np.float32(b.random.choice([-2, 0.1, 0.3])))
    (chosen,) = b.node("Greater", x.name, limit)
    (places,) = b.node("NonZero", chosen)
    (places,) = b.node("Transpose", places, perm=[1, 0])
    (found,) = b.node("GatherND", x.name, places)
    (scaled,) = b.node("Exp", found)
    (total,) = b.node("ReduceSum", scaled, keepdims=0)
    (count,) = b.node("Cast", b.node("Size", scaled)[0], to=TensorProto.FLOAT)
    (mean,) = b.node("Div", total, b.node("Add", count, b.constant(np.float32(1)))[0])
    b.add("Mul", x.shape, x.name, mean)


SIZE_STEPS = (
    cut_axis, cut_axis, pad_to_multiple, positions, last_elements, halves, selected_elements,
)  # fmt: skip
