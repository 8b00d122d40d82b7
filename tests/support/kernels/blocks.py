"""Kernels scheduled in blocks, as for a GPU."""

from collections.abc import Mapping

from superopt.kernels.loops.lower import lower_kernel
from superopt.kernels.loops.schedule import parse_schedule
from superopt.kernels.loops.tile import Kernel
from superopt.te.expr.dtype import F16, F32, DType
from superopt.te.expr.tensor import Tensor, apply, compute, reduce_max, reduce_sum


def made_by(inputs: list[Tensor], out: Tensor, how: Mapping[Tensor, str]) -> Kernel:
    return lower_kernel("k", inputs, [out], {t: parse_schedule(s) for t, s in how.items()})


def add(n: int, kind: DType, block: int) -> Kernel:
    a, b = Tensor("a", kind, (n,)), Tensor("b", kind, (n,))
    y = compute((n,), lambda i: a[i] + b[i], name="y")
    how = f"split(i0, {block}); parallel(i0.o); vectorize(i0.i)"
    return made_by([a, b], y, {y: how})


BLOCKS = (
    "split(i0, {0}); split(i1, {1}); split(k0, {2}); "
    "reorder(i0.o, i1.o, k0.o, k0.i, i0.i, i1.i); "
    "parallel(i0.o); parallel(i1.o); unroll(k0.i); unroll(i0.i); vectorize(i1.i)"
)


def matmul(
    sizes: tuple[int, int, int], kind: DType, blocks: tuple[int, int, int], epilogue: bool = False
) -> Kernel:
    """The product of matrices m x k and k x n, in blocks; with an epilogue, relu(a b + c)."""
    m, n, k = sizes
    a, b, c = Tensor("a", kind, (m, k)), Tensor("b", kind, (k, n)), Tensor("c", kind, (n,))
    if epilogue:
        y = compute(
            (m, n),
            lambda i, j: apply("max", reduce_sum(k, lambda x: a[i, x] * b[x, j]) + c[j], 0),
            name="y",
        )
    else:
        y = compute((m, n), lambda i, j: reduce_sum(k, lambda x: a[i, x] * b[x, j]), name="y")
    return made_by([a, b, *([c] if epilogue else [])], y, {y: BLOCKS.format(*blocks)})


def softmax(rows: int, columns: int, block: int) -> Kernel:
    """Of each row: its largest element and its sum are computed where a block of rows is."""
    x = Tensor("x", F32, (rows, columns))
    top = compute((rows,), lambda i: reduce_max(columns, lambda k: x[i, k]), name="top")
    total = compute(
        (rows,), lambda i: reduce_sum(columns, lambda k: apply("exp", x[i, k] - top[i])),
        name="total",
    )  # fmt: skip
    y = compute((rows, columns), lambda i, j: apply("exp", x[i, j] - top[i]) / total[i], name="y")
    each = "reorder(k0, i0); unroll(k0); vectorize(i0); compute_at(y, i0.o)"
    how = f"split(i0, {block}); parallel(i0.o); unroll(i0.i); vectorize(i1)"
    return made_by([x], y, {top: each, total: each, y: how})


def transposed(m: int, n: int, block: int) -> Kernel:
    x = Tensor("x", F32, (m, n))
    y = compute((n, m), lambda i, j: x[j, i], name="y")
    how = f"split(i0, {block}); split(i1, {block}); reorder(i0.o, i1.o, i0.i, i1.i); "
    how += "parallel(i0.o); parallel(i1.o); unroll(i0.i); vectorize(i1.i)"
    return made_by([x], y, {y: how})


def windows() -> Kernel:
    """Sums of windows of 3 x 2, two rows of them at a time, which share what both read."""
    x = Tensor("x", F32, (9, 6, 20))
    y = compute(
        (7, 5, 20),
        lambda i, j, c: reduce_sum((3, 2), lambda k, m: x[i + k, j + m, c]),
        name="y",
    )
    how = "split(i0, 2); reorder(i0.o, i1, k1, i0.i, k0, i2); parallel(i0.o); parallel(i1); "
    return made_by([x], y, {y: how + "unroll(i0.i); unroll(k0); vectorize(i2)"})


PRINTED = {
    "add": lambda: add(1000, F32, 200),
    "matmul": lambda: matmul((70, 50, 48), F32, (32, 24, 16)),
    "epilogue": lambda: matmul((64, 64, 64), F16, (32, 32, 16), epilogue=True),
    "softmax": lambda: softmax(10, 100, 4),
    "windows": windows,
}
