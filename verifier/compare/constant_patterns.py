"""Constants of a graph as expressions of their index: by cases if they are small, else by their
pattern (uniform, identity, triangle, arithmetic progression)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from superopt.ir.graph import Constant
from superopt.te.expr.dtype import BOOL, F32, INDEX, DType
from superopt.te.expr.node import Expr
from superopt.te.expr.tensor import (
    Tensor,
    cast,
    compare,
    compute,
    conjunction,
    const,
    placeholder,
    select,
)

MAX_CASES = 24  # elements that become cases
MAX_BYTES = 1 << 20  # bytes


def constant_tensor(c: Constant, name: str) -> Tensor:
    """Return a constant as numbers if it is small or follows a pattern; else as any tensor."""
    kind = c.type.dtype
    assert kind is not None
    if c.nbytes > MAX_BYTES:
        return placeholder(name, c.type)
    array = c.load()
    if not array.size or not (kind.is_float or kind.is_int or kind == BOOL):
        return placeholder(name, c.type)
    if (
        kind.is_float
        and kind != F32
        and any(_is_long_fraction(v.item()) for v in array.flat[:MAX_CASES])
    ):
        return placeholder(name, c.type)  # literals are read as float32
    first = array.flat[0]
    if (array == first).all():
        return compute(array.shape, lambda *i: const(_python_number(first), kind), name=name)
    pattern = _two_value_pattern(array) or (None if kind == BOOL else _linear_pattern(array))
    if pattern is not None:
        return compute(array.shape, lambda *i: pattern(i, kind), name=name)
    if array.size > MAX_CASES:
        return placeholder(name, c.type)
    return compute(array.shape, lambda *i: _select_cases(array, i, kind), name=name)


@lru_cache(maxsize=1024)
def is_readable(c: Constant) -> bool:
    """True if the numbers of a constant are read."""
    return constant_tensor(c, "").body is not None


@lru_cache(maxsize=1024)
def is_uniform_or_exact(c: Constant) -> bool:
    """True for a uniform or non-float constant, whose value a proof may depend on."""
    kind = c.type.dtype
    if kind is None or not kind.is_float:
        return True
    array = c.load().reshape(-1)
    return bool(array.size and array[0] == array[-1] and (array == array[0]).all())


def _select_cases(array: np.ndarray, index: tuple[Expr, ...], kind: DType) -> Expr:
    """Select by cases of the index, with the last element as default."""
    every = list(np.ndindex(*array.shape))
    out: Expr = const(_python_number(array[every[-1]]), kind)
    for at in every[:-1]:
        here = conjunction(
            *(compare("eq", i, const(k, INDEX)) for i, k in zip(index, at, strict=True))
        )
        out = select(here, const(_python_number(array[at]), kind), out)
    return out


# --- patterns -------------------------------------------------------------------------------------

# Relations of an index: (axis, "eq" or "le", axis or -1, number): i_a == i_b + n, or i_a == n.
AxisRelation = tuple[int, str, int, int]


class _Pattern:
    """One number where relations hold, and another elsewhere."""

    def __init__(
        self, relations: list[AxisRelation], inside_value: Any, outside_value: Any
    ) -> None:
        self.relations, self.inside_value, self.outside_value = (
            relations,
            inside_value,
            outside_value,
        )

    def __call__(self, index: tuple[Expr, ...], kind: DType) -> Expr:
        holds = []
        for a, fn, b, n in self.relations:
            right: Expr = const(n, INDEX) if b < 0 else index[b] + n
            holds.append(compare(fn, index[a], right))
        there, else_ = (
            const(_python_number(v), kind) for v in (self.inside_value, self.outside_value)
        )
        return select(conjunction(*holds), there, else_)


class _LinearPattern:
    """An arithmetic progression along each axis."""

    def __init__(self, first: int, steps: list[int]) -> None:
        self.first, self.steps = first, steps

    def __call__(self, index: tuple[Expr, ...], kind: DType) -> Expr:
        out: Expr = const(_python_number(self.first), kind)
        for i, step in zip(index, self.steps, strict=True):
            if step:
                out = out + const(_python_number(step), kind) * cast(i, kind)
        return out


def _two_value_pattern(array: np.ndarray) -> _Pattern | None:
    """Return the pattern of a constant with two values, if relations of one or two axes select
    one."""
    values = np.unique(array)
    if len(values) != 2:
        return None
    low, high = values
    for there, else_ in ((high, low), (low, high)):
        mask = array == there
        for relations in _relations(np.argwhere(mask), mask.shape):
            if relations and np.array_equal(_mask(relations, mask.shape), mask):
                return _Pattern(relations, there, else_)
    return None


def _relations(places: np.ndarray, shape: tuple[int, ...]) -> Iterator[list[AxisRelation]]:
    """Yield relations that the indices may satisfy."""
    long = [a for a, n in enumerate(shape) if n > 1]
    low, high = places.min(axis=0), places.max(axis=0)
    fixed: list[AxisRelation] = [(a, "eq", -1, int(low[a])) for a in long if low[a] == high[a]]
    free = [a for a in long if low[a] != high[a]]
    tied: list[AxisRelation] = []
    for n, a in enumerate(free):
        for b in free[:n]:
            apart = places[:, a] - places[:, b]
            if apart.min() == apart.max():
                tied.append((a, "eq", b, int(apart[0])))
                break
    yield fixed + tied
    for a in free:
        yield [*fixed, (a, "le", -1, int(high[a]))]
        for b in free:
            if a != b:
                yield [*fixed, (a, "le", b, int((places[:, a] - places[:, b]).max()))]


def _mask(relations: list[AxisRelation], shape: tuple[int, ...]) -> np.ndarray:
    index = np.indices(shape, sparse=True)
    out = np.ones(shape, bool)
    for a, fn, b, n in relations:
        right = n if b < 0 else index[b] + n
        out &= index[a] == right if fn == "eq" else index[a] <= right
    return out


def _linear_pattern(array: np.ndarray) -> _LinearPattern | None:
    """Return the pattern of integers in arithmetic progression along each axis, as a range has.
    Floats are left out, since their steps are rounded."""
    wide = array.astype(np.float64)
    if not np.isfinite(wide).all() or (wide != np.round(wide)).any() or abs(wide).max() > 1 << 30:
        return None
    first = int(wide.flat[0])
    steps = [
        int(wide[tuple(int(k == a) for k in range(wide.ndim))]) - first if n > 1 else 0
        for a, n in enumerate(wide.shape)
    ]
    expected = np.full(wide.shape, float(first))
    places: list[np.ndarray] = list(np.indices(wide.shape, sparse=True))
    for step, place in zip(steps, places, strict=True):
        expected += step * place
    return _LinearPattern(first, steps) if np.array_equal(expected, wide) else None


def _is_long_fraction(v: float) -> bool:
    """True if a number is no short fraction."""
    return math.isfinite(v) and Fraction(v).denominator > 1 << 16


def _python_number(v: Any) -> int | float | bool:
    found = v.item() if isinstance(v, np.generic) else v
    assert isinstance(found, (int, float, bool))
    return found
