"""The predicted time of this compiler's kernels, by the model that selects schedules.

The roofline counts the operations of a definition, so that a dilated convolution costs the same as
a dense one. Winograd kernels compute the dense one with a fraction of the products
(`kernels/algorithms/winograd.py`). This model does not depend on the machine, so rule generation
uses it. Optimization of a model measures instead (`measured_cost.py`).
"""

from __future__ import annotations

from superopt.cost.model import Clock
from superopt.cost.roofline import BYTES_US, FLOPS_US, NODE_US, nbytes, roofline
from superopt.cost.signature import Signature
from superopt.ir.op import InferError, expression
from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.algorithms.space import estimated_product_cost
from superopt.kernels.loops.layout import Layout, Part, ScatteredLayout
from superopt.te.analysis.walk import loads
from superopt.te.expr.tensor import Tensor

WIDTH = 32  # bytes of a vector
LANES = WIDTH // 4
VECTORS_US = FLOPS_US / (2 * LANES)  # vector multiply-adds per microsecond
BLOCK = 16  # channels that are stored together


def by_kernels(dilated: bool = False) -> Clock:
    """Return a cost model that measures nothing, for one thread.

    allow_dilated_winograd: allow Winograd for dilated convolutions. That computes a program and its
        mutant already, so it is not the baseline for a mutant.
    """
    return lambda signatures: [modelled(s, dilated) for s in signatures]


def modelled(s: Signature, dilated: bool = False) -> float:
    """Return the predicted microseconds of a node with this signature; by the roofline if it is not
    a product with a constant."""
    found = _taken(s, dilated)
    if found is None:
        return roofline(s)
    given = sum(nbytes(o.type) for o in s.operands if o is not None)
    moved = given + sum(map(nbytes, s.outputs))
    return NODE_US + max(found / VECTORS_US, moved / BYTES_US)


def _taken(s: Signature, dilated: bool) -> float | None:
    """Return the vector multiply-adds; None for other nodes than products with a constant."""
    operands = [o for o in s.operands if o is not None]
    if s.op.name not in ("Conv", "MatMul") or not any(o.constant for o in operands):
        return None
    try:
        (made,) = expression(s.op, tuple(o and o.type for o in s.operands), s.attrs)
    except InferError:
        return None
    read = dict.fromkeys(x.tensor for x in loads(made.body)) if made.body is not None else {}
    known = {t for t in read if (o := s.operands[int(t.name.removeprefix("a"))]) and o.constant}
    layouts: dict[Tensor, Layout | ScatteredLayout] = {}
    if s.op.name == "Conv":
        layouts = {t: _picture(t) for t in (made, *read) if t not in known}
    return estimated_product_cost(
        Problem(made, layouts, known, WIDTH, allow_dilated_winograd=dilated)
    )


def _picture(t: Tensor) -> Layout:
    """Return the image layout: blocks of channels, or all of them, innermost."""
    space = [Part(d) for d in range(2, t.rank)]
    channels = t.shape[1]
    if isinstance(channels, int) and channels % BLOCK == 0:
        return Layout((Part(0), Part(1, BLOCK), *space, Part(1, BLOCK, is_inner=True)))
    return Layout((Part(0), *space, Part(1)))
