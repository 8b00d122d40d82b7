"""What `optimize` writes holds under `verify`; float64 values of opaque nodes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import superopt
from superopt.check.numeric_check import Reference
from superopt.check.opaque_regions import opaque_nodes
from superopt.loading.model import load_model
from superopt.loading.request import Request
from superopt.onnx_io.read.source import read_model
from superopt.verification.opaque_nodes import OpaqueNodeEvaluator, UnknownResults
from superopt.verification.original import prepare_original
from superopt.verification.output_comparison import output_reference

pytest.importorskip("onnxruntime")

RNG = np.random.default_rng(0)
# One element beside 1e3 makes the mean of squares cancel, as in models whose layer norms take the
# variance as E[x^2] - E[x]^2. The second Reshape is opaque: its operand has min(n, 10^9) elements.
LAYER_NORM = """
<ir_version: 8, opset_import: ["" : 17]>
norm (float[n, 512] x) => (float[n, 512] y)
{
  offset = Constant<value = float {30.0}> ()
  zero = Constant<value = float {0.0}> ()
  epsilon = Constant<value = float {0.000001}> ()
  part = Constant<value = float {0.001953125}> ()
  axis = Constant<value = int64[1] {1}> ()
  first = Constant<value = int64[1] {0}> ()
  last = Constant<value = int64[1] {1000000000}> ()
  one = Constant<value = int64[1] {1}> ()
  a = Relu(x)
  b = Relu(a)
  moved = Add(b, offset)
  sum = ReduceSum<keepdims = 0>(moved, axis)
  square = Mul(moved, moved)
  squares = ReduceSum<keepdims = 0>(square, axis)
  m = Mul(sum, part)
  mm = Mul(m, m)
  s = Mul(squares, part)
  difference = Sub(s, mm)
  variance = Max(zero, difference)
  size = Shape<end = 1>(x)
  column = Concat<axis = 0>(size, one)
  mean = Slice(m, first, last, first)
  mean_column = Reshape(mean, column)
  var_part = Slice(variance, first, last, first)
  var_column = Reshape(var_part, column)
  guarded = Add(var_column, epsilon)
  root = Sqrt(guarded)
  centered = Sub(moved, mean_column)
  y = Div(centered, root)
}
"""


def layer_norm() -> bytes:
    return bytes(parser.parse_model(LAYER_NORM).SerializeToString())


def reference(data: bytes, n: int, tmp_path) -> tuple[Reference, Mapping[str, np.ndarray]]:  # type: ignore[no-untyped-def]
    original = prepare_original(
        load_model(read_model(data)).model, Request(), tmp_path, lambda note: None
    )
    with original.session:
        found = output_reference(original, n)
    assert isinstance(found, Reference)
    return found, original.sets[n].feed.arrays


def test_outputs_behind_an_opaque_node_have_a_float64_reference(tmp_path) -> None:  # type: ignore[no-untyped-def]
    model = load_model(read_model(layer_norm())).model
    assert [n.op.title for n in opaque_nodes(model.graph)] == ["Reshape", "Reshape"]
    found, feed = reference(layer_norm(), 0, tmp_path)
    x = np.maximum(feed["x"].astype(np.float64), 0) + 30
    mean = x.mean(1, keepdims=True)
    epsilon = np.float64(np.float32(1e-6))
    wanted = (x - mean) / np.sqrt(np.square(x).mean(1, keepdims=True) - mean**2 + epsilon)
    assert not found.is_rounded
    np.testing.assert_allclose(found.exact[0], wanted, rtol=1e-9)
    assert found.native[0] is not None
    assert np.abs(found.native[0] - wanted).max() > 1e-6  # the model's own rounding


@pytest.mark.ci
@pytest.mark.one_in(5)
@pytest.mark.parametrize("seed", range(3))
def test_what_optimize_writes_is_not_refuted(seed: int) -> None:
    result = superopt.optimize(layer_norm(), budget=60.0, cost="roofline", seed=seed)
    assert result.changed
    verdict = superopt.verify(layer_norm(), result.model, method="numeric", seed=seed)
    assert verdict.decision == "agrees", verdict.reason


def one_node(
    kind: str, inputs: dict[str, np.ndarray], results: int = 1, **attributes: object
) -> bytes:
    """A model whose graph has one node, on inputs without sizes."""
    ports = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(a.dtype), [f"{name}{k}" for k in range(a.ndim)]
        )
        for name, a in inputs.items()
    ]
    names = [f"r{k}" for k in range(results)]
    out = [helper.make_tensor_value_info(n, TensorProto.UNDEFINED, None) for n in names]
    for port in out:
        port.ClearField("type")
    node = helper.make_node(kind, list(inputs), names, **attributes)
    graph = helper.make_graph([node], "g", ports, out)
    opset = helper.make_opsetid("", 18)
    made = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    return bytes(onnx.shape_inference.infer_shapes(made).SerializeToString())


X = RNG.standard_normal((3, 4))
ROWS = np.array([[2, 0, 1, 0]])
UPDATES = RNG.standard_normal((1, 4))


def scattered() -> np.ndarray:
    found = X.copy()
    np.add.at(found, (ROWS[0], np.arange(4)), UPDATES[0])
    return found


F32 = np.float32
OPAQUE_NODES = [
    (
        "a tensor expression at known sizes",
        one_node("Reshape", {"x": X.astype(F32), "s": np.array([2, -1])}),
        [X, np.array([2, -1])],
        X.reshape(2, 6),
    ),
    (
        "onnxruntime in float64",
        one_node(
            "ScatterElements",
            {"x": X.astype(F32), "i": ROWS, "u": UPDATES.astype(F32)},
            reduction="add",
        ),
        [X, ROWS, UPDATES],
        scattered(),
    ),
    (
        "onnxruntime, whose kernel has float64",
        one_node("TopK", {"x": X.astype(F32), "k": np.array([2])}, 2),
        [X, np.array([2])],
        np.sort(X, 1)[:, :-3:-1],
    ),
]


@pytest.mark.parametrize(
    ("data", "operands", "wanted"),
    [row[1:] for row in OPAQUE_NODES],
    ids=[row[0] for row in OPAQUE_NODES],
)
def test_opaque_nodes_are_computed_in_float64(
    data: bytes, operands: list[np.ndarray | None], wanted: np.ndarray
) -> None:
    source = read_model(data)
    (node,) = opaque_nodes(load_model(source).model.graph)
    found = OpaqueNodeEvaluator(source)(node, operands)
    assert found[0].dtype == np.float64
    np.testing.assert_allclose(found[0], wanted, rtol=1e-15)


def test_a_node_that_has_no_float64_kernel_is_rounded_alone() -> None:
    """A GRU: onnxruntime has it for float32, and its result is near the float64 one."""
    x, w = RNG.standard_normal((5, 2, 3)), RNG.standard_normal((1, 12, 3))
    r = RNG.standard_normal((1, 12, 4))
    arrays = {"x": x.astype(F32), "w": w.astype(F32), "r": r.astype(F32)}
    source = read_model(one_node("GRU", arrays, 2, hidden_size=4))
    (node,) = opaque_nodes(load_model(source).model.graph)
    _, last = OpaqueNodeEvaluator(source)(node, [x, w, r])
    h = np.zeros((2, 4))
    for step in x:
        gates = [step @ w[0, 4 * k : 4 * k + 4].T for k in range(3)]
        z, reset = (1 / (1 + np.exp(-gates[k] - h @ r[0, 4 * k : 4 * k + 4].T)) for k in range(2))
        new = np.tanh(gates[2] + (reset * h) @ r[0, 8:].T)
        h = (1 - z) * new + z * h
    assert last.dtype == np.float64
    assert 0 < np.abs(last[0] - h).max() < 1e-5


def test_values_that_an_if_reads_from_outside_are_given_to_it() -> None:
    branch = [
        helper.make_graph(
            [helper.make_node(kind, ["x", "x"], ["z"])],
            kind,
            [],
            [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)],
        )
        for kind in ("Add", "Mul")
    ]
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch[0], else_branch=branch[1])
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    source = read_model(made.SerializeToString())
    (carried,) = opaque_nodes(load_model(source).model.graph)
    for condition, wanted in ((True, X + X), (False, X * X)):
        (found,) = OpaqueNodeEvaluator(source)(carried, [np.array(condition), X])
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_what_nothing_computes_says_so() -> None:
    node = helper.make_node("Mystery", ["x"], ["y"], domain="nowhere")
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])],
        [numpy_helper.from_array(np.zeros(1, F32), "unused")],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("nowhere", 1)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    source = read_model(made.SerializeToString())
    (carried,) = opaque_nodes(load_model(source).model.graph)
    with pytest.raises(UnknownResults, match="Mystery"):
        OpaqueNodeEvaluator(source)(carried, [X[0]])
