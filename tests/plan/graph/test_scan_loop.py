"""Scan and Loop nodes as loops, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import superopt
from superopt import ort
from tests.support.compilation.recurrent import loops

FLOAT = TensorProto.FLOAT
Feeds = dict[str, np.ndarray]


def made(
    nodes: list[onnx.NodeProto], inputs: dict[str, tuple[int, ...]], outputs: list[str],
    known: dict[str, np.ndarray] | None = None, opset: int = 17,
) -> tuple[onnx.ModelProto, Feeds]:  # fmt: skip
    graph = helper.make_graph(
        nodes, "scans",
        [helper.make_tensor_value_info(k, FLOAT, s) for k, s in inputs.items()],
        [helper.make_tensor_value_info(k, FLOAT, None) for k in outputs],
        [numpy_helper.from_array(v, k) for k, v in (known or {}).items()],
    )  # fmt: skip
    m = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    rng = np.random.default_rng(0)
    feeds = {k: rng.standard_normal(s).astype(np.float32) for k, s in inputs.items()}
    return onnx.shape_inference.infer_shapes(m), feeds


def body(nodes: list[onnx.NodeProto], inputs: list[Any], outputs: list[str]) -> onnx.GraphProto:
    infos = [i if isinstance(i, onnx.ValueInfoProto) else value(i) for i in inputs]
    return helper.make_graph(nodes, "body", infos, [value(k) for k in outputs])


def value(name: str, kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, None)


def same(m: onnx.ModelProto, feeds: Feeds, threads: int = 1) -> superopt.Executable:
    exe = superopt.compile(m, threads=threads)
    wanted = ort.run(ort.load_session(m.SerializeToString()), feeds)
    for _ in range(2):
        for name, x in exe.run(feeds).items():
            np.testing.assert_allclose(x, wanted[name], rtol=1e-5, atol=1e-5)
    return exe


def sums(**attrs: Any) -> tuple[onnx.ModelProto, Feeds]:
    """Running sums of a tensor's slices, and their squares."""
    inner = body(
        [
            helper.make_node("Add", ["s", "x"], ["s1"]),
            helper.make_node("Identity", ["s1"], ["y"]),
            helper.make_node("Mul", ["s1", "s1"], ["z"]),
        ],
        ["s", "x"], ["s1", "y", "z"],
    )  # fmt: skip
    node = helper.make_node(
        "Scan", ["start", "xs"], ["last", "ys", "zs"], body=inner, num_scan_inputs=1, **attrs
    )
    axis = attrs.get("scan_input_axes", [0])[0] % 3
    shape = [4, 5]
    shape.insert(axis, 9)
    return made([node], {"start": (4, 5), "xs": tuple(shape)}, ["last", "ys", "zs"])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "attrs",
    [
        {},
        {"scan_input_directions": [1]},
        {"scan_output_directions": [1, 0]},
        {"scan_input_axes": [1]},
        {"scan_input_axes": [-1], "scan_output_axes": [2, 0]},
        {"scan_input_axes": [2], "scan_input_directions": [1], "scan_output_axes": [1, -1]},
    ],
    ids=str,
)
def test_scan(attrs: dict[str, Any], threads: int) -> None:
    exe = same(*sums(**attrs), threads)
    assert not exe.fallback_nodes({})
    assert [c.steps for c in loops(exe)] == [9]


def test_states_that_change_places_and_one_that_stays() -> None:
    inner = body(
        [
            helper.make_node("Identity", ["b"], ["a1"]),
            helper.make_node("Add", ["a", "x"], ["b1"]),
            helper.make_node("Identity", ["c"], ["c1"]),
            helper.make_node("Sub", ["a", "c"], ["y"]),
        ],
        ["a", "b", "c", "x"], ["a1", "b1", "c1", "y"],
    )  # fmt: skip
    node = helper.make_node(
        "Scan", ["a0", "b0", "c0", "xs"], ["a9", "b9", "c9", "ys"], body=inner, num_scan_inputs=1
    )
    for steps in (1, 6, 7):
        shapes = {"a0": (3,), "b0": (3,), "c0": (3,), "xs": (steps, 3)}
        exe = same(*made([node], shapes, ["a9", "b9", "c9", "ys"]))
        assert not exe.fallback_nodes({})


def test_a_body_reads_values_from_around_it() -> None:
    """Weights, a shape, and what is computed before."""
    known = {
        "w": np.random.default_rng(1).standard_normal((6, 6)).astype(np.float32) * np.float32(0.3),
        "shape": np.array([2, 6]),
    }
    inner = body(
        [
            helper.make_node("MatMul", ["h", "w"], ["hw"]),
            helper.make_node("Reshape", ["x", "shape"], ["x2"]),
            helper.make_node("Sum", ["hw", "x2", "shift"], ["s"]),
            helper.make_node("Tanh", ["s"], ["h1"]),
            helper.make_node("Identity", ["h1"], ["y"]),
        ],
        ["h", "x"], ["h1", "y"],
    )  # fmt: skip
    nodes = [
        helper.make_node("Exp", ["t"], ["shift"]),
        helper.make_node("Scan", ["h0", "xs"], ["h9", "ys"], body=inner, num_scan_inputs=1),
        helper.make_node("Relu", ["ys"], ["z"]),
        helper.make_node("Add", ["h9", "shift"], ["u"]),
    ]
    exe = same(*made(nodes, {"t": (2, 6), "h0": (2, 6), "xs": (20, 12)}, ["z", "u", "h9"], known))
    assert not exe.fallback_nodes({})
    assert len(loops(exe)) == 1


def test_steps_without_states_are_shared_out() -> None:
    inner = body(
        [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Relu", ["p"], ["y"])],
        ["x"], ["y"],
    )  # fmt: skip
    known = {"w": np.random.default_rng(1).standard_normal((5, 7)).astype(np.float32)}
    node = helper.make_node("Scan", ["xs"], ["ys"], body=inner, num_scan_inputs=1)
    exe = same(*made([node], {"xs": (40, 3, 5)}, ["ys"], known), threads=2)
    (loop,) = loops(exe)
    assert (loop.parallel, loop.chunks) == (True, 40)


@pytest.mark.parametrize("condition", ["", "on"])
def test_loop(condition: str) -> None:
    """With the step's number, a condition that stays, and results of slices."""
    inner = body(
        [
            helper.make_node("Identity", ["going"], ["goes"]),
            helper.make_node("Cast", ["n"], ["f"], to=FLOAT),
            helper.make_node("Mul", ["s", "f"], ["sf"]),
            helper.make_node("Add", ["sf", "x"], ["s1"]),
            helper.make_node("Neg", ["s1"], ["y"]),
        ],
        [
            helper.make_tensor_value_info("n", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("s", FLOAT, [3]),
        ],
        ["goes", "s1", "y"],
    )
    inner.output[0].type.CopyFrom(helper.make_tensor_type_proto(TensorProto.BOOL, []))
    known = {"count": np.array(7), "on": np.array(True)}
    node = helper.make_node("Loop", ["count", condition, "start"], ["last", "ys"], body=inner)
    m, feeds = made([node], {"start": (3,), "x": (3,)}, ["last", "ys"], known)
    m.graph.output[0].CopyFrom(helper.make_tensor_value_info("last", FLOAT, [3]))
    m.graph.output[1].CopyFrom(helper.make_tensor_value_info("ys", FLOAT, [7, 3]))
    exe = same(m, feeds)
    assert not exe.fallback_nodes({})
    assert [c.steps for c in loops(exe)] == [7]


def test_an_operator_without_a_kernel_is_named() -> None:
    inner = body(
        [
            helper.make_node("Add", ["s", "x"], ["s1"]),
            helper.make_node("NonZero", ["s1"], ["at"]),
            helper.make_node("ReduceSum", ["at"], ["some"], keepdims=0),
            helper.make_node("Cast", ["some"], ["y"], to=FLOAT),
        ],
        ["s", "x"], ["s1", "y"],
    )  # fmt: skip
    node = helper.make_node("Scan", ["a", "xs"], ["b", "ys"], body=inner, num_scan_inputs=1)
    exe = same(*made([node], {"a": (3,), "xs": (5, 3)}, ["b", "ys"]))
    (pair,) = exe.fallback_nodes({})
    assert pair[1].startswith("Scan: its body's NonZero: ")
