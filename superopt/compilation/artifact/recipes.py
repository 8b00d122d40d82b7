"""How packed constants are made of a model's weights, as JSON data: a file has each weight once,
and a reader makes the constants from it. This module imports numpy alone, for a fast start.

    ["weight", n, offset, dtype, shape, strides]   bytes of weight n, from the offset on
    ["data", offset, dtype, shape]                 an array in the file's section of small arrays
    ["apply", fn, dtype, a, b]     fn of float64 operands with broadcasting, rounded once to dtype
    ["axes", order, a]             the transpose
    ["reshape", shape, a]
    ["concat", axis, [a, b, ...]]
    ["winograd", forms, window, a] cook_toom.transform_kernel of the first elements of each window
    ["pack", shape, first, terms, a]  out[i0, ...] = a[first + sum(factor * i(axis))]; terms of each
                                   index of a are [axis, factor]
    ["gather", shape, indices, a]  out[i0, ...] = a[indices]: an index is an integer, ["axis", n] or
                                   [fn, x, y]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from superopt.compilation.cache.entries import parse_dtype
from superopt.kernels.algorithms.cpu.cook_toom import transform_kernel

Recipe = list[Any]
APPLIED = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide,
}  # fmt: skip
INDEX_FUNCTIONS = {
    "add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum,
    "floordiv": np.floor_divide, "mod": np.mod,
}  # fmt: skip


def evaluate_recipe(recipe: Recipe, weights: Sequence[memoryview], data: memoryview) -> np.ndarray:
    """Return the array of a recipe; it may be a view. weights, data: of the file. Raises an error
    of numpy, KeyError or ValueError for a recipe that does not fit them."""
    kind, *rest, last = recipe
    match kind:
        case "weight":
            n, offset, name, shape = rest
            return np.ndarray(shape, parse_dtype(name), weights[n], offset, last)
        case "data":
            offset, name = rest
            return np.ndarray(last, parse_dtype(name), data, offset)
        case "concat":
            (axis,) = rest
            return np.concatenate([evaluate_recipe(a, weights, data) for a in last], axis)
        case "apply":
            fn, name, a = rest
            operands = (evaluate_recipe(x, weights, data) for x in (a, last))
            return _apply(fn, parse_dtype(name), *operands)
    a = evaluate_recipe(last, weights, data)
    match kind:
        case "axes":
            return a.transpose(rest[0])
        case "reshape":
            return a.reshape(rest[0])
        case "winograd":
            forms, window = rest
            return _transform_filter(forms, window, a)
        case "pack":
            shape, first, terms = rest
            return _strided_view(shape, first, terms, a)
        case "gather":
            shape, indices = rest
            grid = np.ogrid[tuple(slice(n) for n in shape)]
            found: np.ndarray = a[tuple(np.asarray(_index_array(i, grid)) for i in indices)]
            return found
    raise ValueError(f"a recipe of kind {kind}")


def _apply(fn: str, dtype: np.dtype, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    out = np.empty(np.broadcast_shapes(a.shape, b.shape), dtype)
    with np.errstate(all="ignore"):  # as in folding
        APPLIED[fn](a, b, out=out, dtype=np.float64, casting="unsafe")  # by parts in a cache
    return out


def _transform_filter(
    forms: Sequence[Sequence[int]], window: Sequence[int], a: np.ndarray
) -> np.ndarray:
    used = a[(slice(None), slice(None), *map(slice, window))]
    return transform_kernel(tuple((m, r, s) for m, r, s in forms), used)


def _strided_view(
    shape: Sequence[int], first: Sequence[int], terms: Sequence[Recipe], a: np.ndarray
) -> np.ndarray:
    strides = [0] * len(shape)
    for stride, some in zip(a.strides, terms, strict=True):
        for axis, factor in some:
            strides[axis] += factor * stride
    _check_bounds(shape, first, terms, a.shape)
    begin = a[tuple(slice(n, None) for n in first)]
    return np.lib.stride_tricks.as_strided(begin, shape, strides, False, False)


def _check_bounds(
    shape: Sequence[int], first: Sequence[int], terms: Sequence[Recipe], sizes: Sequence[int]
) -> None:
    """Raise ValueError if a view would read beyond an array: numpy does not check it."""
    for begin, some, size in zip(first, terms, sizes, strict=True):
        ends = [factor * (shape[axis] - 1) for axis, factor in some]
        low, high = (begin + sum(f(n, 0) for n in ends) for f in (min, max))
        if low < 0 or high >= size:
            raise ValueError(f"a packed constant reads {low} to {high} of {size} elements")


def _index_array(e: Any, grid: Sequence[np.ndarray]) -> Any:
    match e:
        case int():
            return e
        case ["axis", n]:
            return grid[n]
        case [fn, x, y]:
            return INDEX_FUNCTIONS[fn](_index_array(x, grid), _index_array(y, grid))
    raise ValueError(f"an index {e}")
