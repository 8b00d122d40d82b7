"""Places that kernels on a GPU compute: beyond 32 bits, and of what is empty."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from superopt.onnx_io.source import read
from superopt.pipeline import cuda
from tests.plan.gpu_models import drawn, node
from tests.plan.test_compile import F, model, reference
from tests.plan.test_cuda import feeds, interpreted, near  # noqa: F401
from tests.plan.test_sizes import NONE, of_none

pytestmark = pytest.mark.gpu


def resized(scale: float, size: int, **how: object) -> onnx.ModelProto:
    nodes = [node("Resize", "x", "", "s", "y", **how)]
    scales = np.array([1, 1, 1, scale], np.float32)
    return model(nodes, {"x": (F, [1, 2, 5, size])}, ["y"], {"s": scales})


@pytest.mark.parametrize(("scale", "size"), [(3.3, 2), (0.7, 11), (1.1, 800), (0.3333333, 1500)])
@pytest.mark.parametrize("how", ["linear", "nearest", "cubic"])
def test_a_scale_that_is_no_small_fraction(how: str, scale: float, size: int) -> None:
    """Places are whole numbers over the scale's denominator: some 2^24, and its square."""
    size = max(size, 4) if how == "cubic" else size
    m = resized(scale, size, mode=how)
    given = feeds(m)
    near(cuda.compile(read(m)).run(given), reference(m, given), "fp32")


def empty_product() -> onnx.ModelProto:
    return model([node("MatMul", "x", "w", "y")], {"x": (F, [0, 3])}, ["y"], {"w": drawn(3, 4)})


def no_terms() -> onnx.ModelProto:
    return model([node("MatMul", "x", "w", "y")], {"x": (F, [5, 0])}, ["y"],
                 {"w": np.zeros((0, 4), np.float32)})  # fmt: skip


def empty_constant() -> onnx.ModelProto:
    none = np.zeros((0, 4), np.float32)
    nodes = [node("Add", "x", "c", "a"), node("Relu", "a", "y")]
    return model(nodes, {"x": (F, [1, 4])}, ["y"], {"c": none})


def beside_what_is_empty() -> onnx.ModelProto:
    none = np.zeros((2, 0), np.float32)
    nodes = [node("Relu", "x", "a"), node("Concat", "a", "c", "b", axis=1), node("Neg", "b", "y")]
    return model(nodes, {"x": (F, [2, 4])}, ["y"], {"c": none})


def nothing_beside_nothing() -> onnx.ModelProto:
    nodes = [node("Relu", "x", "a"), node("Concat", "a", "a", "b", axis=1), node("Neg", "b", "y")]
    return model(nodes, {"x": (F, [2, 0])}, ["y"], {})


@pytest.mark.parametrize(
    "make",
    [nothing_beside_nothing, empty_product, no_terms, empty_constant, beside_what_is_empty],
    ids=lambda f: f.__name__,
)
def test_what_is_empty(make: object) -> None:
    """No kernel is launched of no programs, which a driver refuses."""
    m = make()  # type: ignore[operator]
    (x,) = m.graph.input
    given = {"x": drawn(*(d.dim_value for d in x.type.tensor_type.shape.dim))}
    exe = cuda.compile(read(m))
    got, wanted = exe.run(given), reference(m, given)
    assert [(x.shape, x.dtype) for x in got.values()] == [
        (x.shape, x.dtype) for x in wanted.values()
    ]
    for name, x in wanted.items():
        np.testing.assert_array_equal(got[name], x)
    launches = [x for p in exe.variant({}).parts for x in p.running.launches]
    assert all(programs for _, _, programs, _, _ in launches)


@pytest.mark.parametrize("name", NONE)
def test_sizes_of_none(name: str) -> None:
    exe = cuda.compile(read(of_none(name)))
    for n in (2, 0, 1):
        x = drawn(n, 4)
        got, wanted = exe.run({"x": x}), reference(of_none(name), {"x": x})
        assert got["y"].shape == wanted["y"].shape
        if n:
            near(got, wanted, "fp32")
