"""The predicted time of this compiler's kernels, by the model that selects schedules.

The roofline counts the operations of a definition, so that a dilated convolution costs the same as
a dense one. Winograd kernels compute the dense one with a fraction of the products
(`kernels/algorithms/cpu/winograd.py`). This model does not depend on the machine, so rule
generation uses it. Optimization of a model measures instead (`measured_cost.py`).
"""

from __future__ import annotations

from superopt.cost.graph_cost import NodeCostModel
from superopt.cost.roofline import BYTES_PER_US, FLOPS_PER_US, NODE_OVERHEAD_US, nbytes, roofline_us
from superopt.cost.signature import Signature
from superopt.ir.op import InferError, expression
from superopt.kernels.algorithms.cpu.winograd_convolution import estimated_product_cost
from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.loops.layout import Layout, Part, ScatteredLayout
from superopt.te.analysis.walk import loads
from superopt.te.expr.tensor import Tensor

VECTOR_BYTES = 32  # bytes of a vector
VECTOR_LANES = VECTOR_BYTES // 4
VECTOR_OPS_PER_US = FLOPS_PER_US / (2 * VECTOR_LANES)  # vector multiply-adds per microsecond
CHANNEL_BLOCK = 16  # channels that are stored together


def kernel_cost_model(allow_dilated_winograd: bool = False) -> NodeCostModel:
    """Return a cost model that measures nothing, for one thread.

    allow_dilated_winograd: allow Winograd for dilated convolutions. That computes a program and its
        mutant already, so it is not the baseline for a mutant.
    """
    return lambda signatures: [modelled_us(s, allow_dilated_winograd) for s in signatures]


def modelled_us(s: Signature, allow_dilated_winograd: bool = False) -> float:
    """Return the predicted microseconds of a node with this signature; by the roofline if it is not
    a product with a constant."""
    found = _product_vector_ops(s, allow_dilated_winograd)
    if found is None:
        return roofline_us(s)
    given = sum(nbytes(o.type) for o in s.operands if o is not None)
    moved = given + sum(map(nbytes, s.outputs))
    return NODE_OVERHEAD_US + max(found / VECTOR_OPS_PER_US, moved / BYTES_PER_US)


def _product_vector_ops(s: Signature, allow_dilated_winograd: bool) -> float | None:
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
        layouts = {t: _image_layout(t) for t in (made, *read) if t not in known}
    return estimated_product_cost(
        Problem(made, layouts, known, VECTOR_BYTES, allow_dilated_winograd=allow_dilated_winograd)
    )


def _image_layout(t: Tensor) -> Layout:
    """Return the image layout: blocks of channels, or all of them, innermost."""
    space = [Part(d) for d in range(2, t.rank)]
    channels = t.shape[1]
    if isinstance(channels, int) and channels % CHANNEL_BLOCK == 0:
        return Layout(
            (Part(0), Part(1, CHANNEL_BLOCK), *space, Part(1, CHANNEL_BLOCK, is_inner=True))
        )
    return Layout((Part(0), *space, Part(1)))
