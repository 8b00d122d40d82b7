"""Random instances of the patterns that the vectorised reading recognises."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from superopt.te.expr import index
from superopt.te.expr.dtype import F64, INDEX
from superopt.te.expr.node import Expr
from superopt.te.expr.tensor import (
    Tensor,
    TensorType,
    compare,
    compute,
    conjunction,
    const,
    in_range,
    placeholder,
    ravel,
    reduce_max,
    reduce_sum,
    select,
    unravel,
)
from tests.support.te.expressions import Drawn


def _fed(draw: st.DrawFn, tensor: Tensor, *sources: Tensor) -> Drawn:
    rng = np.random.default_rng(draw(st.integers(0, 1 << 16)))
    inputs = {
        s.name: rng.integers(-4, 5, [int(d) for d in s.shape if isinstance(d, int)]).astype(float)
        for s in sources
    }
    return Drawn(tensor, inputs)


@st.composite
def contractions(draw: st.DrawFn) -> Drawn:
    """Sums of products of two or three factors, each over some of the axes, in any order."""
    extents = draw(st.lists(st.sampled_from((1, 2, 3, 5)), min_size=2, max_size=6))
    kept = draw(st.integers(0, len(extents) - 1))
    order = draw(st.permutations(range(len(extents))))
    outer, inner = order[:kept], order[kept:]
    chosen = [
        draw(st.lists(st.sampled_from(range(len(extents))), unique=True, min_size=1))
        for _ in range(draw(st.sampled_from((1, 2, 2, 3))))
    ]
    sources = [
        placeholder(f"x{n}", TensorType(F64, tuple(extents[a] for a in axes)))
        for n, axes in enumerate(chosen)
    ]

    def body(*i: Expr) -> Expr:
        def term(*k: Expr) -> Expr:
            at = dict(zip([*outer, *inner], [*i, *k], strict=True))
            out: Expr | None = None
            for s, axes in zip(sources, chosen, strict=True):
                factor = s[tuple(at[a] for a in axes)]
                out = factor if out is None else out * factor
            assert out is not None
            return -out if sign else out

        return reduce_sum([extents[a] for a in inner], term)

    sign = draw(st.booleans())
    return _fed(draw, compute([extents[a] for a in outer], body), *sources)


@st.composite
def convolutions(draw: st.DrawFn) -> Drawn:
    """Convolutions and poolings on one or two axes: groups, strides, dilations, any padding."""
    rank = draw(st.integers(1, 2))
    groups, inner, outer = (draw(st.integers(1, 3)) for _ in range(3))
    size = [draw(st.integers(1, 7)) for _ in range(rank)]
    kernel = [draw(st.integers(1, 4)) for _ in range(rank)]
    stride = [draw(st.integers(1, 3)) for _ in range(rank)]
    dilation = [draw(st.integers(1, 2)) for _ in range(rank)]
    begin = [draw(st.integers(0, 3)) for _ in range(rank)]
    count = [draw(st.integers(1, 5)) for _ in range(rank)]
    batch = draw(st.integers(1, 2))
    x = placeholder("x", TensorType(F64, (batch, groups * inner, *size)))
    w = placeholder("w", TensorType(F64, (groups * outer, inner, *kernel)))

    def window(n: Expr, c: Expr, o: Sequence[Expr], k: Sequence[Expr]) -> Expr:
        at = [
            index.as_index(p * s + q * d - b)
            for p, s, q, d, b in zip(o, stride, k, dilation, begin, strict=True)
        ]
        guard = conjunction(*(in_range(a, e) for a, e in zip(at, size, strict=True)))
        return select(guard, x[(n, c, *at)], fill)

    fill = const(draw(st.sampled_from((0, -9))), F64)
    if draw(st.booleans()):

        def convolved(n: Expr, m: Expr, *o: Expr) -> Expr:
            first = index.as_index(m // outer * inner)
            return reduce_sum(
                [inner, *kernel],
                lambda c, *k: window(n, index.as_index(first + c), o, k) * w[(m, c, *k)],
            )

        return _fed(draw, compute((batch, groups * outer, *count), convolved), x, w)
    fold = draw(st.sampled_from((reduce_max, reduce_sum)))
    pooled = compute(
        (batch, groups * inner, *count),
        lambda n, c, *o: fold(kernel, lambda *k: window(n, c, o, k)),
    )
    return _fed(draw, pooled, x)


@st.composite
def transposed_convolutions(draw: st.DrawFn) -> Drawn:
    """Each element sums what the windows that see it spread: quotients under a guard."""
    size, kernel = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    stride, dilation = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    begin, channels = draw(st.integers(0, 2)), draw(st.integers(1, 2))
    x = placeholder("x", TensorType(F64, (channels, size)))
    w = placeholder("w", TensorType(F64, (channels, kernel)))

    def body(o: Expr) -> Expr:
        def term(c: Expr, k: Expr) -> Expr:
            spot = index.as_index(o + begin - k * dilation)
            where = index.floordiv(spot, const(stride, INDEX))
            meets = compare("eq", index.mod(spot, const(stride, INDEX)), const(0, INDEX))
            return select(conjunction(meets, in_range(where, size)), x[c, where], 0) * w[c, k]

        return reduce_sum([channels, kernel], term)

    return _fed(draw, compute((draw(st.integers(1, 14)),), body), x, w)


@st.composite
def reshapes(draw: st.DrawFn) -> Drawn:
    """Reshapes, transposes, slices and shifts one after the other, written as a single load."""
    shape: list[int] = draw(st.lists(st.sampled_from((1, 2, 3, 4, 6)), min_size=1, max_size=4))
    x = placeholder("x", TensorType(F64, tuple(shape)))
    moves = []
    for _ in range(draw(st.integers(1, 4))):
        match draw(st.sampled_from(("reshape", "reshape", "transpose", "slice", "reverse"))):
            case "reshape":
                new = _divisors(draw, math.prod(shape))
                moves.append(("reshape", tuple(shape), tuple(new)))
                shape = new
            case "transpose":
                perm = draw(st.permutations(range(len(shape))))
                moves.append(("transpose", tuple(perm), ()))
                shape = [shape[p] for p in perm]
            case "slice":
                axis = draw(st.integers(0, len(shape) - 1))
                start = draw(st.integers(0, shape[axis] - 1))
                moves.append(("slice", (axis, start), ()))
                shape = [*shape[:axis], shape[axis] - start, *shape[axis + 1 :]]
            case _:
                axis = draw(st.integers(0, len(shape) - 1))
                moves.append(("reverse", (axis, shape[axis]), ()))

    def body(*i: Expr) -> Expr:
        at = list(i)
        for what, a, b in reversed(moves):
            match what:
                case "reshape":
                    at = list(unravel(ravel(at, b), a))
                case "transpose":
                    at = [at[a.index(p)] for p in range(len(a))]
                case "slice":
                    at[a[0]] = index.as_index(at[a[0]] + a[1])
                case _:
                    at[a[0]] = index.as_index(a[1] - 1 - at[a[0]])
        return x[tuple(at)]

    return _fed(draw, compute(tuple(shape), body), x)


def _divisors(draw: st.DrawFn, total: int) -> list[int]:
    """A random shape of `total` elements."""
    out: list[int] = []
    while total > 1 and len(out) < 4:
        d = draw(st.sampled_from([n for n in range(1, total + 1) if total % n == 0]))
        out.append(d)
        total //= d
    return [*out, total]
