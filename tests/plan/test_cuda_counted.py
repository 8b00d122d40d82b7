"""On a GPU, numbers that are integers', though they are floats for a while: halves and tf32 have
not all of them, and what they are compared with, or become again, would be another one."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import superopt
from superopt.te.dtype import F16
from tests.plan.gpu_models import I64, drawn, node
from tests.plan.test_compile import F, model, reference
from tests.plan.test_cuda import interpreted, near  # noqa: F401

pytestmark = pytest.mark.gpu
X = np.array([4098, 1003, 16383, 6, 16382, 1027])
INTEGER = TensorProto.INT64
KNOWN = {
    "half": np.array(0.5, np.float32), "first": np.array(0), "some": np.arange(6, dtype="f") + 4097,
}  # fmt: skip
W = drawn(9000, 4)


def of(*nodes: onnx.NodeProto, more: tuple[str, ...] = ()) -> onnx.ModelProto:
    used = {i for n in nodes for i in n.input}
    known = {n: x for n, x in {**KNOWN, "w": W}.items() if n in used}
    return model([node("Cast", "x", "a", to=F), *nodes], {"x": (I64, [6])}, ["y", *more], known)


MODELS = {
    "positions": of(
        node("CumSum", "a", "first", "s"), node("Mul", "s", "half", "b"),
        node("Cast", "b", "y", to=INTEGER),
    ),
    "places": of(
        node("ReduceMax", "a", "m"), node("Sub", "m", "a", "s"), node("Mul", "s", "half", "b"),
        node("Cast", "b", "j", to=INTEGER), node("Gather", "w", "j", "y", axis=0),
    ),
    "the largest": of(
        node("ReduceMax", "a", "m"), node("Equal", "a", "m", "y"),
        node("ArgMax", "a", "i", axis=0, keepdims=0), more=("i",),
    ),
    "beside others": of(
        node("ReduceMax", "a", "m"), node("Sub", "a", "m", "s"), node("Add", "s", "some", "b"),
        node("CumSum", "b", "first", "c"), node("Cast", "c", "y", to=INTEGER),
    ),
}  # fmt: skip


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16"])
@pytest.mark.parametrize("name", MODELS)
def test_they_are_exact(name: str, precision: str) -> None:
    m = MODELS[name]
    got = superopt.compile(m, target="cuda", precision=precision).run({"x": X})
    wanted = reference(m, {"x": X})
    for n, x in wanted.items():
        if x.dtype == np.float32:
            near({n: got[n]}, {n: x}, precision)
        else:
            np.testing.assert_array_equal(got[n], x)


def test_floats_beside_them_are_short() -> None:
    """Counts that are put beside what a product is, which is read in halves by the next one."""
    nodes = [
        node("MatMul", "x", "v", "h"), node("Relu", "h", "r"), node("Cast", "i", "a", to=F),
        node("Concat", "r", "a", "c", axis=1), node("ReduceMax", "a", "m"),
        node("Equal", "a", "m", "z"), node("MatMul", "c", "u", "y"),
    ]  # fmt: skip
    known = {"v": drawn(64, 96), "u": drawn(128, 64)}
    given = {"x": (F, [256, 64]), "i": (I64, [256, 32])}
    exe = superopt.compile(model(nodes, given, ["y", "z"], known), target="cuda", precision="fp16")
    (part,) = exe.variant({}).parts
    kinds = {str(b.dtype) for k in part.running.calls for b in k.kernel.params if b.shape[0] == 256}
    assert "f16" in kinds
    written = [k.kernel.params[-1] for k in part.running.calls]
    assert all(t.dtype == F16 for t in written if t.shape[-1] in (96, 128))
