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
from superopt.rules.facts import READ_BYTES, rounded, uniform
from superopt.rules.functions import NotKnown, Number, Result, equal, number, sequence
from superopt.te.dtype import DType, to_numpy

ARRAYS = frozenset(("eye", "dirac", "means"))
Content = Number | tuple["Content", ...]  # the number of all elements, or those of a table

_KNOWN: WeakKeyDictionary[Constant, dict[str, bool]] = WeakKeyDictionary()


def meant(kind: str, args: Sequence[Result]) -> tuple[tuple[Result, ...], Content]:
    """Return the shape and content of a fill from its arguments."""
    if kind == "table":
        rows = _numbers(args[0])
        return _shape(rows), rows
    extent = args[0]
    if kind == "full":
        return sequence(extent), number(args[1])
    return (extent, extent) if kind == "eye" else sequence(extent), int(kind != "zeros")


def _numbers(r: Result) -> Content:
    return tuple(map(_numbers, r)) if isinstance(r, tuple) else number(r)


def _shape(rows: Content) -> tuple[int, ...]:
    if not isinstance(rows, tuple):
        return ()
    inner = {_shape(row) for row in rows}
    if len(inner) != 1:
        raise NotKnown(f"the rows of table{rows} differ in length")
    return (len(rows), *inner.pop())


def table(rows: Content, dtype: DType) -> np.ndarray:
    """Return the array of a table; raises NotKnown if `dtype` cannot represent a number."""

    def element(content: Content) -> object:
        if isinstance(content, tuple):
            return [element(c) for c in content]
        stored = rounded(content, dtype)
        if stored is None:
            raise NotKnown(f"{content} is no {dtype}")
        return stored

    return np.array(element(rows), to_numpy(dtype))


def array(kind: str, shape: Sequence[int], dtype: DType) -> np.ndarray:
    """Return the array of a fill; (n, n) is the shape of eye(n)."""
    stored = to_numpy(dtype)
    if kind == "eye":
        return np.eye(shape[0], dtype=stored)
    out, channels, *kernel = shape
    one = np.zeros(kernel, stored)
    if kind == "dirac":
        one[tuple(k // 2 for k in kernel)] = 1
    else:
        one[...] = 1 / math.prod(kernel)
    same = np.eye(out, channels, dtype=stored)
    return np.asarray(same.reshape(out, channels, *(1 for _ in kernel)) * one)


def is_number(v: Value | None, wanted: Result) -> bool:
    """True if `v` is a small constant whose elements all equal the number, rounded to its type."""
    found = uniform(v)
    if found is None or v is None or v.type.dtype is None:
        return False
    return found == rounded(number(wanted), v.type.dtype)


def is_filled(kind: str, v: Value | None, args: Sequence[Result]) -> bool:
    """True if `v` is the fill with these arguments."""
    if v is None:
        return False
    shape, content = meant(kind, args)
    if not equal(v.type.shape, shape):
        return False
    if kind in ARRAYS:
        return is_array(kind, v)
    return _is_table(v, content) if isinstance(content, tuple) else is_number(v, content)


def _is_table(v: Value, rows: Content) -> bool:
    dtype = v.type.dtype
    if type(v) is not Constant or dtype is None or not dtype.is_number:
        return False
    return v.nbytes <= READ_BYTES and np.array_equal(v.load(), table(rows, dtype))


def is_array(kind: str, v: Value | None) -> bool:
    """True if `v` is a small constant that is eye, dirac or means of its own shape."""
    if type(v) is not Constant:
        return False
    known = _KNOWN.setdefault(v, {})
    if kind not in known:
        known[kind] = _is_array(kind, v)
    return known[kind]


def _is_array(kind: str, v: Constant) -> bool:
    shape, dtype = v.type.shape, v.type.dtype
    if v.nbytes > READ_BYTES or dtype is None or not dtype.is_number or shape is None:
        return False
    sizes = tuple(d for d in shape if isinstance(d, int))
    square = len(sizes) == 2 and sizes[0] == sizes[1]
    if len(sizes) < len(shape) or not (square if kind == "eye" else len(sizes) > 2):
        return False
    return bool(np.array_equal(v.load(), array(kind, sizes, dtype)))
