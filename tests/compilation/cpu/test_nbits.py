"""Products with weights of 2, 4 and 8 bits (MatMulNBits)."""

from __future__ import annotations

import os
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import superopt
from superopt.compilation.cpu.native_segment import NativeSegment
from tests.support.compilation.guarded_memory import run_guarded
from tests.support.compilation.models import near, reference
from tests.support.compilation.nbits import NBitsProduct

pytest.importorskip("onnxruntime")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path / "cache"))


def compile_model(m: onnx.ModelProto, threads: int = 1) -> superopt.Executable:
    return superopt.compile(m, threads=threads)


def native_step(exe: superopt.Executable) -> NativeSegment:
    """The only step: nothing runs in onnxruntime."""
    (variant,) = exe.variants.values()
    (step,) = variant.steps
    assert isinstance(step, NativeSegment)
    return step


PRODUCTS = [
    (NBitsProduct(64, 64, 16), (1, 2, 3, 5, 16, 33)),
    (NBitsProduct(256, 192, 32), (1, 4, 7, 19)),
    (NBitsProduct(256, 200, 128, zero="packed"), (1, 3, 17)),
    (NBitsProduct(70, 19, 32, zero="packed", bias=True), (1, 2, 6, 20)),
    (NBitsProduct(100, 7, 16, zero="float"), (1, 9, 18)),
    (NBitsProduct(33, 1, 16, bias=True), (1, 3, 16)),
    (NBitsProduct(1024, 130, 256, zero="float", bias=True), (1, 4, 70)),
    (NBitsProduct(96, 80, 32, bits=8), (1, 5, 16)),
    (NBitsProduct(96, 80, 16, bits=8, zero="packed"), (1, 4, 16)),
    (NBitsProduct(96, 80, 16, bits=2), (1, 5, 16)),
    (NBitsProduct(150, 40, 64, bits=2, zero="packed"), (1, 3, 16)),
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("product", "rows"), PRODUCTS, ids=str)
def test_products_are_within_rounding(product: NBitsProduct, rows: tuple[int, ...]) -> None:
    for m in rows:
        exe = compile_model(product.model([m]))
        a = product.draw_rows([m])
        product.check(a, exe.run({"a": a})["y"])
        native_step(exe)


def test_rounding_bound_detects_one_wrong_field() -> None:
    """The bound of the tests is below a change of one weight by one step."""
    product = NBitsProduct(256, 192, 32)
    a = product.draw_rows([4])
    y = (a.astype(np.float64) @ product.weights).astype(np.float32)
    product.check(a, y)
    y[1, 3] += np.abs(a[1]).max() * product.arrays["s"].min()
    with pytest.raises(AssertionError):
        product.check(a, y)


@pytest.mark.parametrize("product", [PRODUCTS[3][0], PRODUCTS[6][0]], ids=str)
@pytest.mark.parametrize(
    ("first", "rows"),
    [
        (1, range(1, 2)),
        (2, range(2, 4)),
        (9, range(4, 16)),
        (16, range(6, 64)),
        (70, range(6, 140)),
    ],
)
def test_one_class_computes_all_sizes_of_its_level(
    product: NBitsProduct, first: int, rows: range
) -> None:
    exe = superopt.compile(product.model(["n"]), threads=2, specialize="never")
    exe.run({"a": product.draw_rows([first])})
    (only,) = exe.size_classes.classes
    admitted = [n for n in range(1, 140) if only.formulas.admits({"n": n})]
    assert {*rows} <= {*admitted}
    for n in admitted:
        a = product.draw_rows([n])
        product.check(a, exe.run({"a": a})["y"])
    assert len(exe.size_classes.classes) == 1


def test_batches_share_weights() -> None:
    product = NBitsProduct(64, 48, 32)
    exe = superopt.compile(product.model(["b", "n"]), threads=2, specialize="never")
    for lead in ([1, 1], [3, 1], [1, 5], [2, 20], [5, 70]):
        a = product.draw_rows(lead)
        product.check(a, exe.run({"a": a})["y"])


def test_programs_of_all_levels_share_packed_weights() -> None:
    """Weights are in memory once, in 4 bits: beside them are the scales."""
    product = NBitsProduct(1024, 1024, 128)
    programs, held = [], dict[int, int]()
    for n in (1, 2, 9, 20):
        one = superopt.compile(product.model([n]), threads=1)
        one.run({"a": product.draw_rows([n])})
        programs.append(one)
        arrays = native_step(one).code.constants.arrays
        held |= {x.ctypes.data: x.nbytes for x in arrays}
    least = product.arrays["b"].nbytes + product.arrays["s"].nbytes
    assert least <= sum(held.values()) <= 1.02 * least


@pytest.mark.skipif(not hasattr(os, "fork"), reason="memory is guarded by mprotect")
@pytest.mark.parametrize("rows", [1, 3, 18])
@pytest.mark.parametrize("product", [PRODUCTS[3][0], PRODUCTS[5][0], PRODUCTS[10][0]], ids=str)
def test_nothing_is_read_beyond_arrays(product: NBitsProduct, rows: int) -> None:
    exe = compile_model(product.model([rows]))
    feeds = {"a": product.draw_rows([rows])}
    exe.run(feeds)
    step = native_step(exe)
    sys.stdout.flush()
    child = os.fork()
    if child == 0:  # a fault ends it
        code = 1
        try:
            product.check(feeds["a"], run_guarded(step, exe.input_arrays(feeds))["y"])
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(
    ("float_class", "algorithm"), [("E1", "block_sums"), ("E2", "folded_zeros")]
)
@pytest.mark.parametrize("zero", ["packed", "float"])
def test_zero_points_are_folded_where_products_may_be_distributed(
    zero: str, float_class: str, algorithm: str
) -> None:
    product = NBitsProduct(224, 72, 32, zero=zero)
    exe = superopt.compile(product.model([2]), threads=1, float_class=float_class)
    a = product.draw_rows([2]) + np.float32(3)  # sums of rows are not small
    product.check(a, exe.run({"a": a})["y"])
    options = native_step(exe).program.options.values()
    assert [o.algorithm for o in options] == [algorithm]


@pytest.mark.parametrize("float_class", ["E1", "E2"])
@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_narrow_floats_are_rounded_once(kind: int, float_class: str) -> None:
    product = NBitsProduct(128, 48, 32, zero="packed", bias=True, kind=kind)
    for n in (1, 5, 20):
        exe = superopt.compile(product.model([n]), threads=1, float_class=float_class)
        a = product.draw_rows([n])
        product.check(a, exe.run({"a": a})["y"])
        native_step(exe)


def test_other_contrib_operators_are_decomposed_beside_it() -> None:
    product = NBitsProduct(64, 64, 16)
    m = product.model([3])
    norm = helper.make_node("SkipLayerNormalization", ["a", "r", "g", ""], ["x"], "norm")
    norm.domain = "com.microsoft"
    m.graph.node.insert(0, norm)
    m.graph.node[1].input[0] = "x"
    m.graph.input.append(helper.make_tensor_value_info("r", TensorProto.FLOAT, [3, 64]))
    m.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(64, np.float32), "g"))
    feeds = {"a": product.draw_rows([3]), "r": product.draw_rows([1])}
    feeds["r"] = np.repeat(feeds["r"], 3, axis=0)
    exe = compile_model(m)
    near(exe.run(feeds), reference(m, feeds))
    native_step(exe)


def test_a_result_is_scaled_and_added_in_its_kernel() -> None:
    """What follows a product is computed where its sum is complete."""
    product = NBitsProduct(64, 40, 16)
    m = product.model([5])
    m.graph.node[0].output[0] = "p"
    m.graph.node.extend([
        helper.make_node("Sigmoid", ["p"], ["q"]), helper.make_node("Mul", ["p", "q"], ["y"]),
    ])  # fmt: skip
    exe = compile_model(m)
    feeds = {"a": product.draw_rows([5])}
    near(exe.run(feeds), reference(m, feeds))
    assert len(native_step(exe).program.kernels) == 1


@pytest.mark.parametrize("dropped", [["b"], ["s", "z"]])
def test_weights_that_are_inputs_run_in_onnxruntime(dropped: list[str]) -> None:
    product = NBitsProduct(64, 24, 16, zero="packed")
    exe = compile_model(product.model([3], dropped))
    feeds = {"a": product.draw_rows([3]), **{name: product.arrays[name] for name in dropped}}
    product.check(feeds["a"], exe.run(feeds)["y"])
    assert len(exe.fallback_nodes({})) == 1


@pytest.mark.parametrize("is_regular", [True, False])
def test_groups_that_are_no_blocks_of_rows_run_in_onnxruntime(is_regular: bool) -> None:
    """g_idx has kernels if each group has as many rows as a block."""
    product = NBitsProduct(64, 24, 16)
    m = product.model([2])
    order = np.arange(64, dtype=np.int32) // 16 if is_regular else np.zeros(64, np.int32)
    m.graph.initializer.append(onnx.numpy_helper.from_array(order, "order"))
    m.graph.node[0].input.extend(["", "order"])
    feeds = {"a": product.draw_rows([2])}
    exe = compile_model(m)
    want = reference(m, feeds)["y"]
    np.testing.assert_allclose(exe.run(feeds)["y"], want, rtol=0, atol=1e-5 * np.abs(want).max())
    assert len(exe.fallback_nodes({})) == (not is_regular)
