"""Contractions of matrices."""

from __future__ import annotations

from superopt.ir.op import InferError, op
from superopt.ops.common import broadcast
from superopt.te.expr import Tensor, compute, reduce_sum
from superopt.te.node import Expr


@op("MatMul", example="f32[2,3,4] f32[4,5]", laws="linear")
def matmul(a: Tensor, b: Tensor) -> Tensor:
    """numpy's matmul: (..., n, k) x (..., k, m), vectors on either side."""
    if not a.rank or not b.rank:
        raise InferError(f"MatMul of {a.type} and {b.type}: a scalar")
    k = a.shape[-1]
    contracted = b.shape[-2] if b.rank > 1 else b.shape[0]
    if k != contracted:
        raise InferError(
            f"MatMul contracts axis {a.rank - 1} of {tuple(a.shape)} with axis {max(b.rank - 2, 0)}"
            f" of {tuple(b.shape)}: {k} != {contracted}"
        )
    batch = broadcast(a.shape[:-2], b.shape[:-2])
    rows = a.shape[-2:-1]
    columns = b.shape[-1:] if b.rank > 1 else ()

    def element(*i: Expr) -> Expr:
        lead = i[: len(batch)]
        row, column = i[len(batch) : len(batch) + len(rows)], i[len(batch) + len(rows) :]

        def batched(x: Tensor) -> tuple[Expr | int, ...]:
            own = x.shape[:-2]
            tail = lead[len(lead) - len(own) :]
            return tuple(0 if n == 1 else at for n, at in zip(own, tail, strict=True))

        return reduce_sum(k, lambda l: a[(*batched(a), *row, l)] * b[(*batched(b), l, *column)])

    return compute((*batch, *rows, *columns), element)
