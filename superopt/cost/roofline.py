"""The roofline: the least time of a node, from the operations and bytes of its expression.

Williams, Waterman, Patterson: Roofline, CACM 2009. The rates are those of one modest core and are
used only to compare graphs if nothing can be measured.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from superopt.cost.signature import Signature
from superopt.ir.op import InferError, expression
from superopt.te.expr.dtype import BOOL, STRING, to_numpy
from superopt.te.expr.node import Apply, Dim, Expr, Index, Load, Reduce
from superopt.te.expr.tensor import Tensor, TensorType

FLOPS_PER_US = 150_000.0  # contraction operations per microsecond
ELEMENTWISE_OPS_PER_US = 4_000.0  # elementwise operations per microsecond
BYTES_PER_US = 12_000.0  # bytes per microsecond
NODE_OVERHEAD_US = 0.4  # microseconds of dispatch
VIEW_OPS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Dropout"})
_EXPENSIVE_FUNCTIONS = frozenset(
    {"exp", "log", "tanh", "erf", "sigmoid", "pow", "sin", "cos", "sqrt", "div"}
)


def roofline_us(s: Signature, threads: int = 1) -> float:
    """Return the least microseconds of a node with this signature, with `threads` threads."""
    if s.op.opaque:
        return NODE_OVERHEAD_US
    if s.op.name in VIEW_OPS:
        return NODE_OVERHEAD_US
    moved = sum(nbytes(o.type) for o in s.operands if o is not None) + sum(map(nbytes, s.outputs))
    contracted, scalar = count_operations(s)
    work = max(contracted / FLOPS_PER_US, scalar / ELEMENTWISE_OPS_PER_US) / threads
    return NODE_OVERHEAD_US + max(work, moved / BYTES_PER_US)


@lru_cache(maxsize=1 << 14)
def count_operations(s: Signature) -> tuple[float, float]:
    """Return (operations inside reductions, elementwise operations) of all results together."""
    try:
        tensors = expression(
            s.op, tuple(None if o is None else o.type for o in s.operands), s.attrs
        )
    except InferError:
        return 0.0, 0.0
    contracted = scalar = 0.0
    seen: set[Tensor] = set()
    for t in tensors:
        a, b = _count_tensor(t, seen)
        contracted += a
        scalar += b
    return contracted, scalar


def _count_tensor(t: Tensor, seen: set[Tensor]) -> tuple[float, float]:
    if t.body is None or t in seen:
        return 0.0, 0.0
    seen.add(t)
    inner, own = _count_expression(t.body, _product(t.shape), False, seen)
    return inner, own


def _count_expression(
    e: Expr, times: float, reduced: bool, seen: set[Tensor]
) -> tuple[float, float]:
    match e:
        case Apply(fn, args, dtype):
            if dtype == BOOL and not _reads_tensor(e):
                return (
                    0.0,
                    0.0,
                )  # a guard of indices: loops are split at the padding, without a test inside
            weight = 0.0 if fn in ("select", "cast") else 8.0 if fn in _EXPENSIVE_FUNCTIONS else 1.0
            contracted, scalar = (times * weight, 0.0) if reduced else (0.0, times * weight)
            if args and args[0].dtype.kind == "x":
                return 0.0, 0.0
            for a in args:
                c, s = _count_expression(a, times, reduced, seen)
                contracted, scalar = contracted + c, scalar + s
            return contracted, scalar
        case Reduce(_, axes, body, _):
            n = _product(tuple(a.extent for a in axes))
            c, s = _count_expression(body, times * n, True, seen)
            return c + times * n, s
        case Load(tensor, _, _):
            return _count_tensor(tensor, seen)
        case Index(element, _):
            return _count_expression(element, times, reduced, seen)
        case _:
            return 0.0, 0.0


def _reads_tensor(e: Expr) -> bool:
    """True if an expression reads an element."""
    match e:
        case Load():
            return True
        case Apply(_, args, _):
            return any(map(_reads_tensor, args))
        case Reduce(_, _, body, _):
            return _reads_tensor(body)
        case _:
            return False


def _product(shape: tuple[Dim, ...]) -> float:
    return float(np.prod([float(d) for d in shape if isinstance(d, int)])) if shape else 1.0


def nbytes(t: TensorType) -> float:
    """Return the bytes of a tensor of concrete type `t`."""
    if t.shape is None or t.dtype is None or t.dtype == STRING:
        return 64.0
    return _product(t.shape) * to_numpy(t.dtype).itemsize
