"""Kernels in Triton's interpreter, which needs the extra `gpu`; or on a GPU (tests/support/gpu)."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from superopt.ir.evaluate import node_results
from superopt.kernels.loops.lower import lower_kernel
from superopt.kernels.loops.schedule import CacheRead, parse_schedule, schedule_text
from superopt.kernels.loops.tile import For, Kernel, Store, Update
from superopt.kernels.runtime.cpu import load_kernel as on_cpu
from superopt.kernels.triton.codegen import triton_text
from superopt.kernels.triton.loader import load_triton_kernel
from superopt.te.expr.dtype import BF16, DTYPES, F32, I32, to_numpy
from superopt.te.expr.node import Axis
from superopt.te.expr.tensor import (
    Tensor,
    apply,
    compute,
    const,
    gather,
    in_range,
    reduction,
    select,
)
from tests.support.breadth import examples
from tests.support.gpu.device import REAL, choose
from tests.support.kernels.blocks import add, made_by, matmul, softmax, transposed
from tests.support.kernels.build import blank, drawn, kernel_of
from tests.support.kernels.computations import COMPUTATIONS, WANTED, legal, tensor, whole
from tests.support.kernels.operators import EXAMPLES, of_numbers
from tests.support.kernels.schedules import Draw, draws, grown

pytestmark = pytest.mark.gpu

Run = Callable[..., None]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """`run(kernel, *arrays)` changes the arrays of results."""
    with pytest.MonkeyPatch.context() as patch:
        choose(patch)
        yield there if REAL else lambda k, *arrays: load_triton_kernel(k)(*map(torched, arrays))


def there(k: Kernel, *arrays: np.ndarray) -> None:
    """On the GPU, and back."""
    own = [torched(x) for x in arrays]
    given = [x.cuda() for x in own]
    load_triton_kernel(k, "cuda")(*given)
    for x, y in zip(own, given, strict=True):
        x.copy_(y)


def torched(x: np.ndarray) -> Any:
    """The array as a tensor of torch's, in the same memory."""
    import torch

    if x.dtype == to_numpy(BF16):
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)


SLOW = pytest.mark.slow
P, Q = Axis("i", 4), Axis("j", 8)
X, Y, R = Tensor("x", F32, (4, 8)), Tensor("y", F32, (4, 8)), Tensor("r", F32, (4, 8))


@pytest.mark.round_robin(4)
@pytest.mark.parametrize("kind", ["f32", "i8", "u16", "i64"])
@pytest.mark.parametrize("n", [1, 5, 64, 127, 1000])
@pytest.mark.parametrize("block", [64, 48])
def test_a_masked_add(run: Run, n: int, kind: str, block: int) -> None:
    dtype = DTYPES[kind]
    rng = np.random.default_rng(n)
    a, b = (rng.integers(0, 100, n).astype(to_numpy(dtype)) for _ in range(2))
    k = add(n, dtype, block)
    (got,) = blank(k, 1)
    run(k, a, b, got)
    np.testing.assert_array_equal(got, a + b)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "sizes", [(64, 64, 64), pytest.param((70, 50, 48), marks=SLOW), (17, 33, 20), (5, 100, 3)]
)
@pytest.mark.parametrize(
    "blocks", [(32, 32, 16), pytest.param((24, 16, 1), marks=SLOW), (16, 40, 100)]
)
@pytest.mark.parametrize("kind", ["i32", "f16", "f32", "f64"])
def test_a_matmul(
    run: Run, sizes: tuple[int, int, int], blocks: tuple[int, int, int], kind: str
) -> None:
    """Whole numbers exactly; floats as sums of rounded products may differ."""
    (m, n, k), (bm, bn, bk) = sizes, blocks
    dtype = DTYPES[kind]
    kernel = matmul(sizes, dtype, (bm, bn, bk if k % min(bk, k) == 0 else k))
    rng = np.random.default_rng(0)
    a, b = rng.integers(-9, 9, (m, k)), rng.integers(-9, 9, (k, n))
    (got,) = blank(kernel, 1)
    run(kernel, a.astype(to_numpy(dtype)), b.astype(to_numpy(dtype)), got)
    np.testing.assert_array_equal(got, (a @ b).astype(got.dtype))
    if dtype.is_float:
        x, y = (v.astype(to_numpy(dtype)) for v in (rng.standard_normal((m, k)),
                                                    rng.standard_normal((k, n))))  # fmt: skip
        run(kernel, x, y, got)
        within(got, x, y, 0.0)


def within(got: np.ndarray, a: np.ndarray, b: np.ndarray, more: Any, relu: bool = False) -> None:
    """|got - (a b + more)| <= u (|a| |b| + |more|) (k + 2): Higham, Accuracy and Stability, 3.1.
    relu: of the sum, which takes no error further."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    u = float(np.finfo(got.dtype).eps)  # halves are rounded as products, and then in the end
    bound = u * (np.abs(x) @ np.abs(y) + np.abs(more)) * (x.shape[1] + 2)
    wanted = x @ y + more
    if relu:
        wanted = np.maximum(wanted, 0)
    assert (np.abs(got - wanted) <= bound).all()


@pytest.mark.parametrize("sizes", [(64, 64, 64), (70, 50, 48), (17, 33, 32)])
@pytest.mark.parametrize("kind", ["f16", "f32"])
def test_a_matmul_with_an_epilogue(run: Run, sizes: tuple[int, int, int], kind: str) -> None:
    m, n, k = sizes
    kernel = matmul(sizes, DTYPES[kind], (32, 32, 16), epilogue=True)
    rng = np.random.default_rng(1)
    a, b, c = (rng.standard_normal(s).astype(to_numpy(DTYPES[kind])) for s in ((m, k), (k, n), n))
    (got,) = blank(kernel, 1)
    run(kernel, a, b, c, got)
    within(got, a, b, c.astype(np.float64), relu=True)


@pytest.mark.parametrize(("rows", "columns", "block"), [(8, 64, 4), (10, 100, 4), (3, 37, 1)])
def test_a_softmax_of_rows(run: Run, rows: int, columns: int, block: int) -> None:
    k = softmax(rows, columns, block)
    x = np.random.default_rng(2).standard_normal((rows, columns)).astype(np.float32) * 5
    x[0, 0] = -np.inf
    (got,) = blank(k, 1)
    run(k, x, got)
    e = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    # An exponent's error is that of the difference, at most u |x - max|; a sum adds its length.
    far = np.finfo(np.float32).eps * (np.ptp(x[np.isfinite(x)]) + columns + 4)
    np.testing.assert_allclose(got, e / e.sum(axis=1, keepdims=True), rtol=far)


REDUCED = {
    "rows": ("sum", "i32", 1, "parallel(i0); vectorize(k0)"),
    "columns": ("sum", "i64", 0, "split(k0, 3); reorder(k0.o, k0.i, i0); unroll(k0.i); "
                                 "vectorize(i0)"),
    "columns, one after the other": ("min", "i16", 0, "reorder(k0, i0); vectorize(i0)"),
    "products": ("prod", "i32", 1, "vectorize(k0)"),
    "bytes": ("min", "u8", 1, "vectorize(k0)"),
    "narrow sums": ("sum", "i8", 1, "vectorize(k0)"),
    "truths": ("any", "bool", 1, "vectorize(k0)"),
    "all truths": ("all", "bool", 0, "reorder(k0, i0); unroll(k0); vectorize(i0)"),
    "floats": ("max", "f32", 1, "vectorize(k0)"),
    "small floats": ("max", "f16", 1, "vectorize(k0)"),
    "waiting": ("sum", "i32", 1, "split(k0, 3); split(i0, 4); reorder(k0.o, i0.o, k0.i, i0.i); "
                                 "unroll(k0.i); vectorize(i0.i)"),
}  # fmt: skip


@pytest.mark.parametrize("name", REDUCED)
def test_a_reduction(run: Run, name: str) -> None:
    """Over blocks: what lies beyond an extent is no part of it, and what is no number is."""
    fn, kind, along, how = REDUCED[name]
    x = Tensor("x", DTYPES[kind], (9, 21))
    y = compute(
        (x.shape[1 - along],),
        lambda i: reduction(fn, x.shape[along], lambda k: x[(i, k) if along else (k, i)]),
        name="y",
    )
    k = made_by([x], y, {y: how})
    rng = np.random.default_rng(3)
    a = (rng.integers(-1000, -1, (9, 21)) if fn == "max" else rng.integers(1, 99, (9, 21))).astype(
        to_numpy(x.dtype)
    )
    if kind == "bool":
        a = rng.integers(0, 9, (9, 21)) > (7 if fn == "any" else 0)
    if x.dtype.is_float:
        a[2, 3] = np.nan
        a[3] = -np.inf
    (got,) = blank(k, 1)
    run(k, a, got)
    folds = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum,
             "any": np.logical_or, "all": np.logical_and}  # fmt: skip
    np.testing.assert_array_equal(got, folds[fn].reduce(a, axis=along, dtype=a.dtype))


@pytest.mark.parametrize(("m", "n", "block"), [(64, 32, 16), (37, 50, 16), (3, 100, 20)])
def test_a_transposed_copy(run: Run, m: int, n: int, block: int) -> None:
    x = np.random.default_rng(4).standard_normal((m, n)).astype(np.float32)
    k = transposed(m, n, block)
    (got,) = blank(k, 1)
    run(k, x, got)
    np.testing.assert_array_equal(got, x.T)


def test_what_a_guard_forbids_is_not_read(run: Run) -> None:
    """Beyond a buffer's end, by far too; in the branch not taken; at indices that are read."""
    x, at = Tensor("x", F32, (5,)), Tensor("at", I32, (20,))
    y = compute(
        (20,),
        lambda i: select(
            in_range(i - 3, 5), x[i - 3], select(i < 10, const(7, F32), x[gather(at[i], 5)])
        ),
    )
    far = compute((20,), lambda i: select(in_range(i * 2**24, 5), x[i * 2**24], -x[i * 0]))
    a, b = np.arange(1, 6, dtype=np.float32), np.arange(20, dtype=np.int32) % 9 - 4
    i, low = np.arange(20), np.clip(np.where(b < 0, b + 5, b), 0, 4)
    wanted = np.where((i >= 3) & (i < 8), a[np.clip(i - 3, 0, 4)], np.where(i < 10, 7, a[low]))
    for out, numbers in ((y, wanted), (far, np.where(i == 0, 1, -1))):
        k = lower_kernel("k", [x, at], [out], {out: parse_schedule("vectorize(i0)")})
        (got,) = blank(k, 1)
        run(k, a, b, got)
        np.testing.assert_array_equal(got, numbers)


def test_tables_and_blocks_in_another_order(run: Run) -> None:
    """A register is stored over (i, j), and read over (j, i)."""
    table = np.arange(8, dtype=np.float32)
    t = Tensor("t", F32, (8,))
    z = Tensor("z", F32, (8, 4))
    body = (Store(R, (P, Q), X[P, Q] * t[Q], (P, Q)), Store(z, (Q, P), R[P, Q], (Q, P)))
    k = Kernel("k", (X, z), body, ((R, "register"),), ((t, table),))
    x = np.arange(32, dtype=np.float32).reshape(4, 8)
    (got,) = blank(k, 1)
    run(k, x, got)
    np.testing.assert_array_equal(got, (x * table).T)


def test_a_sum_in_memory_reads_what_it_stored(run: Run) -> None:
    """Scratch of each program: what one of them stores, no other one reads."""
    s, each = Tensor("s", F32, (8,)), Axis("each", 4)
    body = (
        For(Q, (Store(s, (Q,), X[each, Q]),)),
        Update(s, (Q,), "sum", const(1, F32), (Q,), (P,)),
        Store(Y, (each, Q), s[7 - Q], (Q,)),
    )
    k = Kernel("k", (X, Y), (For(each, body, "parallel"),), ((s, "local"),))
    assert triton_text(k).scratch == ((s, 32),)
    x = np.arange(32, dtype=np.float32).reshape(4, 8)
    (got,) = blank(k, 1)
    run(k, x, got)
    np.testing.assert_array_equal(got, x[:, ::-1] + 4)


@pytest.mark.one_in(2)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of divisions by 0
@pytest.mark.parametrize("fn", ["div", "mod", "fmod", "shl", "shr"])
@pytest.mark.parametrize("kind", ["i8", "i32", "i64", "u8"])
def test_integers_at_their_ends(run: Run, fn: str, kind: str) -> None:
    """Toward zero; by 0; the least one by -1; by more bits than there are."""
    dtype = DTYPES[kind]
    least = np.iinfo(to_numpy(dtype)).min
    a, b = np.meshgrid([least, 7, -7 % 100 if kind == "u8" else -7], [0, 1, 2, 3, 99])
    if dtype.kind == "i" and fn not in ("shl", "shr"):
        a, b = np.meshgrid([least, 7, -7], [0, -1, 2, -2, 3])
    a, b = (v.ravel().astype(to_numpy(dtype)) for v in (a, b))
    x, y = Tensor("x", dtype, (15,)), Tensor("y", dtype, (15,))
    k = made_by([x, y], compute((15,), lambda i: apply(fn, x[i], y[i])), {})
    got, wanted = blank(k, 1)[0], blank(k, 1)[0]
    run(k, a, b, got)
    on_cpu(k)(a, b, wanted)
    np.testing.assert_array_equal(got, wanted)


PAIRS = {"pow": np.power, "mod": np.mod, "fmod": np.fmod}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of what is no number
@pytest.mark.parametrize("fn", PAIRS)
def test_floats_at_their_ends(run: Run, fn: str) -> None:
    """Of zeros of both signs, infinities, what is no number, what is below zero; all quotients."""
    far = [] if fn == "pow" else [0.3, 1e10, 1e20, 3e38, 1e-30, 1e-45]
    ends = [0.0, 0.5, 1.0, 2.0, 3.0, 5.5, 7.0, 0.1, 1e7, np.inf, *far]
    some = np.array([*ends, *np.negative(ends), np.nan], np.float32)
    a, b = (v.ravel() for v in np.meshgrid(some, some))
    x, y = Tensor("x", F32, a.shape), Tensor("y", F32, a.shape)
    k = made_by([x, y], compute(a.shape, lambda i: apply(fn, x[i], y[i])), {})
    (got,) = blank(k, 1)
    run(k, a, b, got)
    np.testing.assert_allclose(got, wanted := PAIRS[fn](a, b), rtol=1e-6, atol=0)
    if fn != "mod":
        known = ~np.isnan(wanted)
        np.testing.assert_array_equal(np.signbit(got)[known], np.signbit(wanted)[known])


WIDE = {
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, outside of their domains
@pytest.mark.parametrize("fn", WIDE)
def test_functions_in_float64(run: Run, fn: str) -> None:
    """To a unit in the last place; at their ends, and beyond."""
    ends = [0.0, 1.0, 1e-30, 1e-7, 9e-6, 2e-5, 1e-3, 0.9999999, 1.0000001, 88.0, 3e38, np.inf]
    rng = np.random.default_rng(0)
    some = [*ends, *np.negative(ends), np.nan, *rng.uniform(-1, 1, 100), *rng.uniform(-9, 9, 131)]
    a = np.array(some, np.float32)
    x = Tensor("x", F32, a.shape)
    k = made_by([x], compute(a.shape, lambda i: apply(fn, x[i])), {})
    (got,) = blank(k, 1)
    run(k, a, got)
    wanted = WIDE[fn](a.astype(np.float64)).astype(np.float32)
    np.testing.assert_array_max_ulp(got, wanted, 1)


@pytest.mark.one_in(4)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of logarithms below 0
@pytest.mark.parametrize(("name", "types"), EXAMPLES)
def test_every_operator(run: Run, name: str, types: str) -> None:
    """Computes what its expression says."""
    n = of_numbers(name, types)
    rng = np.random.default_rng(0)
    arrays = [None if v is None else drawn(v.type, rng) for v in n.inputs]
    k = kernel_of(n)
    wanted = node_results(n, arrays)
    got = blank(k, len(wanted))
    run(k, *(a for a in arrays if a is not None), *got)
    for a, b in zip(got, wanted, strict=True):
        if a.dtype.kind in "biu":
            np.testing.assert_array_equal(a, b)
        else:
            far = 1e-2 if a.dtype.itemsize < 4 else 1e-5
            np.testing.assert_allclose(
                a.astype(np.float64), b.astype(np.float64), rtol=far, atol=far / 10
            )


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", COMPUTATIONS)
@examples(12)
@given(numbers=draws(8))
def test_no_schedule_changes_what_is_computed(run: Run, name: str, numbers: list[Draw]) -> None:
    _, out, inputs = tensor(name)
    s = grown(out, numbers, [i.name for i in inputs], lambda s: legal(name, s))
    k = lower_kernel("k", inputs, [out], {out: s})
    (got,) = blank(k, 1)
    try:
        run(k, *whole(name), got)
    except NotImplementedError:
        assert any(isinstance(p, CacheRead) for p in s), schedule_text(s)  # no local buffers
        return
    np.testing.assert_array_equal(got, WANTED[name], err_msg=schedule_text(s))


def test_tensors_are_checked(run: Run) -> None:
    f = load_triton_kernel(add(8, F32, 8))
    x = np.zeros(8, np.float32)
    with pytest.raises(TypeError, match="1 tensors for 3 parameters"):
        f(torched(x))
    with pytest.raises(TypeError, match=r"float64\[8\], not f32\[8\]"):
        f(torched(x.astype(np.float64)), torched(x), torched(x))
    with pytest.raises(ValueError, match="a is not contiguous"):
        f(torched(np.zeros(16, np.float32))[::2], torched(x), torched(x))
