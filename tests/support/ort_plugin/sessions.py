"""Sessions of onnxruntime with superopt's execution provider, and models for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

import superopt
from tests.support.compilation.exporting import CC, HERE
from tests.support.compilation.models import F, I, Model, drawn, model, net, picture

MISSING = CC is None or not HERE or not hasattr(onnxruntime, "get_ep_devices")
REASON = "the provider needs Linux on x86-64, a C compiler and onnxruntime 1.23"

node = helper.make_node
Feeds = Mapping[str, np.ndarray]


def open_session(
    path: Path | bytes, options: Mapping[str, str] | None = None, threads: int = 2
) -> Any:
    """Return a session with the provider."""
    given = onnxruntime.SessionOptions()
    given.intra_op_num_threads = threads
    given.log_severity_level = 4
    given.add_provider_for_devices(superopt.ort_register(threads=1), dict(options or {}))
    return onnxruntime.InferenceSession(path if isinstance(path, bytes) else str(path), given)


def run_session(session: Any, feeds: Feeds) -> dict[str, np.ndarray]:
    names = [v.name for v in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def export(m: Model, folder: Path, **options: Any) -> tuple[Path, Any]:
    """Export a model; return the path of the model with EPContext nodes, and the report."""
    source = folder / "m.onnx"
    onnx.save(m, source)
    report = superopt.export_for_onnxruntime(source, folder / "out", **options)
    return folder / "out/m_ctx.onnx", report


def data_dependent() -> Model:
    """Products of as many rows as a tensor has positive elements."""
    nodes = [
        node("Relu", ["x"], ["r"]),
        node("NonZero", ["r"], ["z"]),
        node("Transpose", ["z"], ["t"]),
        node("Cast", ["t"], ["f"], to=F),
        node("MatMul", ["f", "w"], ["a"]),
        node("Softmax", ["a"], ["y"]),
    ]
    return model(nodes, {"x": (F, ["n", 40])}, ["y", "r"], {"w": drawn(2, 9000)})


def overridable() -> Model:
    """A product with a weight that a caller may replace."""
    made = model([node("MatMul", ["x", "w"], ["y"])], {"x": (F, [4, 8])}, ["y"], {"w": drawn(8, 8)})
    made.graph.input.append(helper.make_tensor_value_info("w", F, [8, 8]))
    return made


def of_old_version() -> Model:
    """A model whose initializers are inputs, as in IR version 3."""
    made = overridable()
    made.ir_version = 3
    del made.opset_import[:]
    made.opset_import.append(helper.make_opsetid("", 9))
    return made


def of_many_types() -> Model:
    nodes = [
        node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
        node("Neg", ["h"], ["half"]),
        node("Greater", ["x", "zero"], ["mask"]),
        node("Where", ["mask", "k", "one"], ["whole"]),
        node("ReduceSum", ["x"], ["total"], keepdims=0),
    ]
    weights = {"zero": np.zeros((), np.float32), "one": np.ones((), np.int64)}
    given = {"x": (F, ["n", 70]), "k": (I, ["n", 70])}
    return model(nodes, given, ["half", "mask", "whole", "total"], weights)


def with_branch() -> Model:
    """An If whose branches read a value of a part, beside a product."""
    then = helper.make_graph(
        [node("Neg", ["a"], ["t"])], "then", [], [helper.make_tensor_value_info("t", F, None)]
    )
    other = helper.make_graph(
        [node("Abs", ["a"], ["e"])], "else", [], [helper.make_tensor_value_info("e", F, None)]
    )
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("If", ["c"], ["b"], then_branch=then, else_branch=other),
        node("MatMul", ["b", "v"], ["y"]),
    ]
    given = {"x": (F, ["n", 300]), "c": (TensorProto.BOOL, [])}
    return model(nodes, given, ["y"], {"w": drawn(300, 300), "v": drawn(300, 300)})


def constants_shared() -> Model:
    """A Constant node that a part and a node of onnxruntime read."""
    value = helper.make_tensor("v", F, [300], [0.5] * 300)
    nodes = [
        node("Constant", [], ["c"], value=value),
        node("MatMul", ["x", "w"], ["a"]),
        node("Add", ["a", "c"], ["b"]),
        node("NonZero", ["c"], ["z"]),
    ]
    return model(nodes, {"x": (F, [7, 300])}, ["b", "z", "c"], {"w": drawn(300, 300)})


def outputs_without_kernels() -> Model:
    """Outputs that are an input, a constant, and another output."""
    nodes = [
        node("Exp", ["x"], ["y"]),
        node("Identity", ["x"], ["same"]),
        node("Identity", ["y"], ["again"]),
        node("Identity", ["w"], ["constant"]),
    ]
    return model(nodes, {"x": (F, [5, 64])}, ["y", "same", "again", "constant"], {"w": drawn(3, 4)})


def uneven_rows(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, 40)).astype(np.float32)


# The model, the inputs of calls, and the operators that stay onnxruntime's.
CASES: dict[str, tuple[Model, Sequence[Feeds], set[str]]] = {
    "net": (net(), [{"x": picture(n, 9)} for n in (1, 3, 8)], set()),
    "data dependent": (data_dependent(), [{"x": uneven_rows(n)} for n in (1, 7)],
        {"NonZero", "Relu"}),
    "overridable": (
        overridable(), [{"x": drawn(4, 8)}, {"x": drawn(4, 8), "w": 2 * drawn(8, 8)}], set(),
    ),
    "old version": (of_old_version(), [{"x": drawn(4, 8)}], set()),
    "many types": (
        of_many_types(),
        [{"x": drawn(n, 70), "k": np.arange(70 * n).reshape(n, 70)} for n in (1, 5)], set(),
    ),
    "branch": (
        with_branch(), [{"x": drawn(3, 300), "c": np.array(c)} for c in (True, False)], {"If"},
    ),
    "constants": (constants_shared(), [{"x": drawn(7, 300)}], {"NonZero"}),
    "outputs": (outputs_without_kernels(), [{"x": drawn(5, 64)}], set()),
}  # fmt: skip
