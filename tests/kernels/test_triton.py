"""Triton's text of kernels: how it is printed, and what it computes in Triton's interpreter.

What runs needs the extra `gpu`; what is printed does not.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from superopt.ir.evaluate import node_results
from superopt.kernels.gpu_run import loaded
from superopt.kernels.gpu_text import printed
from superopt.kernels.lower import lowered
from superopt.kernels.schedule import Schedule, parsed, text
from superopt.kernels.tile import For, Kernel, Store, Update
from superopt.kernels.transform import Scheduled, unscheduled
from superopt.te.dtype import BF16, DTYPES, F16, F32, I32, DType, to_numpy
from superopt.te.expr import (
    Tensor, apply, cast, compute, const, gather, inside, reduce_max, reduce_sum, reduction, select,
)  # fmt: skip
from superopt.te.node import Axis
from tests.kernels.build import blank, drawn, kernel_of
from tests.kernels.test_operators import EXAMPLES, of_numbers
from tests.kernels.test_schedule import COMPUTATIONS, WANTED, steps, tensor, whole
from tests.ops.build import made

Run = Callable[..., None]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """`run(kernel, *arrays)` in Triton's interpreter, which Triton chooses when it is imported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        for name in ("torch", "triton"):
            pytest.importorskip(name, reason=f"the extra gpu is not installed: no {name}")
        yield lambda k, *arrays: loaded(k)(*map(torched, arrays))


def torched(x: np.ndarray) -> Any:
    """The array as a tensor of torch's, in the same memory."""
    import torch

    if x.dtype == to_numpy(BF16):
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)


def made_by(inputs: list[Tensor], out: Tensor, how: Mapping[Tensor, str]) -> Kernel:
    return lowered("k", inputs, [out], {t: parsed(s) for t, s in how.items()})


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


# --- texts ---

PRINTED = {
    "add": lambda: add(1000, F32, 200),
    "matmul": lambda: matmul((70, 50, 48), F32, (32, 24, 16)),
    "epilogue": lambda: matmul((64, 64, 64), F16, (32, 32, 16), epilogue=True),
    "softmax": lambda: softmax(10, 100, 4),
}


@pytest.mark.parametrize("name", PRINTED)
def test_a_kernel_is_text(name: str, golden: Callable[[str, str], None]) -> None:
    p = printed(PRINTED[name]())
    launches = [
        f"# {x.name}: {x.programs} programs of {', '.join(t.name for t in x.buffers)}\n"
        for x in p.launches
    ]
    golden(f"triton-{name}.txt", p.source + "".join(launches))


def test_what_is_a_dot() -> None:
    """Blocks of 16 and more, floats of at most 32 bits, sums in float32."""
    for k, wanted in [
        (matmul((64, 64, 64), F32, (16, 16, 16)), True),
        (matmul((64, 64, 64), BF16, (32, 16, 64)), True),
        (matmul((12, 64, 64), F32, (16, 16, 16)), True),  # in blocks of 16
        (matmul((64, 64, 64), F32, (16, 8, 16)), False),
        (matmul((64, 64, 64), F32, (16, 16, 4)), False),
        (matmul((64, 64, 64), I32, (16, 16, 16)), False),
        (matmul((64, 64, 64), DTYPES["f64"], (16, 16, 16)), False),
    ]:
        assert ("tl.dot(" in printed(k).source) == wanted, k
        assert ("tl.sum(" in printed(k).source) != wanted, k


def test_halves_made_float32_for_a_product_stay_halves_in_a_dot() -> None:
    a, b = Tensor("a", F16, (32, 32)), Tensor("b", F16, (32, 32))
    y = compute(
        (32, 32),
        lambda i, j: reduce_sum(32, lambda k: cast(a[i, k], F32) * cast(b[k, j], F32)),
    )
    assert "tl.cast" not in printed(made_by([a, b], y, {y: BLOCKS.format(16, 16, 16)})).source


I, J = Axis("i", 4), Axis("j", 8)
X, Y, R = Tensor("x", F32, (4, 8)), Tensor("y", F32, (4, 8)), Tensor("r", F32, (4, 8))
LARGE = Tensor("large", F32, (1 << 16, 1 << 15))
REFUSED = {
    "no Triton kernel computes f8e5m2": lambda: kernel_of(made("Cast", "f32[2,3] to=f8e5m2")),
    "Triton has no pow of f32": lambda: kernel_of(made("Pow", "f32[2,3] f32[3]")),
    "a block of 2097152 elements": lambda: add(1 << 21, F32, 1 << 21),
    "large: f32[65536, 32768] has indices of more": lambda: Kernel("k", (LARGE,), ()),
    "register r: f32[4, 8] is not one whole tile": lambda: Kernel(
        "k",
        (X, Y),
        (For(I, (Store(R, (I, J), X[I, J], (J,)), Store(Y, (I, J), R[I, J], (J,)))),),
        ((R, "register"),),
    ),
    "y[0, j] is stored once for each of i, j": lambda: Kernel(
        "k", (X, Y), (Store(Y, (const(0, J.dtype), J), X[I, J], (I, J)),)
    ),
    "the parallel loop i is inside another one": lambda: Kernel(
        "k", (X, Y), (For(J, (For(I, (Store(Y, (I, J), X[I, J]),), "parallel"),)),)
    ),
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_cannot_be_printed_is_said(said: str) -> None:
    with pytest.raises(NotImplementedError) as caught:
        printed(REFUSED[said]())
    assert said in str(caught.value)


# --- what is computed ---


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


@pytest.mark.parametrize("sizes", [(64, 64, 64), (70, 50, 48), (17, 33, 20), (5, 100, 3)])
@pytest.mark.parametrize("blocks", [(32, 32, 16), (24, 16, 1), (16, 40, 100)])
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
    x = 5 * np.random.default_rng(2).standard_normal((rows, columns)).astype(np.float32)
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
    """Beyond a buffer's end; in the branch not taken; and at indices that are themselves read."""
    x, at = Tensor("x", F32, (5,)), Tensor("at", I32, (20,))
    far = 1 << 24  # elements, where nothing is mapped
    y = compute(
        (20,),
        lambda i: select(
            inside(i - 3, 5), x[i - 3], select(i < 10, const(7, F32), x[gather(at[i], 5)])
        ),
    )
    z = compute((20,), lambda i: select(inside(i, 5), x[i * 1], x[i * 0] * 2 + far))
    a, b = np.arange(5, dtype=np.float32), np.arange(20, dtype=np.int32) % 9 - 4
    for out in (y, z):
        k = lowered("k", [x, at], [out], {out: parsed("vectorize(i0)")})
        (got,) = blank(k, 1)
        run(k, a, b, got)
        i = np.arange(20)
        low = np.clip(np.where(b < 0, b + 5, b), 0, 4)
        wanted = np.where((i >= 3) & (i < 8), a[np.clip(i - 3, 0, 4)], np.where(i < 10, 7, a[low]))
        if out is z:
            wanted = np.where(i < 5, a[np.clip(i, 0, 4)], far)
        np.testing.assert_array_equal(got, wanted)


def test_tables_and_blocks_in_another_order(run: Run) -> None:
    """A register is stored over (i, j), and read over (j, i)."""
    table = np.arange(8, dtype=np.float32)
    t = Tensor("t", F32, (8,))
    z = Tensor("z", F32, (8, 4))
    body = (Store(R, (I, J), X[I, J] * t[J], (I, J)), Store(z, (J, I), R[I, J], (J, I)))
    k = Kernel("k", (X, z), body, ((R, "register"),), ((t, table),))
    x = np.arange(32, dtype=np.float32).reshape(4, 8)
    (got,) = blank(k, 1)
    run(k, x, got)
    np.testing.assert_array_equal(got, (x * table).T)


def test_a_sum_in_memory_reads_what_it_stored(run: Run) -> None:
    """Scratch of each program: what one of them stores, no other one reads."""
    s, p = Tensor("s", F32, (8,)), Axis("p", 4)
    body = (
        For(J, (Store(s, (J,), X[p, J]),)),
        Update(s, (J,), "sum", const(1, F32), (J,), (I,)),
        Store(Y, (p, J), s[7 - J], (J,)),
    )
    k = Kernel("k", (X, Y), (For(p, body, "parallel"),), ((s, "local"),))
    assert printed(k).scratch == ((s, 32),)
    x = np.arange(32, dtype=np.float32).reshape(4, 8)
    (got,) = blank(k, 1)
    run(k, x, got)
    np.testing.assert_array_equal(got, x[:, ::-1] + 4)


WITHOUT = ("asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "pow")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of logarithms below 0
@pytest.mark.parametrize(("name", "types"), EXAMPLES)
def test_every_operator(run: Run, name: str, types: str) -> None:
    """Computes what its expression says, or has a function that Triton has not."""
    n = of_numbers(name, types)
    rng = np.random.default_rng(0)
    arrays = [None if v is None else drawn(v.type, rng) for v in n.inputs]
    k = kernel_of(n)
    try:
        printed(k)
    except NotImplementedError as e:
        assert str(e).split()[3] in WITHOUT  # Triton has no ...
        return
    wanted = node_results(n, arrays)
    got = blank(k, len(wanted))
    run(k, *(a for a in arrays if a is not None), *got)
    for a, b in zip(got, wanted, strict=True):
        if a.dtype.kind in "biu":
            np.testing.assert_array_equal(a, b)
        else:
            far = {"rtol": 1e-2, "atol": 1e-2} if a.dtype.itemsize < 4 else {"rtol": 1e-5,
                                                                           "atol": 1e-6}  # fmt: skip
            np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), **far)


@pytest.mark.parametrize("name", COMPUTATIONS)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(change=steps())
def test_no_schedule_changes_what_is_computed(
    run: Run, name: str, change: Callable[[Scheduled], Schedule]
) -> None:
    _, out, inputs = tensor(name)
    s = change(unscheduled(out))
    k = lowered("k", inputs, [out], {out: s})
    (got,) = blank(k, 1)
    run(k, *whole(name), got)
    np.testing.assert_array_equal(got, WANTED[name], err_msg=text(s))


def test_tensors_are_checked(run: Run) -> None:
    f = loaded(add(8, F32, 8))
    x = np.zeros(8, np.float32)
    with pytest.raises(TypeError, match="1 tensors for 3 parameters"):
        f(torched(x))
    with pytest.raises(TypeError, match=r"float64\[8\], not f32\[8\]"):
        f(torched(x.astype(np.float64)), torched(x), torched(x))
    with pytest.raises(ValueError, match="a is not contiguous"):
        f(torched(np.zeros(16, np.float32))[::2], torched(x), torched(x))


COMPILED = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from superopt.kernels.gpu_run import functions
from superopt.kernels.gpu_text import printed
from tests.kernels.test_triton import PRINTED

names = {"f16": "fp16", "f32": "fp32"}
for name, kernel in PRINTED.items():
    text = printed(kernel())
    for launch in text.launches:
        f = functions(text)[launch.name]
        kinds = [f"*{names[t.dtype.name]}" for t in launch.buffers]
        source = ASTSource(f, dict(zip(f.arg_names, kinds, strict=True)), {})
        made = triton.compile(source, target=GPUTarget("cuda", 90, 32))
        print(name, len(made.asm["ptx"]) > 1000, "wgmma" in made.asm["ptx"])
"""


def test_texts_compile_for_a_gpu(run: Run) -> None:
    """As PTX, for which no GPU is needed; in a process without the interpreter."""
    plain = {n: v for n, v in os.environ.items() if n != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILED], env=plain, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = dict(x.split(" ", 1) for x in done.stdout.splitlines())
    assert lines.keys() == PRINTED.keys()
    assert all(x.startswith("True") for x in lines.values()), lines
