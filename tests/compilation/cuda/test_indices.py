"""Places that kernels on a GPU compute: beyond 32 bits, and of what is empty."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import superopt
from superopt.compilation.cuda import load_compiler
from superopt.errors import ModelError
from superopt.onnx_io.read.source import read_model
from tests.support.compilation.models import NONE, F, model, of_none, reference
from tests.support.gpu.compilation import feeds, near
from tests.support.gpu.models import I64, drawn, node, resized

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("interpreted")]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("scale", "size"), [(3.3, 2), (0.7, 11), (1.1, 800), (0.3333333, 1500)])
@pytest.mark.parametrize("how", ["linear", "nearest", "cubic"])
def test_a_scale_that_is_no_small_fraction(how: str, scale: float, size: int) -> None:
    """Places are whole numbers over the scale's denominator: some 2^24, and its square."""
    size = max(size, 4) if how == "cubic" else size
    m = resized(scale, size, mode=how)
    given = feeds(m)
    near(load_compiler.compile_model(read_model(m)).run(given), reference(m, given), "fp32")


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
    exe = load_compiler.compile_model(read_model(m))
    got, wanted = exe.run(given), reference(m, given)
    assert [(x.shape, x.dtype) for x in got.values()] == [
        (x.shape, x.dtype) for x in wanted.values()
    ]
    for name, x in wanted.items():
        np.testing.assert_array_equal(got[name], x)
    launches = [x for p in exe.variant({}).kernel_steps for x in p.gpu_program.launches]
    assert all(programs for _, _, programs, _, _ in launches)


@pytest.mark.parametrize("name", NONE)
def test_sizes_of_none(name: str) -> None:
    exe = load_compiler.compile_model(read_model(of_none(name)))
    for n in (2, 0, 1):
        x = drawn(n, 4)
        got, wanted = exe.run({"x": x}), reference(of_none(name), {"x": x})
        assert got["y"].shape == wanted["y"].shape
        if n:
            near(got, wanted, "fp32")


def taken(op: str, x: list, shape: list, **how: object) -> onnx.ModelProto:
    given = {"x": (F, x), "i": (I64, shape)}
    more = {"u": (F, shape)} if op == "ScatterElements" else {}
    return model([node(op, *given, *more, "y", **how)], given | more, ["y"], {})


# Sizes of x and of indices that are right, and those where no index is.
NOWHERE = {
    "Gather": (taken("Gather", ["n", 3], ["k"], axis=0), {"n": 2, "k": 4}, {"n": 0, "k": 4}),
    "GatherND": (taken("GatherND", ["n", 3], ["k", 1]), {"n": 2, "k": 4}, {"n": 0, "k": 4}),
    "elements of none": (
        taken("GatherElements", ["n", 3], ["k", 3], axis=0), {"n": 2, "k": 4}, {"n": 0, "k": 4},
    ),
    "elements beside": (
        taken("GatherElements", ["n", 3], ["k", 2], axis=1), {"n": 4, "k": 4}, {"n": 1, "k": 4},
    ),
    "scattered": (
        taken("ScatterElements", ["n", 3], ["k", 2], axis=1), {"n": 4, "k": 4}, {"n": 1, "k": 4},
    ),
}  # fmt: skip


@pytest.mark.one_in(2)
@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("name", NOWHERE)
def test_where_no_index_can_be_in_range(name: str, target: str) -> None:
    """What lies beyond a tensor is nobody's result."""
    m, right, wrong = NOWHERE[name]
    exe = superopt.compile(m, target=target)

    def given(sizes: dict[str, int]) -> dict[str, np.ndarray]:
        out = {}
        for v in m.graph.input:
            t = v.type.tensor_type
            shape = [sizes.get(d.dim_param, d.dim_value) for d in t.shape.dim]
            out[v.name] = drawn(*shape) if t.elem_type == F else np.zeros(shape, np.int64)
        return out

    for _ in range(2):
        near(exe.run(given(right)), reference(m, given(right)), "fp32")
        with pytest.raises(ModelError):
            exe.run(given(wrong))
    none = {**wrong, "k": 0}
    assert exe.run(given(none))["y"].shape == reference(m, given(none))["y"].shape


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("behind", ["", "ReduceMean", "GlobalMaxPool"])
def test_a_window_that_is_larger(behind: str, target: str) -> None:
    """What reads the result may have a shape that does not tell."""
    nodes = [node("Conv", "x", "w", "h"), node(behind or "Identity", "h", "y")]
    m = model(nodes, {"x": (F, [1, 3, "n"])}, ["y"], {"w": drawn(2, 3, 3)})
    exe = superopt.compile(m, target=target)
    for _ in range(2):
        with pytest.raises(ModelError, match=r"(h|y) has shape \[1, 2, -1\]\na window is larger"):
            exe.run({"x": drawn(1, 3, 1)})
        near(exe.run({"x": drawn(1, 3, 5)}), reference(m, {"x": drawn(1, 3, 5)}), "fp32")
