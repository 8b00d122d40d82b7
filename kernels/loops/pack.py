"""Pack constants in a kernel's reading order, and convert numpy arrays to and from a layout."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from superopt.kernels.loops.layout import Layout
from superopt.kernels.loops.tile import Pack
from superopt.te.analysis.affine import affine
from superopt.te.expr import index
from superopt.te.expr.node import Apply, Axis, Const, Expr


def pack_constant(pack: Pack, array: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Return the source's array as the kernel takes it; in `out`, if given."""
    shape = [a.extent for a in pack.axes if isinstance(a.extent, int)]
    out = np.empty(shape, array.dtype) if out is None else out.reshape(shape)
    if not array.size:  # indices may still be 0, if the sum has no terms
        out[...] = 0
        return out
    forms = [affine(i) for i in pack.index]
    if all(f is not None for f in forms):  # a strided view
        strides = dict.fromkeys(pack.axes, 0)
        for f, stride in zip(forms, array.strides, strict=True):
            assert f is not None
            for a, c in f.terms:
                strides[a] += c * stride
        first = array[tuple(slice(f.base, None) for f in forms if f is not None)]
        view = np.lib.stride_tricks.as_strided(first, shape, list(strides.values()), False, False)
        np.copyto(out, view)
        return out
    grid = dict(zip(pack.axes, np.ogrid[tuple(slice(n) for n in shape)], strict=True))
    np.copyto(out, array[tuple(_evaluate_index(i, grid) for i in pack.index)])
    return out


def _evaluate_index(e: Expr, grid: dict[Axis, np.ndarray]) -> np.ndarray:
    """Evaluate an index for all values of the axes at once."""
    match e:
        case Const(v):
            return np.asarray(int(v))
        case Axis():
            return grid[e]
        case Apply(fn, args):
            some = [_evaluate_index(a, grid) for a in args]
            out = some[0]
            for x in some[1:]:
                out = np.asarray(_FUNCTIONS[fn](out, x))
            return out
    raise NotImplementedError(f"{e} in the index of a constant")


_FUNCTIONS = {
    "add": np.add,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "floordiv": np.floor_divide,
    "mod": np.mod,
}


def to_layout(layout: Layout, array: np.ndarray) -> np.ndarray:
    """Return the buffer of an array in this layout; borders and block remainders are zeros."""
    out = np.zeros(layout.shape(array.shape), array.dtype)
    out[_element_indices(layout, array.shape)] = array
    return out


def from_layout(layout: Layout, buffer: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Return the array of this shape from its buffer."""
    return np.asarray(buffer[_element_indices(layout, shape)])


def _element_indices(layout: Layout, shape: Sequence[int]) -> tuple[np.ndarray, ...]:
    axes = [Axis(f"i{n}", extent) for n, extent in enumerate(shape)]
    grid = dict(zip(axes, np.ogrid[tuple(slice(n) for n in shape)], strict=True))
    return tuple(_evaluate_index(index.as_index(i), grid) for i in layout.buffer_index(axes))
