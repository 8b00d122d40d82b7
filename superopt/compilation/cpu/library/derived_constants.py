"""Constants that a library computes when it is opened: Winograd's transforms of filters, which are
two to four times as large as these (export/constants.c)."""

from __future__ import annotations

from functools import partial
from math import prod

import numpy as np

from superopt.compilation.cpu.library.weight_file import WeightFile
from superopt.kernels.algorithms.cpu.cook_toom import filter_rows, kernel_matrix
from superopt.kernels.algorithms.cpu.winograd_convolution import transform_window
from superopt.plan.program.constant_pool import padded_bytes
from superopt.plan.program.pack_constants import ConstantSlot
from superopt.plan.selection.transformed_constants import TransformedConstant
from superopt.report.compilation.exported_library import DerivedConstant
from superopt.te.analysis.affine import affine

MAX_TAPS = 128  # of a filter, as in export/constants.c


def describe_derived_constant(
    c: ConstantSlot, packed: np.ndarray, weights: WeightFile
) -> DerivedConstant | None:
    """Return how a library makes a packed constant, whose filters are added to its weights; None if
    it is to be stored: it is no transform, or not larger than its filters.

    packed: the bytes of the constant, padded.
    """
    match c.load:
        case TransformedConstant(source, partial() as make) if make.func is transform_window:
            forms, window = make.args
        case _:
            return None
    filters = filter_rows(source()[(slice(None), slice(None), *map(slice, window))])
    matrix, transform = kernel_matrix(forms), c.load()
    if filters.dtype != np.float32 or filters.nbytes >= packed.nbytes or c.pack is None:
        return None
    if filters.shape[1] > MAX_TAPS:
        return None
    shape = tuple(a.size for a in c.pack.axes)
    forms_of = [affine(i) for i in c.pack.index]
    known = [f for f in forms_of if f is not None]
    if len(known) < len(forms_of):
        return None
    steps = [prod(transform.shape[n + 1 :]) for n in range(transform.ndim)]
    first = sum(f.base * step for f, step in zip(known, steps, strict=True))
    strides = tuple(
        sum(f.coefficient(a) * step for f, step in zip(known, steps, strict=True))
        for a in c.pack.axes
    )
    view = np.lib.stride_tricks.as_strided(
        transform.reshape(-1)[first:], shape, [4 * s for s in strides], writeable=False
    )
    if not np.array_equal(view.reshape(-1), packed.view(np.float32)[: prod(shape)]):
        return None
    at = weights.add_source(filters)
    return DerivedConstant(
        at, len(filters), tuple(map(tuple, matrix.tolist())), shape, strides, first,
        padded_bytes(4 * prod(shape)),
    )  # fmt: skip
