"""How what has no better way is computed: loops, turned tiles; and what is left to onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import superopt
from superopt.kernels.loops.tile import For, Store
from tests.support.compilation.models import F, drawn, model, near, reference

pytest.importorskip("onnxruntime")


def test_a_column_is_computed_in_vectors() -> None:
    """What has one element along its last dimension has vectors along the one before."""
    m = model([helper.make_node("Tanh", ["x"], ["y"])], {"x": (F, [5, 70, 1, 1])}, ["y"], {})
    exe = superopt.compile(m)
    x = drawn(5, 70, 1, 1)
    near(exe(x=x), reference(m, {"x": x}))
    (step,) = exe.variants[()]
    (kernel,) = step.code.program.kernels.values()
    (inner,) = kernel.body
    while isinstance(inner, For):
        (inner,) = inner.body
    assert isinstance(inner, Store)
    assert [a.extent for a in inner.axes] == [64]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.bool_, np.float16, np.float64])
@pytest.mark.parametrize("shape", [(100, 70), (33, 129), (16, 16), (5, 3)])
def test_matrices_of_narrow_elements_are_transposed(kind: type, shape: tuple[int, int]) -> None:
    """In tiles of sixteen each way: one of 64 is more than registers hold (0.3 of the speed)."""
    given = (drawn(*shape) * 50).astype(kind)
    element = helper.np_dtype_to_tensor_dtype(given.dtype)
    nodes = [helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0])]
    exe = superopt.compile(model(nodes, {"x": (element, list(shape))}, ["y"], {}))
    np.testing.assert_array_equal(exe(x=given)["y"], given.T)
    (step,) = exe.variants[()]
    for o in step.code.program.options.values():
        assert o.algorithm != "transpose" or o["lanes"] <= 16


def test_what_kernels_do_slowly_runs_in_onnxruntime() -> None:
    nodes = [
        helper.make_node("DFT", ["x"], ["a"], axis=1),
        helper.make_node("Einsum", ["a", "w", "v"], ["y"], equation="bnc,cd,de->bne"),
    ]
    known = {"w": drawn(2, 8), "v": drawn(8, 4)}
    m = model(nodes, {"x": (F, [1, 64, 1])}, ["y"], known)
    m.opset_import[0].version = 17
    exe = superopt.compile(m)
    x = drawn(1, 64, 1)
    near(exe(x=x), reference(m, {"x": x}))
    assert {n.op.name for n, _ in exe.fallback_nodes({})} == {"DFT", "Einsum"}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("kind", [np.uint8, np.float16, np.float32])
@pytest.mark.parametrize("step", [2, 3, 4, 5])
@pytest.mark.parametrize("size", [3, 64, 65, 258])
def test_strided_operands(kind: type, step: int, size: int) -> None:
    """Up to four vectors are read whole, and elements picked from them."""
    given = (drawn(2, size) * 50).astype(kind)
    element = helper.np_dtype_to_tensor_dtype(given.dtype)
    nodes = [helper.make_node("Slice", ["x", "s", "e", "a", "t"], ["y"])]
    known = {"s": [1], "e": [size], "a": [1], "t": [step]}
    m = model(nodes, {"x": (element, [2, size])}, ["y"], {k: np.array(v) for k, v in known.items()})
    np.testing.assert_array_equal(superopt.compile(m)(x=given)["y"], given[:, 1::step])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", [np.uint8, np.float16, np.float32])
@pytest.mark.parametrize("channels", [2, 3, 5])
@pytest.mark.parametrize("sides", [(7, 9), (21, 32), (1, 1)])
def test_channels_last_images_are_transposed(
    kind: type, channels: int, sides: tuple[int, int]
) -> None:
    given = (drawn(1, *sides, channels) * 50).astype(kind)
    element = helper.np_dtype_to_tensor_dtype(given.dtype)
    nodes = [helper.make_node("Transpose", ["x"], ["y"], perm=[0, 3, 1, 2])]
    exe = superopt.compile(model(nodes, {"x": (element, [1, *sides, channels])}, ["y"], {}))
    np.testing.assert_array_equal(exe(x=given)["y"], given.transpose(0, 3, 1, 2))


@pytest.mark.one_in(8)
@pytest.mark.parametrize("op", ["Sum", "Max", "Mean"])
@pytest.mark.parametrize("count", [63, 130, 500])
def test_of_very_many_operands(op: str, count: int) -> None:
    """No expression is as deep as there are operands, so that there is a kernel."""
    names = [f"x{n}" for n in range(count)]
    m = model([helper.make_node(op, names, ["y"])], {n: (F, [3, 5]) for n in names}, ["y"], {})
    exe = superopt.compile(m)
    given = {n: drawn(3, 5) * (k % 7 - 3) for k, n in enumerate(names)}
    near(exe.run(given), reference(m, given))
    assert not exe.fallback_nodes({})
