"""Constants given by their number or shape: the identity, and kernels that copy or average.

eye(n)          the identity matrix dirac(shape)    (out, in, *kernel): a convolution by it leaves
every channel as it is means(shape)    (out, in, *kernel): a convolution by it takes the mean of
each channel table(rows)     the numbers in tuples of tuples, such as ((1, 0), (1 / 2, -1)), each
rounded once
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np

from superopt.ir.graph import Constant, Value
from superopt.rules.lang.functions import NotKnown, Number, Result, are_equal, as_number, as_tuple
from superopt.rules.lang.value_facts import MAX_READ_BYTES, round_to, uniform_value
from superopt.te.expr.dtype import DType, to_numpy

ARRAY_FILLS = frozenset(("eye", "dirac", "means"))
Content = Number | tuple["Content", ...]  # the number of all elements, or those of a table

_ARRAY_FILL_CACHE: WeakKeyDictionary[Constant, dict[str, bool]] = WeakKeyDictionary()


def shape_and_content(kind: str, args: Sequence[Result]) -> tuple[tuple[Result, ...], Content]:
    """Return the shape and content of a fill from its arguments."""
    if kind == "table":
        rows = _as_content(args[0])
        return _table_shape(rows), rows
    extent = args[0]
    if kind == "full":
        return as_tuple(extent), as_number(args[1])
    return (extent, extent) if kind == "eye" else as_tuple(extent), int(kind != "zeros")


def _as_content(r: Result) -> Content:
    return tuple(map(_as_content, r)) if isinstance(r, tuple) else as_number(r)


def _table_shape(rows: Content) -> tuple[int, ...]:
    if not isinstance(rows, tuple):
        return ()
    inner = {_table_shape(row) for row in rows}
    if len(inner) != 1:
        raise NotKnown(f"the rows of table{rows} differ in length")
    return (len(rows), *inner.pop())


def table_array(rows: Content, dtype: DType) -> np.ndarray:
    """Return the array of a table; raises NotKnown if `dtype` cannot represent a number."""

    def element(content: Content) -> object:
        if isinstance(content, tuple):
            return [element(c) for c in content]
        stored = round_to(content, dtype)
        if stored is None:
            raise NotKnown(f"{content} is no {dtype}")
        return stored

    return np.array(element(rows), to_numpy(dtype))


def fill_array(kind: str, shape: Sequence[int], dtype: DType) -> np.ndarray:
    """Return the array of a fill; (n, n) is the shape of eye(n)."""
    stored = to_numpy(dtype)
    out, channels, *kernel = shape
    one = np.zeros(kernel, stored)
    if kind == "dirac":
        one[tuple(k // 2 for k in kernel)] = 1
    else:
        one[...] = 1 / math.prod(kernel)
    same = np.eye(out, channels, dtype=stored)
    return np.asarray(same.reshape(out, channels, *(1 for _ in kernel)) * one)


def is_number_constant(v: Value | None, wanted: Result) -> bool:
    """True if `v` is a small constant whose elements all equal the number, rounded to its type."""
    found = uniform_value(v)
    if found is None or v is None or v.type.dtype is None:
        return False
    return found == round_to(as_number(wanted), v.type.dtype)


def is_fill(kind: str, v: Value | None, args: Sequence[Result]) -> bool:
    """True if `v` is the fill with these arguments."""
    if v is None:
        return False
    shape, content = shape_and_content(kind, args)
    if not are_equal(v.type.shape, shape):
        return False
    if kind in ARRAY_FILLS:
        return is_array_fill(kind, v)
    return _is_table(v, content) if isinstance(content, tuple) else is_number_constant(v, content)


def _is_table(v: Value, rows: Content) -> bool:
    dtype = v.type.dtype
    if type(v) is not Constant or dtype is None or not dtype.is_number:
        return False
    return v.nbytes <= MAX_READ_BYTES and np.array_equal(v.load(), table_array(rows, dtype))


def is_array_fill(kind: str, v: Value | None) -> bool:
    """True if `v` is a small constant that is eye, dirac or means of its own shape."""
    if type(v) is not Constant:
        return False
    known = _ARRAY_FILL_CACHE.setdefault(v, {})
    if kind not in known:
        known[kind] = _is_array_fill(kind, v)
    return known[kind]


def _is_array_fill(kind: str, v: Constant) -> bool:
    shape, dtype = v.type.shape, v.type.dtype
    if v.nbytes > MAX_READ_BYTES or dtype is None or not dtype.is_number or shape is None:
        return False
    sizes = tuple(d for d in shape if isinstance(d, int))
    square = len(sizes) == 2 and sizes[0] == sizes[1]
    if len(sizes) < len(shape) or not (square if kind == "eye" else len(sizes) > 2):
        return False
    return bool(np.array_equal(v.load(), fill_array(kind, sizes, dtype)))
