"""Random tensor expressions: loads at odd places, guards, reductions, tensors of tensors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from superopt.te.expr import index as te_index
from superopt.te.expr.dtype import F64, I8, I64, INDEX, DType
from superopt.te.expr.node import Axis, Dim, Expr
from superopt.te.expr.tensor import (
    Tensor,
    TensorType,
    apply,
    cast,
    compare,
    compute,
    conjunction,
    const,
    gather,
    in_range,
    placeholder,
    reduction,
    select,
)

INDICES = 5  # elements of the integer input `at`, which other loads go by
AT = placeholder("at", TensorType(I64, (INDICES,)))


@dataclass(frozen=True, slots=True)
class Drawn:
    """A tensor and inputs for it."""

    tensor: Tensor
    inputs: dict[str, np.ndarray]


@st.composite
def drawn(draw: st.DrawFn, dtype: DType) -> Drawn:
    """A tensor of `dtype` elements over random small inputs of the same type."""
    count = draw(st.integers(1, 3))
    sources = [placeholder(f"x{n}", TensorType(dtype, draw(_shape(3)))) for n in range(count)]
    for depth in range(draw(st.integers(0, 2))):
        sources.append(draw(_tensor(sources, dtype, f"t{depth}")))
    tensor = draw(_tensor(sources, dtype, "out"))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 16)))
    inputs: dict[str, np.ndarray] = {"at": rng.integers(-3, 4, INDICES)}
    for s in sources[:count]:
        values = rng.integers(-4, 5, tuple(int(d) for d in s.shape if isinstance(d, int)))
        inputs[s.name] = values.astype({F64: np.float64, I8: np.int8}[dtype])
    return Drawn(tensor, inputs)


def _shape(rank: int) -> st.SearchStrategy[tuple[Dim, ...]]:
    return st.lists(st.sampled_from((1, 2, 3, 4, 6)), max_size=rank).map(tuple)


@st.composite
def _tensor(draw: st.DrawFn, sources: list[Tensor], dtype: DType, name: str) -> Tensor:
    shape = draw(_shape(3))
    return compute(
        shape,
        lambda *i: draw(element(sources, [a for a in i if a.extent != 0], dtype, 3)),
        name=name,
    )


@st.composite
def place(draw: st.DrawFn, axes: list[Axis]) -> Expr:
    """Index arithmetic over axes, not far from zero."""
    out: Expr = const(draw(st.integers(-2, 3)), INDEX)
    for a in draw(st.lists(st.sampled_from(axes), max_size=3, unique=True)) if axes else []:
        out = te_index.as_index(out + a * draw(st.sampled_from((-2, -1, 1, 1, 1, 2, 3, 4))))
    by = const(draw(st.sampled_from((2, 3, 4, 6))), INDEX)
    match draw(st.sampled_from(range(8))):
        case 0:
            return te_index.floordiv(out, by)
        case 1:
            return te_index.mod(out, by)
        case 2:
            return te_index.mod(
                te_index.floordiv(out, by), const(draw(st.sampled_from((2, 3))), INDEX)
            )
        case 3:
            other = const(draw(st.integers(-1, 2)), INDEX)
            return te_index.apply(draw(st.sampled_from(("min", "max"))), (out, other), INDEX)
        case _:
            return out


@st.composite
def element(
    draw: st.DrawFn, sources: list[Tensor], axes: list[Axis], dtype: DType, depth: int
) -> Expr:
    """An element: a load, a function of elements, a select, a reduction."""
    kind = draw(st.sampled_from(range(10))) if depth else 0
    rest = element(sources, axes, dtype, depth - 1)
    if kind <= 3:
        return draw(load(sources, axes, dtype, draw(st.booleans())))
    if kind <= 5:
        fn = draw(st.sampled_from(("add", "sub", "mul", "max", "min")))
        return apply(fn, draw(rest), draw(rest))
    if kind == 6:
        return select(draw(guard(axes)), draw(rest), draw(rest))
    if kind == 7:
        return cast(draw(place(axes)), dtype)
    extents = draw(st.lists(st.sampled_from((1, 2, 3, 4)), min_size=1, max_size=2))
    fn = draw(st.sampled_from(("sum", "sum", "sum", "max", "min")))

    def body(*k: Expr) -> Expr:
        inner = axes + [a for a in k if isinstance(a, Axis)]
        if fn == "sum" and draw(st.booleans()):
            factors = [draw(load(sources, inner, dtype, draw(st.booleans()))) for _ in range(2)]
            return apply("mul", *factors)
        return draw(element(sources, inner, dtype, depth - 1))

    return reduction(fn, extents, body)


@st.composite
def guard(draw: st.DrawFn, axes: list[Axis]) -> Expr | bool:
    """A comparison of places, or two."""
    terms: list[Expr | bool] = []
    for _ in range(draw(st.integers(1, 2))):
        fn = draw(st.sampled_from(("lt", "le", "eq", "ne")))
        terms.append(compare(fn, draw(place(axes)), draw(place(axes))))
    return conjunction(*terms)


@st.composite
def load(
    draw: st.DrawFn, sources: list[Tensor], axes: list[Axis], dtype: DType, guarded: bool
) -> Expr:
    """A load that is in range: guarded, wrapped around, clamped or by an index of the data."""
    source = draw(st.sampled_from(sources))
    index: list[Expr] = []
    guards: list[Expr | bool] = []
    for n in source.shape:
        where, size = draw(place(axes)), te_index.as_index(n)
        way = draw(st.sampled_from(range(10)))
        if way == 0:
            index.append(gather(AT[te_index.mod(where, const(INDICES, INDEX))] % n, n))
        elif guarded:
            guards.append(in_range(where, n))
            index.append(where)
        elif way <= 5 and axes:  # most of all, an axis by itself where it fits
            fits = [a for a in axes if isinstance(a.extent, int) and a.extent <= n]
            index.append(draw(st.sampled_from(fits)) if fits else te_index.mod(where, size))
        elif way <= 7:
            index.append(te_index.mod(where, size))
        else:
            last = te_index.as_index(size - 1)
            low = te_index.apply("max", (where, const(0, INDEX)), INDEX)
            index.append(te_index.apply("min", (low, last), INDEX))
    value = source[tuple(index)]
    if not guards:
        return value
    fill = draw(st.sampled_from((const(0, dtype), const(2, dtype))))
    other = fill if draw(st.booleans()) else apply("add", value, fill)
    return select(conjunction(*guards), value if other is fill else other, fill)
