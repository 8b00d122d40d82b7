"""The interpreter of kernels against the evaluation of their expressions, and against LLVM."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from superopt.ir.op import expression
from superopt.kernels.loops.interpret import run_kernel
from superopt.kernels.loops.tile import For, Kernel, Store
from superopt.kernels.runtime.cpu import load_kernel
from superopt.te.eval.interpret import evaluate_all
from superopt.te.expr.dtype import F32
from superopt.te.expr.node import Axis, Const
from superopt.te.expr.tensor import TensorType, placeholder
from tests.support.kernels.build import blank, drawn, kernel_of
from tests.support.kernels.operators import EXAMPLES, of_numbers

# One of so many examples runs by default; `-m breadth` runs the others, too.
STEP = 4


def near(got: np.ndarray, wanted: np.ndarray) -> None:
    if wanted.dtype.kind not in "fV":
        np.testing.assert_array_equal(got, wanted)
        return
    bits = min(wanted.dtype.itemsize, 4)
    tolerance = {4: 2e-5, 2: 2e-2 if wanted.dtype.kind == "V" else 4e-3}.get(bits, 0.3)
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("name", "text"), EXAMPLES[::STEP])
def test_operators(name: str, text: str) -> None:
    """Each kernel computes what its expression says, and what LLVM makes of it computes."""
    n = of_numbers(name, text)
    k = kernel_of(n)
    types = tuple(None if v is None else v.type for v in n.inputs)
    results = len([t for t in expression(n.op, types, n.attrs) if t is not None])
    rng = np.random.default_rng(0)
    given = [drawn(p, rng) for p in k.params[:-results]]
    got, compiled = blank(k, results), blank(k, results)
    run_kernel(k, [*given, *got])
    load_kernel(k)(*given, *compiled)
    outs = expression(n.op, types, n.attrs)
    named = {p.name: a for p, a in zip(k.params, given, strict=False)}
    for a, b, c in zip(got, evaluate_all(outs, named), compiled, strict=True):
        near(a, b.astype(a.dtype))
        near(a, c)


def small_kernel(index: int, extent: int = 4) -> Kernel:
    x, y = (placeholder(n, TensorType(F32, (4,))) for n in "xy")
    i = Axis("i", extent)
    value = x[i + index] * Const(2, F32)
    return Kernel("k", (x, y), (For(i, (Store(y, (i,), value),)),))


def test_accesses_out_of_range_are_errors() -> None:
    buffers = [np.arange(4, dtype=np.float32), np.zeros(4, np.float32)]
    run_kernel(small_kernel(0), buffers)
    assert buffers[1].tolist() == [0, 2, 4, 6]
    with pytest.raises(IndexError, match=r"x\[.*\] is out of \[4\]"):
        run_kernel(small_kernel(1), buffers)
    with pytest.raises(IndexError, match=r"\[i\] is out of \[4\]"):
        run_kernel(small_kernel(0, 5), buffers)


def test_a_vendor_s_kernel_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="calls a vendor library: mm 4 4 4"):
        run_kernel(replace(small_kernel(0), library="mm 4 4 4"), [np.zeros(4, np.float32)] * 2)
