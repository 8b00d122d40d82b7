"""The tile-level form: how it is printed, and tiles that a schedule would make."""

from collections.abc import Callable

import numpy as np
import pytest

from superopt.kernels.loops.tile import For, Kernel, Store, Update
from superopt.kernels.runtime.cpu import load_kernel
from superopt.te.expr.dtype import DTYPES, F32, I32, DType
from superopt.te.expr.node import Axis
from superopt.te.expr.tensor import Tensor, const
from tests.support.kernels.build import kernel_of
from tests.support.ops.build import made

PRINTED = {
    "matmul": ("MatMul", "f32[4,8] f32[8,100]"),
    "softmax": ("Softmax", "f32[2,6] axis=-1"),
    "conv": ("Conv", "f32[1,3,5,5] f32[4,3,3,3] f32[4] pads=(1,1,1,1)"),
    "gather": ("Gather", "f32[9,4] i64[3] axis=0"),
}


@pytest.mark.parametrize("name", PRINTED)
def test_a_kernel_is_text(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"kernel-{name}.txt", f"{kernel_of(made(*PRINTED[name]))}\n")


def matmul(kind: DType, tiles: tuple[int, int, int], tile: tuple[int, int], depth: int) -> Kernel:
    """C = A B, in tiles of registers: B is packed into columns of panels, k is split in two."""
    m, n, k = (Axis(a, e) for a, e in zip("mnk", tiles, strict=True))
    i, j, kk = Axis("i", tile[0]), Axis("j", tile[1]), Axis("kk", depth)
    rows, columns = tiles[0] * tile[0], tiles[1] * tile[1]
    a = Tensor("a", kind, (rows, tiles[2] * depth))
    b = Tensor("b", kind, (tiles[2], tiles[1], depth, tile[1]))
    c, total = Tensor("c", kind, (rows, columns)), Tensor("total", kind, tile)
    row, column = m * tile[0] + i, n * tile[1] + j
    term = a[row, k * depth + kk] * b[k, n, kk, j]
    body = (
        Store(total, (i, j), const(0, kind), (i, j)),
        For(k, (For(kk, (Update(total, (i, j), "sum", term, (i, j)),)),)),
        Store(c, (row, column), total[i, j], (i, j)),
    )
    return Kernel("k", (a, b, c), (For(n, (For(m, body),)),), ((total, "register"),))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", ["f32", "f64", "i32", "i64", "u8"])
@pytest.mark.parametrize("tile", [(1, 1), (2, 16), (6, 64), (8, 48), (3, 40)])
def test_a_tile_of_registers_is_what_is_summed(kind: str, tile: tuple[int, int]) -> None:
    tiles, depth = (3, 2, 2), 5
    k = matmul(DTYPES[kind], tiles, tile, depth)
    rng = np.random.default_rng(0)
    a, b, c = (rng.integers(0, 9, p.shape).astype(kind.replace("i", "int").replace("u", "uint")
               .replace("f", "float")) for p in k.params)  # fmt: skip
    load_kernel(k)(a, b, c)
    columns = b.transpose(0, 2, 1, 3).reshape(tiles[2] * depth, -1)
    np.testing.assert_array_equal(c, a @ columns)


def test_loops_that_are_unrolled_compute_the_same() -> None:
    a, c = Tensor("a", I32, (4, 6)), Tensor("c", I32, (4, 6))
    i, j = Axis("i", 4), Axis("j", 6)
    for kinds in (("serial", "serial"), ("unroll", "serial"), ("unroll", "unroll")):
        store = Store(c, (i, j), a[i, j] * a[i, j])
        k = Kernel("k", (a, c), (For(i, (For(j, (store,), kinds[1]),), kinds[0]),))
        x = np.arange(24, dtype=np.int32).reshape(4, 6)
        out = np.zeros_like(x)
        load_kernel(k)(x, out)
        np.testing.assert_array_equal(out, x * x)


def test_a_sum_in_memory_reads_what_it_stored() -> None:
    """All its steps in one statement."""
    a, c = Tensor("a", I32, (5, 40)), Tensor("c", I32, (40,))
    j, k = Axis("j", 40), Axis("k", 5)
    body = (Store(c, (j,), const(0, I32), (j,)), Update(c, (j,), "sum", a[k, j], (j,), (k,)))
    x = np.arange(200, dtype=np.int32).reshape(5, 40)
    out = np.zeros(40, np.int32)
    load_kernel(Kernel("k", (a, c), body))(x, out)
    np.testing.assert_array_equal(out, x.sum(axis=0))


def test_a_scratch_buffer_is_the_kernel_s_own() -> None:
    """Computed once, read in another order."""
    a, s, c = (Tensor(n, F32, (100,)) for n in "asc")
    i, j = Axis("i", 100), Axis("j", 100)
    k = Kernel(
        "k",
        (a, c),
        (For(i, (Store(s, (i,), a[i] * 2),)), For(j, (Store(c, (j,), s[99 - j]),))),
        ((s, "local"),),
    )
    x = np.arange(100, dtype=np.float32)
    out = np.zeros_like(x)
    load_kernel(k)(x, out)
    np.testing.assert_array_equal(out, 2 * x[::-1])
