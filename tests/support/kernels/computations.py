"""Computations to be scheduled, and their results without a schedule."""

from __future__ import annotations

import numpy as np

from superopt.ir.graph import Node
from superopt.ir.op import expression
from superopt.kernels.loops.lower import lower_kernel
from superopt.kernels.loops.schedule import IllegalSchedule, Schedule
from superopt.kernels.runtime.cpu import load_kernel
from superopt.te.analysis.walk import computed_tensors, loads
from superopt.te.expr.tensor import Tensor
from tests.support.kernels.build import blank, drawn
from tests.support.ops.build import made

COMPUTATIONS = {
    "matmul": ("MatMul", "i32[7,6] i32[6,21]"),
    "squares": ("MatMul", "i8[8,12] i8[12,9]"),
    "batched": ("MatMul", "i64[2,3,4] i64[2,4,5]"),
    "conv": ("Conv", "f32[1,3,7,6] f32[4,3,3,2] f32[4] pads=(1,0,1,1) strides=(2,1)"),
    "grouped": ("Conv", "f32[2,4,5,5] f32[6,2,3,3] group=2 dilations=(2,1)"),
    "pool": ("MaxPool", "f32[1,2,7,7] kernel_shape=(3,3) strides=(2,2) pads=(1,1,1,1)"),
    "sum": ("ReduceSum", "i32[3,5,4] axes=(1,) keepdims=0"),
    "transpose": ("Transpose", "i32[3,5,18] perm=(2,0,1)"),
    "add": ("Add", "i8[4,33] i8[33]"),
    "window": ("ReduceSum", "i32[5,4] axes=(1,) keepdims=0"),
    "gather": ("Gather", "i32[9,4] i64[3] axis=0"),
}


def tensor(name: str) -> tuple[Node, Tensor, list[Tensor]]:
    """The node, the one tensor that it computes, and its operands' buffers."""
    n = made(*COMPUTATIONS[name])
    types = tuple(None if v is None else v.type for v in n.inputs)
    (out,) = expression(n.op, types, n.attrs)
    bodies = [t.body for t in computed_tensors([out]) if t.body is not None]
    read = {x.tensor.name: x.tensor for b in bodies for x in loads(b) if x.tensor.body is None}
    return n, out, [read[name] for name in sorted(read)]


def run(name: str, schedule: Schedule | None, arrays: list[np.ndarray]) -> np.ndarray:
    _, out, inputs = tensor(name)
    k = lower_kernel("k", inputs, [out], {} if schedule is None else {out: schedule})
    (got,) = blank(k, 1)
    load_kernel(k)(*arrays, got)
    return got


def whole(name: str) -> list[np.ndarray]:
    """Operands of whole numbers, so that no order of a sum is another one."""
    rng = np.random.default_rng(1)
    return [np.rint(3 * drawn(i, rng)).astype(drawn(i, rng).dtype) for i in tensor(name)[2]]


WANTED = {name: run(name, None, whole(name)) for name in COMPUTATIONS}


def legal(name: str, schedule: Schedule) -> bool:
    _, out, inputs = tensor(name)
    try:
        lower_kernel("k", inputs, [out], {out: schedule})
    except IllegalSchedule:
        return False
    return True
