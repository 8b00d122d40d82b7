"""On a GPU: exponentials of float32 have a float32's digits, however large they are; where results
are rounded to fewer bits the device's own is taken."""

from __future__ import annotations

import numpy as np
import pytest

import superopt
from superopt.compilation.cuda import load_compiler
from superopt.compilation.cuda.device import DOT_PRECISIONS
from superopt.kernels.triton.codegen import triton_text
from superopt.onnx_io.read.source import read_model
from tests.support.compilation.models import F, model
from tests.support.gpu.device import REAL
from tests.support.gpu.models import drawn, node

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("interpreted")]

ULP = 2.0**-23
X = np.concatenate([np.linspace(-87, 88.5, 4001), [-np.inf, -1000, 1000, np.inf, np.nan]])
WANTED = {
    "Exp": lambda x: np.exp(x),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Elu": lambda x: np.where(x < 0, np.exp(x) - 1, x),
}


def of(name: str) -> object:
    return model([node(name, "x", "y")], {"x": (F, [len(X)])}, ["y"], {})


@pytest.fixture
def rounded_once(interpreted: None) -> None:
    """Triton's interpreter rounds a product before it adds to it, up to 3.8."""
    import triton

    if not REAL and [*map(int, triton.__version__.split(".")[:2])] < [3, 9]:
        pytest.skip("the interpreter rounds twice where a GPU rounds once")


@pytest.mark.usefixtures("rounded_once")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, beyond its largest number
@pytest.mark.parametrize("name", WANTED)
def test_all_digits(name: str) -> None:
    x = X.astype(np.float32)
    got = superopt.compile(of(name), target="cuda").run({"x": x})["y"].astype(np.float64)
    wanted = WANTED[name](x.astype(np.float64))
    large = np.abs(wanted) > np.finfo(np.float32).max
    np.testing.assert_array_equal(got[large], wanted[large])  # infinite
    some = np.isfinite(wanted) & ~large
    scale = np.maximum(np.abs(wanted[some]), 1.0 if name == "Elu" else 1e-37)
    assert (np.abs(got[some] - wanted[some]) / scale).max() < 4 * ULP
    assert np.isnan(got[-1])


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16"])
def test_which_one_is_taken(precision: str) -> None:
    nodes = [node("MatMul", "x", "w", "a"), node("Exp", "a", "b"), node("MatMul", "b", "w", "y")]
    m = model(nodes, {"x": (F, [32, 32])}, ["y"], {"w": drawn(32, 32)})
    made = load_compiler.compile_model(read_model(m), precision).variant({}).program
    (text,) = (t for k in made.kernels.values() if "_exp(" in (t := of_text(k, precision)))
    assert ("tl.fma(" in text) == (precision == "fp32")
    assert ("tl.exp(x)" in text) == (precision != "fp32")


def of_text(kernel: object, precision: str) -> str:
    return triton_text(kernel, DOT_PRECISIONS[precision]).source  # type: ignore[arg-type]
