"""Products with weights of few bits at accuracy_level 4: rows rounded to 8 bits in each block."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import superopt
from superopt.compilation.cpu.native_segment import NativeSegment
from superopt.kernels.algorithms.cpu.dot_products import block_scaled
from superopt.kernels.runtime.amx import integer_instructions
from superopt.kernels.runtime.engine import host
from tests.support.compilation.nbits import ROUNDING_BOUND, NBitsProduct

pytest.importorskip("onnxruntime")
needs_vnni = pytest.mark.skipif(
    integer_instructions(host()) not in block_scaled.INSTRUCTIONS, reason="needs VNNI"
)
ROWS = (1, 2, 7, 8, 9, 13, 16, 31, 40)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path / "cache"))


def algorithms(exe: superopt.Executable) -> set[str]:
    """The algorithms of the only step: nothing runs in onnxruntime."""
    (variant,) = exe.variants.values()
    (step,) = variant.steps
    assert isinstance(step, NativeSegment)
    return {o.algorithm for o in step.program.options.values()}


def round_rows(product: NBitsProduct, a: np.ndarray) -> np.ndarray:
    """The rows, each block of them rounded to 255 steps in float32."""
    blocks, one = -(-product.k // product.block), np.float32(1)
    padded = np.zeros((*a.shape[:-1], blocks * product.block), np.float32)
    padded[..., : product.k] = a
    parts = padded.reshape(*a.shape[:-1], blocks, product.block)
    most = np.maximum(np.abs(parts).max(-1, keepdims=True), np.float32(1e-35))
    step = most * np.float32(1 / 127)
    r = np.rint(parts * (one / step))
    assert np.abs(r).max() <= 127
    return (r.astype(np.float64) * step).reshape(padded.shape)[..., : product.k]


def check_rounded(product: NBitsProduct, a: np.ndarray, y: np.ndarray) -> None:
    """Compare with the float64 result of rounded rows, within the rounding of float32; and with
    that of the rows, within half a step of each element."""
    w, x, exact = product.weights, round_rows(product, a), a.astype(np.float64)
    c = product.arrays["c"].astype(np.float64) if product.bias else 0.0
    bound = ROUNDING_BOUND * (np.abs(x) @ np.abs(w) + np.abs(c))
    assert (np.abs(y - (x @ w + c)) <= bound).all()
    assert (np.abs(y - (exact @ w + c)) <= np.abs(exact - x) @ np.abs(w) + bound).all()
    steps = np.abs(exact - x).max(-1) / np.abs(exact).max(-1)
    assert (steps <= 0.501 / 127).all()


PRODUCTS = [
    NBitsProduct(64, 64, 16, level=4),
    NBitsProduct(256, 192, 32, level=4),
    NBitsProduct(256, 200, 128, zero="packed", level=4),
    NBitsProduct(70, 19, 32, zero="packed", bias=True, level=4),
    NBitsProduct(100, 35, 16, zero="float", level=4),
    NBitsProduct(192, 48, 64, zero="packed", bias=True, level=4),
    NBitsProduct(1024, 130, 256, zero="float", bias=True, level=4),
    NBitsProduct(96, 80, 32, bits=8, level=4),
    NBitsProduct(96, 80, 16, bits=8, zero="packed", level=4),
    NBitsProduct(96, 80, 16, bits=2, level=4),
    NBitsProduct(150, 40, 64, bits=2, zero="packed", level=4),
]


@needs_vnni
@pytest.mark.one_in(3)
@pytest.mark.parametrize("product", PRODUCTS, ids=str)
def test_products_are_of_rounded_rows(product: NBitsProduct) -> None:
    for n in ROWS:
        exe = superopt.compile(product.model([n]), threads=1)
        a = product.draw_rows([n])
        a[0] *= 1000
        a[-1, : product.block] = 0
        y = exe.run({"a": a})["y"]
        if n < block_scaled.MIN_ROWS:
            product.check(a, y)
            assert algorithms(exe) <= {"block_sums", "folded_zeros"}
        else:
            check_rounded(product, a, y)
            assert algorithms(exe) == {"block_int8"}


@needs_vnni
@pytest.mark.parametrize("threads", [1, 2])
def test_one_class_has_many_numbers_of_rows(threads: int) -> None:
    product = NBitsProduct(96, 72, 32, zero="packed", level=4)
    exe = superopt.compile(product.model(["b", "n"]), threads=threads, specialize="never")
    for lead in ([1, 20], [2, 11], [1, 9], [3, 40], [1, 1]):
        a = product.draw_rows(lead)
        y = exe.run({"a": a})["y"]
        if lead != [1, 1]:
            check_rounded(product, a, y)


@needs_vnni
def test_other_levels_and_classes_are_of_float32() -> None:
    for level, float_class, name in ((4, "E1", "block_gemm"), (1, "E2", "block_gemm")):
        product = NBitsProduct(96, 64, 32, level=level)
        exe = superopt.compile(product.model([20]), threads=1, float_class=float_class)
        a = product.draw_rows([20])
        product.check(a, exe.run({"a": a})["y"])
        assert algorithms(exe) == {name}


@needs_vnni
def test_results_of_exceptional_rows() -> None:
    """A row with an infinity has infinities of the right sign, one with NaN has NaN only, and other
    rows are as without them."""
    product = NBitsProduct(128, 64, 32, zero="float", level=4)
    exe = superopt.compile(product.model([10]), threads=1)
    a = product.draw_rows([10])
    clean = exe.run({"a": a})["y"]
    a[1, 5], a[2, 70], a[3, 9], a[4] = np.inf, -np.inf, np.nan, 0
    a[5], a[6], a[7, 3] = 1e-38, 1e-42, 3e38
    y = exe.run({"a": a})["y"]
    for row, k in ((1, 5), (2, 70)):
        np.testing.assert_array_equal(y[row], np.sign(a[row, k] * product.weights[k]) * np.inf)
    assert np.isnan(y[3]).all()
    assert not y[4].any()
    assert np.isfinite(y[5:]).all()
    assert np.abs(y[5:7]).max() < 1e-36
    wanted = 3e38 * product.weights[3]
    np.testing.assert_allclose(y[7], wanted, rtol=1e-4, atol=1e-3 * np.abs(wanted).max())
    np.testing.assert_array_equal(y[[0, 8, 9]], clean[[0, 8, 9]])


@needs_vnni
@pytest.mark.parametrize("kind", [onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16])
def test_narrow_floats_are_rounded(kind: int) -> None:
    product = NBitsProduct(128, 48, 32, zero="packed", bias=True, kind=kind, level=4)
    exe = superopt.compile(product.model([20]), threads=1)
    a = product.draw_rows([20])
    y = exe.run({"a": a})["y"]
    wanted = round_rows(product, a.astype(np.float32)) @ product.weights
    wanted = wanted + product.arrays["c"].astype(np.float64)
    np.testing.assert_allclose(y.astype(np.float64), wanted, rtol=0.01, atol=0.01)
    assert "block_int8" in algorithms(exe)


@pytest.mark.parametrize(("k", "rows"), [(128, 20), (70, 9), (128, 1)])
def test_accuracy_is_that_of_the_level(k: int, rows: int) -> None:
    """Errors of rounded rows are beside those of the original, rounded alike."""
    product = NBitsProduct(k, 64, 32, level=4)
    exe = superopt.compile(product.model(["n"]), threads=1)
    (found,) = exe.accuracy({"n": rows}).outputs
    assert not found.failure
    assert (found.original_max_error > 1e-3) == (rows > 1)
    exact = NBitsProduct(k, 64, 32, level=1)
    (found,) = superopt.compile(exact.model([rows]), threads=1).accuracy().outputs
    assert found.original_max_error < 1e-4
