"""Row scaling of a matrix by the inverse of each row's largest element.

Algorithms that sum rows (Strassen) have errors relative to the largest of these rows. So rows are
scaled before, and results are unscaled (outside scaling; Ballard, Benson, Druinsky, Lipshitz,
Schwartz, Improving the numerical stability of fast matrix multiplication, SIAM J. Matrix Anal.
Appl. 37, 2016, section 4.1): errors are then relative to each row's own elements, and rows of zeros
give zeros.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from superopt.kernels.loops.substitution import substitute_and_fold
from superopt.te.expr.dtype import F32, I32
from superopt.te.expr.node import Axis, Expr
from superopt.te.expr.tensor import Tensor, apply, compare, compute, const, reduce_max, select

# range of largest elements whose inverse is a normal number, as bits
MIN_SCALE_BITS, MAX_SCALE_BITS = (int(np.float32(x).view(np.int32)) for x in (2.0**-126, 2.0**126))
MAGNITUDE_MASK = 0x7FFFFFFF  # all bits of a float but its sign


def row_scales(factor: Expr, rows: Sequence[Axis], k: Axis, fixed: Mapping[Expr, Expr]) -> Tensor:
    """Return the inverse of each row's largest magnitude, by the indices of `rows`; 0 for rows of
    zeros. factor: an element, over rows and k. fixed: values of its other axes.

    Magnitudes compare as their bits, so that NaN needs no test.
    """

    def body(*at: Expr) -> Expr:
        def bits(j: Expr) -> Expr:
            e = substitute_and_fold(factor, {**fixed, **dict(zip(rows, at, strict=True)), k: j})
            return apply("bitand", apply("bitcast", e, dtype=I32), MAGNITUDE_MASK)

        largest = reduce_max(k.size, bits)
        inside = apply("min", apply("max", largest, MIN_SCALE_BITS), MAX_SCALE_BITS)
        inverse = 1 / apply("bitcast", inside, dtype=F32)
        return select(compare("lt", 0, largest), inverse, const(0, F32))

    return compute(tuple(a.size for a in rows), body, name="scale")


def unscale_factor(inverse: Expr) -> Expr:
    """Return the factor that unscales a result of such a row."""
    return select(compare("lt", 0, inverse), 1 / inverse, const(0, F32))
