"""Every operator with a tensor expression compiles, and computes what its expression says."""

import numpy as np
import pytest

from superopt.ir.evaluate import node_results
from superopt.ir.graph import Node
from superopt.kernels.llvm.codegen import kernel_text
from superopt.kernels.runtime.cpu import host, load_kernel
from superopt.te.expr.dtype import DTYPES, to_numpy
from tests.support.kernels.build import blank, drawn, kernel_of
from tests.support.kernels.operators import EXAMPLES, of_numbers
from tests.support.ops.build import made


def compared(n: Node, seed: int) -> None:
    rng = np.random.default_rng(seed)
    arrays = [None if v is None else drawn(v.type, rng) for v in n.inputs]
    wanted = node_results(n, arrays)
    k = kernel_of(n)
    got = blank(k, len(wanted))
    load_kernel(k)(*(a for a in arrays if a is not None), *got)
    for a, b in zip(got, wanted, strict=True):
        if a.dtype.kind in "biu":
            np.testing.assert_array_equal(a, b)
        else:
            narrow = a.dtype.itemsize < 4
            far = {"rtol": 1e-2, "atol": 1e-2} if narrow else {"rtol": 1e-5, "atol": 1e-6}
            np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), **far)


@pytest.mark.one_in(10)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of logarithms below 0
@pytest.mark.parametrize(("name", "text"), EXAMPLES)
def test_its_kernel_computes_it(name: str, text: str) -> None:
    compared(of_numbers(name, text), 0)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("extent", [0, 1, 2, 7, 15, 16, 17, 63, 64, 65, 130, 200])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Add", "f32[3,{n}] f32[{n}]"),
        ("Relu", "f64[2,1,{n}]"),
        ("Mul", "i8[2,{n}] i8[2,1]"),
        ("Less", "f16[{n}] f16[{n}]"),
        ("Transpose", "f32[{n},3] perm=(1,0)"),
        ("Transpose", "bool[3,{n}] perm=(1,0)"),
        ("MatMul", "f32[3,5] f32[5,{n}]"),
        ("MatMul", "i64[3,{n}] i64[{n},2]"),
        ("ReduceMax", "i32[4,{n}] axes=(0,)"),
        ("Concat", "f32[2,{n}] f32[2,3] axis=1"),
        ("Pad", "f32[2,{n}] f32[] pads=(0,1,0,2)"),
    ],
)
def test_tiles_of_any_extent(name: str, text: str, extent: int) -> None:
    compared(made(name, text.replace("{n}", str(extent))), extent)


@pytest.mark.parametrize("width", [16, 32, 64])
def test_text_is_of_a_vector_s_width(width: int) -> None:
    k = kernel_of(made("Add", "f32[4,40] f32[4,40]"))
    text = kernel_text(k, width)
    assert f"<{width // 4} x float>" in text
    assert f"<{width // 2} x float>" not in text
    if width <= host().width:
        x = np.arange(160, dtype=np.float32).reshape(4, 40)
        out = np.zeros_like(x)
        load_kernel(k)(x, x, out)
        np.testing.assert_array_equal(out, 2 * x)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_small_floats_are_summed_in_float32(kind: str) -> None:
    """In float16 a sum of ones ends at 2,048."""
    n = made("ReduceSum", f"{kind}[2,4096] axes=(1,) keepdims=0")
    k = kernel_of(n)
    ones = np.ones((2, 4096), to_numpy(DTYPES[kind]))
    (out,) = blank(k, 1)
    load_kernel(k)(ones, out)
    np.testing.assert_array_equal(out.astype(np.float32), [4096, 4096])


def test_what_no_kernel_computes_is_said() -> None:
    with pytest.raises(NotImplementedError, match="f8e5m2"):
        load_kernel(kernel_of(made("Cast", "f32[2,3] to=f8e5m2")))


def test_arrays_are_checked() -> None:
    run = load_kernel(kernel_of(made("Relu", "f32[2,3]")))
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(TypeError, match=r"1 arrays for 2 parameters"):
        run(x)
    with pytest.raises(TypeError, match=r"float64\[2, 3\], not f32\[2, 3\]"):
        run(x.astype(np.float64), x)
    with pytest.raises(TypeError, match=r"float32\[3, 2\]"):
        run(x.T, x)
    with pytest.raises(ValueError, match="not contiguous"):
        run(np.zeros((2, 6), np.float32)[:, ::2], x)
