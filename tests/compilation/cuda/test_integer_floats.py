"""On a GPU, numbers that are integers', though they are floats for a while: halves and tf32 have
not all of them, and what they are compared with, or become again, would be another one."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import superopt
from superopt.te.expr.dtype import BF16, F16
from tests.support.compilation.models import F, model, reference
from tests.support.gpu.compilation import near
from tests.support.gpu.models import I64, drawn, node

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("interpreted")]
X = np.array([4098, 1003, 16383, 6, 16382, 1027])
INTEGER = TensorProto.INT64
KNOWN = {
    "half": np.array(0.5, np.float32), "first": np.array(0), "some": np.arange(6, dtype="f") + 4097,
    "near": (X + np.array([1, 0, -1, 2, 1, 0])).astype("f"), "at": np.arange(6)[::-1].copy(),
    "none": np.array(0, "f"), "places": (X[::-1] % 8999).astype("f"),
    "one": np.array(1.5, "f"), "other": np.array(2.5, "f"),
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
    # Constants that a kernel reads where it decides.
    "a sum": of(node("Add", "a", "near", "b"), node("Cast", "b", "y", to=INTEGER)),
    "a product": of(node("Mul", "half", "near", "b"), node("Add", "a", "b", "c"),
                    node("Cast", "c", "y", to=INTEGER)),
    "equal": of(node("Equal", "a", "near", "b"), node("Where", "b", "one", "other", "y")),
    "less": of(node("Less", "a", "near", "y")),
    "of a table": of(node("Gather", "places", "at", "b"), node("Add", "b", "a", "s"),
                     node("Sub", "s", "a", "c"), node("Cast", "c", "j", to=INTEGER),
                     node("Gather", "w", "j", "y")),
    "signs": of(node("Sub", "a", "near", "b"), node("Sign", "b", "y")),
    "rests": of(node("Mod", "a", "near", "y", fmod=1)),
    "an output, too": of(node("Sub", "a", "near", "b"), node("GreaterOrEqual", "b", "none", "y"),
                         more=("b",)),
}  # fmt: skip


@pytest.mark.round_robin(4)
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


def test_their_report() -> None:
    """Integers are those of float64, though the original's are others in halves."""
    exe = superopt.compile(MODELS["a sum"], target="cuda", precision="fp16")
    assert exe.accuracy().passed


@pytest.mark.one_in(3)
@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16"])
@pytest.mark.parametrize("fn", ["Sin", "Cos", "Tan"])
def test_frequencies_are_exact(fn: str, precision: str) -> None:
    """By which positions are multiplied, and what is added, where one sine alone reads them: angles
    of many turns."""
    f, turned = np.exp(-np.arange(16) / 4).astype("f"), np.linspace(0, 3, 16, dtype="f")
    nodes = [node("Cast", "x", "a", to=F), node("Mul", "a", "f", "b"), node("Add", "b", "p", "c"),
             node(fn, "c", "y")]  # fmt: skip
    m = model(nodes, {"x": (I64, [3, 1])}, ["y"], {"f": f, "p": turned})
    x = np.array([[1], [500], [3999]])
    got = superopt.compile(m, target="cuda", precision=precision).run({"x": x})["y"]
    angle = (x.astype("f") * f + turned).astype(np.float64)
    wanted = {"Sin": np.sin, "Cos": np.cos, "Tan": np.tan}[fn](angle)
    slope = 1 + wanted**2 if fn == "Tan" else 1.0
    assert (np.abs(got - wanted) / slope).max() < 2e-3  # 3999 has 11 digits less than a float32


@pytest.mark.parametrize("precision", ["tf32", "fp16", "bf16"])
def test_a_weight_that_is_compared_is_short_in_its_products(precision: str) -> None:
    nodes = [node("MatMul", "x", "w", "h"), node("Less", "t", "w", "z"), node("Relu", "h", "r"),
             node("MatMul", "r", "w", "y")]  # fmt: skip
    known = {"w": drawn(64, 64)}
    m = model(nodes, {"x": (F, [64, 64]), "t": (F, [64, 64])}, ["y", "z"], known)
    feeds = {"x": drawn(64, 64, of="x"), "t": known["w"]}  # none is less than itself
    exe = superopt.compile(m, target="cuda", precision=precision)
    assert not exe.run(feeds)["z"].any()
    (part,) = exe.variant({}).kernel_steps
    read = [{p.dtype for p in c.kernel.params[:-1]} for c in part.gpu_program.calls]
    assert precision == "tf32" or any(kinds <= {F16, BF16} for kinds in read)


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
    (part,) = exe.variant({}).kernel_steps
    kinds = {
        str(b.dtype) for k in part.gpu_program.calls for b in k.kernel.params if b.shape[0] == 256
    }
    assert "f16" in kinds
    written = [k.kernel.params[-1] for k in part.gpu_program.calls]
    assert all(t.dtype == F16 for t in written if t.shape[-1] in (96, 128))
