"""Triton's text of kernels: how it is printed, which needs no Triton, and what cannot be."""

from collections.abc import Callable

import pytest

from superopt.kernels.loops.tile import For, Kernel, Store
from superopt.kernels.triton.codegen import triton_text
from superopt.te.expr.dtype import BF16, DTYPES, F16, F32, I32, INDEX
from superopt.te.expr.node import Axis, Const, Index
from superopt.te.expr.tensor import Tensor, cast, compute, const, reduce_sum
from tests.support.kernels.blocks import BLOCKS, PRINTED, add, made_by, matmul
from tests.support.kernels.build import kernel_of
from tests.support.ops.build import made


@pytest.mark.parametrize("name", PRINTED)
def test_a_kernel_is_text(name: str, golden: Callable[[str, str], None]) -> None:
    p = triton_text(PRINTED[name]())
    launches = [
        f"# {x.name}: {x.programs} programs of {', '.join(t.name for t in x.buffers)}\n"
        for x in p.launches
    ]
    golden(f"triton-{name}.txt", p.source + "".join(launches))


def test_what_is_a_dot() -> None:
    """Blocks of 16 and more, and of 8 columns; floats of at most 32 bits, sums in float32."""
    for k, wanted in [
        (matmul((64, 64, 64), F32, (16, 16, 16)), True),
        (matmul((64, 64, 64), BF16, (32, 16, 64)), True),
        (matmul((12, 64, 64), F32, (16, 16, 16)), True),  # in blocks of 16
        (matmul((64, 64, 64), F32, (16, 8, 16)), True),
        (matmul((64, 64, 64), F16, (16, 5, 16)), True),  # in blocks of 8
        (matmul((64, 64, 64), F32, (16, 4, 16)), False),
        (matmul((64, 64, 64), F32, (8, 64, 16)), False),
        (matmul((64, 64, 64), F32, (16, 16, 4)), False),
        (matmul((64, 64, 64), I32, (16, 16, 16)), False),
        (matmul((64, 64, 64), DTYPES["f64"], (16, 16, 16)), False),
    ]:
        assert ("tl.dot(" in triton_text(k).source) == wanted, k
        assert ("tl.sum(" in triton_text(k).source) != wanted, k


def test_fp16_operands_cast_to_float32_stay_fp16_in_a_dot() -> None:
    a, b = Tensor("a", F16, (32, 32)), Tensor("b", F16, (32, 32))
    y = compute(
        (32, 32),
        lambda i, j: reduce_sum(32, lambda k: cast(a[i, k], F32) * cast(b[k, j], F32)),
    )
    assert "tl.cast" not in triton_text(made_by([a, b], y, {y: BLOCKS.format(16, 16, 16)})).source


P, Q = Axis("i", 4), Axis("j", 8)
X, Y, R = Tensor("x", F32, (4, 8)), Tensor("y", F32, (4, 8)), Tensor("r", F32, (4, 8))
TWO_GIB_TENSOR = Tensor("large", F32, (1 << 16, 1 << 15))
REFUSED = {
    "no Triton kernel computes f8e5m2": lambda: kernel_of(made("Cast", "f32[2,3] to=f8e5m2")),
    "Triton has no atan of f64": lambda: kernel_of(made("Atan", "f64[2,3]")),
    "a block of 2097152 elements": lambda: add(1 << 21, F32, 1 << 21),
    "large: f32[65536, 32768] has indices of more": lambda: Kernel("k", (TWO_GIB_TENSOR,), ()),
    "register r: f32[4, 8] is not one whole tile": lambda: Kernel(
        "k",
        (X, Y),
        (For(P, (Store(R, (P, Q), X[P, Q], (Q,)), Store(Y, (P, Q), R[P, Q], (Q,)))),),
        ((R, "register"),),
    ),
    "y[0, j] is stored once for each of i, j": lambda: Kernel(
        "k", (X, Y), (Store(Y, (const(0, Q.dtype), Q), X[P, Q], (P, Q)),)
    ),
    "the parallel loop i is inside another one": lambda: Kernel(
        "k", (X, Y), (For(Q, (For(P, (Store(Y, (P, Q), X[P, Q]),), "parallel"),)),)
    ),
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_cannot_be_printed_is_said(said: str) -> None:
    with pytest.raises(NotImplementedError) as caught:
        triton_text(REFUSED[said]())
    assert said in str(caught.value)


def test_what_is_read_where_a_variable_says_is_read_again_when_it_changes() -> None:
    """A tile of a variable in the index of a read, though nothing in memory is written between."""
    x, found = Tensor("x", F32, (16,)), Tensor("found", I32, (8,))
    given, outs = ([Tensor(n, t, (8,)) for n in names] for names, t in (("ab", I32), ("yz", F32)))
    kept = [Tensor(n, F32, (8,)) for n in "st"]
    body: list[Store] = []
    for at, into in zip(given, kept, strict=True):
        place = Index(found[Q], Const(16, INDEX))
        body += [Store(found, (Q,), at[Q], (Q,)), Store(into, (Q,), x[place], (Q,))]
    body += [Store(y, (Q,), t[Q], (Q,)) for y, t in zip(outs, kept, strict=True)]
    scratch = tuple((t, "register") for t in (found, *kept))
    text = triton_text(Kernel("k", (x, *given, *outs), tuple(body), scratch)).source
    assert text.count("tl.load(x + ") == 2
