"""Nodes that move elements, with random attributes."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from tests.support.compilation.dynamic_builder import (
    Builder,
    Dim,
    Tensor,
    bound_values,
    broadcast,
    product,
    value,
)


def transpose(b: Builder) -> None:
    x = b.pick(lambda t: len(t.shape) >= 2)
    if x is None:
        return
    order = list(range(len(x.shape)))
    b.random.shuffle(order)
    shape = tuple(x.shape[d] for d in order)
    b.add("Transpose", shape, x.name, perm=order, bounded=x.is_bounded)


def merge(b: Builder) -> None:
    """Reshape two neighbouring axes to one, by -1, 0 or a computed shape."""
    x = b.pick(lambda t: len(t.shape) >= 2)
    if x is None:
        return
    d = b.random.randrange(len(x.shape) - 1)
    shape = (*x.shape[:d], product(x.shape[d], x.shape[d + 1]), *x.shape[d + 2 :])
    wanted = [0] * d + [-1] + [n if isinstance(n, int) else -1 for n in shape[d + 1 :]]
    if wanted.count(-1) == 1:
        b.add("Reshape", shape, x.name, b.ints(*wanted), bounded=x.is_bounded)
        return
    (whole,) = b.node("Shape", x.name)
    parts = [
        b.node("Gather", whole, b.ints(k))[0] for k in range(len(x.shape)) if k not in (d, d + 1)
    ]
    parts.insert(d, b.ints(-1))
    (computed,) = b.node("Concat", *parts, axis=0)
    b.add("Reshape", shape, x.name, computed, bounded=x.is_bounded)


def split_axis(b: Builder) -> None:
    """Reshape an axis of fixed size to two."""
    x = b.pick(lambda t: len(t.shape) < 4 and any(n in (8, 16, 20) for n in t.shape))
    if x is None:
        return
    d = b.random.choice([k for k, n in enumerate(x.shape) if n in (8, 16, 20)])
    n, part = x.shape[d], b.random.choice([2, 4])
    assert isinstance(n, int)
    shape = (*x.shape[:d], n // part, part, *x.shape[d + 1 :])
    if sum(isinstance(k, str) for k in shape[d:]) > 1:
        return
    wanted = [0] * d + [-1 if isinstance(k, str) else k for k in shape[d:]]
    b.add("Reshape", shape, x.name, b.ints(*wanted), bounded=x.is_bounded)


def concat(b: Builder) -> None:
    x = b.pick(lambda t: len(t.shape) >= 1)
    if x is None:
        return
    axis = b.random.randrange(len(x.shape))
    others = [
        t
        for t in b.pool
        if len(t.shape) == len(x.shape)
        and all(a == c for k, (a, c) in enumerate(zip(t.shape, x.shape, strict=True)) if k != axis)
    ]
    parts = [x, *b.random.choices(others, k=b.random.randint(1, 2))]
    b.random.shuffle(parts)
    sizes = [t.shape[axis] for t in parts]
    total: Dim = sum(n for n in sizes if isinstance(n, int))
    texts = [n for n in sizes if isinstance(n, str)]
    if texts:
        total = "(" + "+".join([*sorted(texts), *([str(total)] if total else [])]) + ")"
    shape = (*x.shape[:axis], total, *x.shape[axis + 1 :])
    bounded = all(t.is_bounded for t in parts)
    b.add("Concat", shape, *(t.name for t in parts), axis=axis, bounded=bounded)


def split(b: Builder) -> None:
    x = b.pick(lambda t: any(isinstance(n, int) and n >= 3 for n in t.shape))
    if x is None:
        return
    axis = b.random.choice([k for k, n in enumerate(x.shape) if isinstance(n, int) and n >= 3])
    n = x.shape[axis]
    assert isinstance(n, int)
    cut = b.random.randrange(1, n)
    names = b.node("Split", x.name, b.ints(cut, n - cut), outputs=2, axis=axis)
    for name, part in zip(names, (cut, n - cut), strict=True):
        b.pool.append(Tensor(name, (*x.shape[:axis], part, *x.shape[axis + 1 :]), x.is_bounded))


def slice_axis(b: Builder) -> None:
    x = b.pick(lambda t: len(t.shape) >= 1)
    if x is None:
        return
    axis = b.random.randrange(len(x.shape))
    n = x.shape[axis]
    far = 2**31
    cases: list[tuple[int, int, int, str]] = [
        (1, far, 1, f"max({n}-1,0)"),
        (0, -1, 1, f"max({n}-1,0)"),
        (0, far, 2, f"(({n}+1)//2)"),
        (-1, far, 1, "1"),
        (0, 1, 1, "1"),
        (-1, -far, -1, str(n)),
        (2, far, 3, f"((max({n}-2,0)+2)//3)"),
    ]
    begin, end, step, text = b.random.choice(cases)
    found: Dim = value(text, {}) if isinstance(n, int) or text.isdigit() else text
    if found == 0:
        return
    shape = (*x.shape[:axis], found, *x.shape[axis + 1 :])
    given = (b.ints(begin), b.ints(end), b.ints(axis), b.ints(step))
    b.add("Slice", shape, x.name, *given, bounded=x.is_bounded)


def pad(b: Builder) -> None:
    x = b.pick(lambda t: len(t.shape) >= 1)
    if x is None:
        return
    axis = b.random.randrange(len(x.shape))
    low, high = b.random.randint(0, 2), b.random.randint(0, 2)
    n = x.shape[axis]
    size: Dim = n + low + high if isinstance(n, int) else f"({n}+{low + high})"
    pads = [0] * (2 * len(x.shape))
    pads[axis], pads[len(x.shape) + axis] = low, high
    shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
    b.add("Pad", shape, x.name, b.ints(*pads), b.constant(np.float32(0.5)), bounded=x.is_bounded)


def gather(b: Builder) -> None:
    x = b.pick(lambda t: len(t.shape) >= 1)
    if x is None:
        return
    axis = b.random.randrange(len(x.shape))
    n = x.shape[axis]
    indices = [0, -1, 0] if isinstance(n, str) else [b.random.randrange(-n, n) for _ in range(3)]
    if b.random.random() < 0.5:
        at, size = b.ints(*indices), (3,)
    else:
        at, size = b.constant(np.int64(indices[1])), ()
    shape = (*x.shape[:axis], *size, *x.shape[axis + 1 :])
    b.add("Gather", shape, x.name, at, axis=axis, bounded=x.is_bounded)


def lookup(b: Builder) -> None:
    """Rows of a table, at indices that are computed."""
    x = b.pick(lambda t: 1 <= len(t.shape) <= 2)
    if x is None:
        return
    (scaled,) = b.node("Mul", bound_values(b, x).name, b.constant(np.float32(3.3)))
    (clipped,) = b.node("Clip", scaled, b.constant(np.float32(-4)), b.constant(np.float32(4)))
    (at,) = b.node("Cast", clipped, to=TensorProto.INT64)
    b.add("Gather", (*x.shape, 8), b.floats(5, 8), at, axis=0, bounded=True)


def expand(b: Builder) -> None:
    x, y = b.pick(), b.pick(lambda t: len(t.shape) >= 1)
    assert x is not None
    if y is None or (shape := broadcast(x.shape, y.shape)) is None:
        return
    (computed,) = b.node("Shape", y.name)
    b.add("Expand", shape, x.name, computed, bounded=x.is_bounded)


def unsqueeze(b: Builder) -> None:
    x = b.pick(lambda t: len(t.shape) < 4)
    if x is None:
        return
    ones = [k for k, n in enumerate(x.shape) if n == 1]
    if ones and b.random.random() < 0.5:
        k = b.random.choice(ones)
        shape = (*x.shape[:k], *x.shape[k + 1 :])
        b.add("Squeeze", shape, x.name, b.ints(k), bounded=x.is_bounded)
        return
    k = b.random.randint(0, len(x.shape))
    shape = (*x.shape[:k], 1, *x.shape[k:])
    b.add("Unsqueeze", shape, x.name, b.ints(k), bounded=x.is_bounded)


MOVEMENT_STEPS = (
    transpose, transpose, merge, merge, split_axis, split_axis, concat, concat, split, slice_axis,
    slice_axis, pad, gather, lookup, expand, unsqueeze, unsqueeze,
)  # fmt: skip
