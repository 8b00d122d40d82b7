"""Constants that are known by their number, or by their shape: the identity, and kernels that do
nothing or take means.

eye(n)          the identity matrix
dirac(shape)    (out, in, *kernel): a convolution by it leaves every channel as it is
means(shape)    (out, in, *kernel): a convolution by it takes the mean of each channel
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np

from superopt.ir.graph import Constant, Value
from superopt.rules.facts import READ_BYTES, rounded, uniform
from superopt.rules.functions import Result, equal, number
from superopt.te.dtype import DType, to_numpy

ARRAYS = frozenset(("eye", "dirac", "means"))

_KNOWN: WeakKeyDictionary[Constant, dict[str, bool]] = WeakKeyDictionary()


def array(kind: str, shape: Sequence[int], dtype: DType) -> np.ndarray:
    """The constant; (n, n) is the shape of eye(n)."""
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
    """Is `v` a small constant all of whose elements are the number, as its element type has it?"""
    found = uniform(v)
    if found is None or v is None or v.type.dtype is None:
        return False
    return found == rounded(number(wanted), v.type.dtype)


def is_filled(kind: str, v: Value | None, shape: Result, content: Result) -> bool:
    """Is `v` the constant of a kind and shape? content: the number, where the kind has one."""
    right = is_array(kind, v) if kind in ARRAYS else is_number(v, content)
    return right and v is not None and equal(v.type.shape, shape)


def is_array(kind: str, v: Value | None) -> bool:
    """Is `v` a small constant that is eye, dirac or means of its own shape?"""
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
