"""Matrix products."""

from __future__ import annotations

from superopt.ir.op import Attr, InferError, Types, op
from superopt.ops.shared.broadcasting import broadcast, broadcast_element
from superopt.ops.shared.precision import narrow_tensor, widen_tensor
from superopt.ops.shared.scalars import attribute_constant, canonical_flags, canonical_floats
from superopt.te.analysis.size_oracle import are_shapes_equal, are_sizes_equal
from superopt.te.expr.node import Expr
from superopt.te.expr.tensor import Tensor, compute, reduce_sum


@op("MatMul", example="f32[2,3,4] f32[4,5]", laws="linear")
def matmul(a: Tensor, b: Tensor) -> Tensor:
    """numpy's matmul: (..., n, k) x (..., k, m), vectors on either side."""
    return narrow_tensor(matrix_product("MatMul", widen_tensor(a), widen_tensor(b)), a.dtype)


def matrix_product(name: str, a: Tensor, b: Tensor) -> Tensor:
    """Return the matrix product of `a` and `b` for the operator `name`."""
    if not a.rank or not b.rank:
        raise InferError(f"{name} of {a.type} and {b.type}: a scalar")
    if a.dtype != b.dtype:
        raise InferError(f"{name} of {a.type} and {b.type}: {a.dtype} != {b.dtype}")
    k = a.shape[-1]
    other = b.shape[-2] if b.rank > 1 else b.shape[0]
    if not are_sizes_equal(k, other):
        raise InferError(
            f"{name} contracts axis {a.rank - 1} of {tuple(a.shape)} with axis {max(b.rank - 2, 0)}"
            f" of {tuple(b.shape)}: {k} != {other}"
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

        return reduce_sum(k, lambda t: a[(*batched(a), *row, t)] * b[(*batched(b), t, *column)])

    return compute((*batch, *rows, *columns), element)


def _gemm_attrs(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    attrs = canonical_floats("alpha", "beta")(
        types, canonical_flags("transA", "transB")(types, attrs)
    )
    # beta says nothing without c
    return attrs if len(types) > 2 and types[2] is not None else attrs | {"beta": 1.0}


@op(
    "Gemm",
    example=("f32[3,4] f32[4,5]", "f32[4,3] f32[5,4] f32[5] alpha=0.5 beta=2.0 transA=1 transB=1"),
    laws="linear",
    since=7,
    canonical=_gemm_attrs,
)
def gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Tensor:
    """alpha a b + beta c, with `a` or `b` transposed first; `c` is broadcast."""
    what = f"Gemm of {a.type} and {b.type}" + (f" and {c.type}" if c is not None else "")
    if a.rank != 2 or b.rank != 2:
        raise InferError(f"{what}: it takes matrices")
    if a.dtype != b.dtype or (c is not None and c.dtype != a.dtype):
        raise InferError(f"{what}: dtypes differ")
    k, n = a.shape if transA else a.shape[::-1]
    m, other = b.shape if transB else b.shape[::-1]
    if not are_sizes_equal(k, other):
        raise InferError(
            f"{what}, transA={transA} transB={transB}, contracts {k} elements with {other}"
        )
    if c is not None and not are_shapes_equal(broadcast(c.shape, (n, m)), (n, m)):
        raise InferError(f"{what}: {c.type} does not broadcast to {(n, m)}")
    left, right, bias = widen_tensor(a), widen_tensor(b), None if c is None else widen_tensor(c)
    scale, weight = attribute_constant(alpha, left.dtype), attribute_constant(beta, left.dtype)

    def element(i: Expr, j: Expr) -> Expr:
        out = reduce_sum(
            k,
            lambda t: (
                (left[t, i] if transA else left[i, t]) * (right[j, t] if transB else right[t, j])
            ),
        )
        out = out if alpha == 1 else out * scale
        if bias is None or beta == 0:
            return out
        return out + (
            broadcast_element(bias, (i, j))
            if beta == 1
            else broadcast_element(bias, (i, j)) * weight
        )

    return narrow_tensor(compute((n, m), element), a.dtype)
