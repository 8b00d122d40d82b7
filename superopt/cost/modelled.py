"""What kernels of this compiler should take, by its own model of them: what it chooses by.

The roofline counts operations of a definition, so that by it a dilated convolution costs what a
dense one does. Winograd kernels compute the dense one with a fraction of the products
(`kernels/algorithms/winograd.py`). This model depends on no machine, so rule generation uses it.
Optimization of a model measures instead (`measured.py`).
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
VECTORS_US = FLOPS_US / (2 * LANES)  # multiply-adds of a vector, a microsecond
BLOCK = 16  # channels that lie together


def by_kernels(dilated: bool = False) -> Clock:
    """A clock that measures nothing, of one thread. dilated: may convolutions of that kind be
    computed in tiles of every d-th element? That is a program and its mutant already, which is not
    what to compare a mutant with."""
    return lambda signatures: [modelled(s, dilated) for s in signatures]


def modelled(s: Signature, dilated: bool = False) -> float:
    """Microseconds that a node of this signature should take; by the roofline, where it is no
    product with a constant."""
    found = _taken(s, dilated)
    if found is None:
        return roofline(s)
    given = sum(nbytes(o.type) for o in s.operands if o is not None)
    moved = given + sum(map(nbytes, s.outputs))
    return NODE_US + max(found / VECTORS_US, moved / BYTES_US)


def _taken(s: Signature, dilated: bool) -> float | None:
    """In multiply-adds of a vector; None of what is no product with a constant."""
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
    """As pictures lie: blocks of channels, or all of them, last."""
    space = [Part(d) for d in range(2, t.rank)]
    channels = t.shape[1]
    if isinstance(channels, int) and channels % BLOCK == 0:
        return Layout((Part(0), Part(1, BLOCK), *space, Part(1, BLOCK, is_inner=True)))
    return Layout((Part(0), *space, Part(1)))
