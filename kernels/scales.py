"""Rows of a matrix, made alike: each by its largest element.

What computes sums of rows rounds by the largest of these. So rows are multiplied by the inverse of
their largest elements before, and results are divided by it again (outside scaling; Ballard,
Benson, Druinsky, Lipshitz, Schwartz, Improving the numerical stability of fast matrix
multiplication, SIAM J. Matrix Anal. Appl. 37, 2016, section 4.1): then errors are small beside each
row's own elements, and rows of zeros give zeros.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from superopt.kernels.factor import placed
from superopt.te.dtype import F32, I32
from superopt.te.expr import Tensor, apply, compare, compute, const, reduce_max, select
from superopt.te.node import Axis, Expr

# Largest elements of which the inverse is a number, and no subnormal one.
LEAST, MOST = (int(np.float32(x).view(np.int32)) for x in (2.0**-126, 2.0**126))
MAGNITUDE = 0x7FFFFFFF  # all bits of a float but its sign


def inverses(factor: Expr, rows: Sequence[Axis], k: Axis, none: Mapping[Expr, Expr]) -> Tensor:
    """Of each row of a matrix of float32, by the indices of `rows`, the inverse of its largest
    element; 0 where all are. factor: an element. k: of which there is one in a row. none: what
    other axes of it are.

    By their bits floats are in the order of their magnitudes: so no NaN is asked for.
    """

    def body(*at: Expr) -> Expr:
        def bits(j: Expr) -> Expr:
            e = placed(factor, {**none, **dict(zip(rows, at, strict=True)), k: j})
            return apply("bitand", apply("bitcast", e, dtype=I32), MAGNITUDE)

        largest = reduce_max(k.size, bits)
        inside = apply("min", apply("max", largest, LEAST), MOST)
        inverse = 1 / apply("bitcast", inside, dtype=F32)
        return select(compare("lt", 0, largest), inverse, const(0, F32))

    return compute(tuple(a.size for a in rows), body, name="scale")


def undone(inverse: Expr) -> Expr:
    """What a result of such a row is multiplied by."""
    return select(compare("lt", 0, inverse), 1 / inverse, const(0, F32))
