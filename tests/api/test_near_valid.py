"""Models that ONNX's checker refuses, or nearly, and onnxruntime runs: every command takes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import superopt
from superopt import guard
from superopt.errors import ModelError, OutOfTime
from superopt.loading.model import is_loadable_in_onnxruntime
from superopt.onnx_io.read.source import read_model

ort = pytest.importorskip("onnxruntime")

FLOAT = TensorProto.FLOAT
NODE = helper.make_node
WEIGHT = numpy_helper.from_array(np.linspace(-1, 1, 4, dtype=np.float32), "w")
BIAS = numpy_helper.from_array(np.linspace(0, 1, 4, dtype=np.float32), "b")
CHAIN = [NODE("Relu", ["x"], ["t"]), NODE("Relu", ["t"], ["y"])]


def info(name: str, shape: Sequence[int | str | None] | None = (1, 4), kind: int = FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def model(
    nodes: Sequence[onnx.NodeProto],
    opset: int = 17,
    inputs: Sequence[onnx.ValueInfoProto] = (info("x"),),
    outputs: Sequence[onnx.ValueInfoProto] = (info("y"),),
    weights: Sequence[onnx.TensorProto] = (WEIGHT,),
    infos: Sequence[onnx.ValueInfoProto] = (),
    change: Callable[[onnx.ModelProto], object] = lambda m: None,
    **more: object,
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights, value_info=infos)
    opsets = [helper.make_opsetid("", opset)]
    made = helper.make_model(graph, **{"opset_imports": opsets, "ir_version": 8, **more})
    change(made)
    return made


def typeless(name: str) -> onnx.ValueInfoProto:
    return onnx.ValueInfoProto(name=name)


def function(body: str, inputs: Sequence[str] = ("a",), opset: int = 17) -> onnx.FunctionProto:
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_function("z", "F", inputs, ["r"], [NODE(body, ["a"], ["r"])], opsets)


def by_branches(second: str, shape: Sequence[int] | None) -> list[onnx.NodeProto]:
    """An If whose branches give results of other ranks, or of undeclared types."""
    ends = [typeless("t"), typeless("e")] if shape is None else [info("t"), info("e", shape)]
    then, other = (
        helper.make_graph([NODE(op, ["x"], [end.name])], op, [], [end])
        for op, end in zip(("Relu", second), ends, strict=True)
    )
    return [
        NODE("ReduceSum", ["x"], ["s"], keepdims=0),
        NODE("Cast", ["s"], ["c"], to=TensorProto.BOOL),
        NODE("If", ["c"], ["v"], then_branch=then, else_branch=other),
        NODE("Relu", ["v"], ["y"]),
    ]


IMAGE, OTHER_IMAGE = [info("x", [1, 4, 2, 2])], [info("y", [1, 4, 2, 2])]
CASES: dict[str, onnx.ModelProto] = {
    # Operators that ONNX has in another opset, or not.
    "RMS norm in ai.onnx": model(
        [NODE("SimplifiedLayerNormalization", ["x", "w"], ["y"], axis=-1, epsilon=1e-5)]),
    "layer norm before opset 17": model(
        [NODE("LayerNormalization", ["x", "w"], ["y"], axis=-1)], 13),
    "layer norm before opset 17 and a rewrite behind it": model(
        [NODE("LayerNormalization", ["x", "w"], ["n"], axis=-1), NODE("Relu", ["n"], ["t"]),
         NODE("Relu", ["t"], ["y"])], 13),
    "group norm of opset 18": model(
        [NODE("GroupNormalization", ["x", "w", "b"], ["y"], num_groups=4)], 18, IMAGE, OTHER_IMAGE,
        [WEIGHT, BIAS]),
    "MeanVarianceNormalization without axes": model(
        [NODE("MeanVarianceNormalization", ["x"], ["y"])], 13, IMAGE, OTHER_IMAGE, []),
    "Affine, which was experimental": model([NODE("Affine", ["x"], ["y"], alpha=2.0)], 9),
    "ThresholdedRelu before opset 10": model([NODE("ThresholdedRelu", ["x"], ["y"])], 9),
    "ScaledTanh, which was experimental": model(
        [NODE("ScaledTanh", ["x"], ["y"], alpha=1.0, beta=1.0)], 9),
    "Upsample": model(
        [NODE("Upsample", ["x", "s"], ["y"])], 9, [info("x", [1, 1, 2, 2])],
        [info("y", [1, 1, 4, 4])],
        [numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "s")]),
    # Outputs, inputs and values of undeclared or wrong types.
    "output without shape": model(CHAIN, outputs=[info("y", None)]),
    "output without type": model(CHAIN, outputs=[typeless("y")]),
    "output of another rank": model(CHAIN, outputs=[info("y", [None])]),
    "output of another size": model(CHAIN, outputs=[info("y", [1, 5])]),
    "input without shape": model(CHAIN, inputs=[info("x", None)], outputs=[info("y", None)]),
    "input of a negative size": model(
        CHAIN, inputs=[info("x", [-1, 4])], outputs=[info("y", [-1, 4])]),
    "value of another rank": model(CHAIN, infos=[info("t", [4])]),
    "value of another size": model(CHAIN, infos=[info("t", [1, 7])]),
    "value of a negative size": model(CHAIN, infos=[info("t", [-1, 4])]),
    "opaque value of another rank": model(
        [NODE("LayerNormalization", ["x", "w"], ["t"], axis=-1), NODE("Relu", ["t"], ["y"])], 13,
        infos=[info("t", [2, 7, 4])]),
    "value declared twice": model(CHAIN, infos=[info("t"), info("t")]),
    "value that is not there": model(CHAIN, infos=[info("elsewhere")]),
    "branches of other ranks": model(by_branches("Squeeze", [4]), outputs=[info("y", None)]),
    "branches of undeclared types": model(by_branches("Neg", None)),
    # Names, order and duplicates.
    "nodes in another order": model(CHAIN[::-1]),
    "initializer twice": model([NODE("Add", ["x", "w"], ["y"])], weights=[WEIGHT, WEIGHT]),
    "initializers of one name": model(
        [NODE("Add", ["x", "w"], ["y"])],
        weights=[WEIGHT, numpy_helper.from_array(np.ones(4, np.float32), "w")]),
    "initializer that is no input in IR version 3": model(
        [NODE("Add", ["x", "w"], ["y"])], 8, ir_version=3),
    "graph without a name": model(CHAIN, change=lambda m: m.graph.ClearField("name")),
    "metadata twice": model(
        CHAIN, change=lambda m: [m.metadata_props.add(key="k", value="v") for _ in "12"]),
    "training information": model(CHAIN, change=lambda m: m.training_info.add()),
    "result that nobody reads": model([*CHAIN, NODE("Neg", ["x"], ["dead"])]),
    "input that is an output": model(CHAIN, outputs=[info("y"), info("x")]),
    "Constant with two values": model(
        [NODE("Constant", [], ["k"], value=BIAS, value_float=1.0), NODE("Add", ["x", "k"], ["y"])]),
    # Domains and functions.
    "ai.onnx as a domain": model(
        [NODE("Add", ["x", "w"], ["y"], domain="ai.onnx")],
        opset_imports=[helper.make_opsetid("ai.onnx", 17)]),
    "opset declared twice": model(
        CHAIN, change=lambda m: m.opset_import.append(helper.make_opsetid("", 17))),
    "domain that is not declared": model(
        [NODE("Gelu", ["x"], ["y"], domain="com.microsoft")]),
    "domain of ai.onnx.ml that is not declared": model(
        [NODE("Normalizer", ["x"], ["y"], domain="ai.onnx.ml", norm="L1")]),
    "function of an older opset": model(
        [NODE("F", ["x"], ["y"], domain="z")], functions=[function("Neg", opset=13)],
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("z", 1)]),
    "function with an operand more than the call": model(
        [NODE("F", ["x"], ["y"], domain="z")], functions=[function("Neg", ("a", "unused"))],
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("z", 1)]),
    "unused function of an unknown operator": model(
        CHAIN, functions=[function("NoSuchOperator")],
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("z", 1)]),
}  # fmt: skip


def feeds(m: onnx.ModelProto) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    made = {}
    for i in m.graph.input:
        dims = i.type.tensor_type.shape.dim
        shape = [d.dim_value if d.dim_value > 0 else 2 for d in dims] or [1, 4]
        made[i.name] = rng.standard_normal(shape).astype(np.float32)
    return made


def run(m: onnx.ModelProto) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(m.SerializeToString(), options)
    return session.run(None, feeds(m))  # type: ignore[no-any-return]


def same(wanted: Sequence[np.ndarray], got: Sequence[np.ndarray]) -> None:
    for want, have in zip(wanted, got, strict=True):
        assert want.shape == have.shape
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5)


@pytest.mark.one_in(15)
@pytest.mark.parametrize("name", CASES)
def test_every_command_takes_what_onnxruntime_runs(name: str) -> None:
    m = CASES[name]
    wanted = run(m)
    done = superopt.optimize(m, budget=5, cost="roofline")
    done.explain(["y", "relu-relu"])
    assert list(done.model.graph.input) == list(m.graph.input), "the interface stays"
    assert list(done.model.graph.output) == list(m.graph.output), "the interface stays"
    same(wanted, run(done.model))
    same(wanted, list(superopt.compile(m).run(feeds(m)).values()))
    other = onnx.ModelProto()
    other.CopyFrom(m)
    other.doc_string = "another file"
    for b in (other, done.model):
        verdict = superopt.verify(m, b, limit=5)
        assert verdict.decision in ("proved", "agrees"), verdict.reason
    superopt.derive(m, other, limit=1)


SEQUENCE = helper.make_tensor_sequence_value_info("s", FLOAT, None)
OPTIONAL = helper.make_value_info(
    "s", helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, None)))  # fmt: skip
CONTAINERS = {
    "sequence in": (
        model([NODE("ConcatFromSequence", ["s"], ["t"], axis=0), NODE("Relu", ["t"], ["y"])],
              inputs=[SEQUENCE], outputs=[info("y", None)]),
        {"s": [np.ones((1, 4), np.float32), -np.ones((2, 4), np.float32)]}),
    "sequence out": (
        model([NODE("SplitToSequence", ["x"], ["s"], axis=1)], outputs=[SEQUENCE]),
        {"x": np.ones((1, 4), np.float32)}),
    "optional in": (
        model([NODE("OptionalGetElement", ["s"], ["t"]), NODE("Relu", ["t"], ["y"])], opset=18,
              inputs=[OPTIONAL], outputs=[info("y", None)]),
        {"s": np.linspace(-1, 1, 4, dtype=np.float32)[None]}),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTAINERS)
def test_sequences_and_optionals_of_undeclared_shapes(name: str) -> None:
    m, feed = CONTAINERS[name]
    (want,) = ort.InferenceSession(m.SerializeToString()).run(None, feed)
    for given in (m, superopt.optimize(m, budget=5, cost="roofline").model):
        (got,) = superopt.compile(given).run(feed).values()
        pairs = zip(want, got, strict=True) if isinstance(want, list) else [(want, got)]
        for one, other in pairs:
            np.testing.assert_array_equal(other, one)
    assert superopt.verify(m, m, limit=5).decision in ("proved", "agrees")


CERTIFIED = ["RMS norm in ai.onnx", "output without shape", "initializers of one name"]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", [*CERTIFIED, "nodes in another order"])
def test_files_and_certificates(name: str, tmp_path: Path) -> None:
    """An optimized file is certified for the file as it was given."""
    given, made = tmp_path / "given.onnx", tmp_path / "made.onnx"
    m = onnx.ModelProto()
    m.CopyFrom(CASES[name])
    m.graph.node.add(op_type="Relu", input=["y"], output=["more"])
    m.graph.node.add(op_type="Relu", input=["more"], output=["most"])
    m.graph.output.append(info("most", None))
    onnx.save(m, given)
    done = superopt.optimize(given, budget=10, cost="roofline")
    certificate = done.save(made)
    if done.report.changed:
        assert certificate is not None
        verdict = superopt.verify(given, made, certificate=certificate)
        assert verdict.decision == "certified", verdict.reason
    same(run(m), run(onnx.load(made)))
    (row,) = superopt.bench([made], seconds=0.05)
    assert row.latency is not None


def test_a_call_without_time_does_not_call_a_model_invalid() -> None:
    source = read_model(CASES["RMS norm in ai.onnx"].SerializeToString())
    with guard.limit_call(60.0) as limits:
        limits.shorten_deadline(-1.0)
        with pytest.raises(OutOfTime, match="loading the model in ONNX Runtime"):
            is_loadable_in_onnxruntime(source)


def test_the_user_is_notified() -> None:
    m = CASES["RMS norm in ai.onnx"]
    other = onnx.ModelProto()
    other.CopyFrom(m)
    other.doc_string = "another file"
    said = "not a valid ONNX model, but onnxruntime loads it"
    notes = superopt.optimize(m, budget=5, cost="roofline").report.notes
    assert any(said in note for note in notes)
    assert any(said in note for note in superopt.verify(m, other, limit=5).notes)
    valid = model(CHAIN)
    assert not any(
        said in n for n in superopt.optimize(valid, budget=5, cost="roofline").report.notes
    )


REFUSED = {
    "unknown attribute": model([NODE("Relu", ["x"], ["y"], alpha=1.0)]),
    "unknown operator": model([NODE("NoSuchOperator", ["x"], ["y"])]),
    "value that nobody gives": model([NODE("Relu", ["nothing"], ["y"])]),
    "cycle": model([NODE("Add", ["x", "y"], ["t"]), NODE("Relu", ["t"], ["y"])]),
    "shapes that do not fit": model(
        [NODE("Add", ["x", "w"], ["y"])],
        weights=[numpy_helper.from_array(np.ones(5, np.float32), "w")]),
    "type of a value": model(CHAIN, infos=[info("t", kind=TensorProto.INT64)]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_onnxruntime_refuses_stays_an_error(name: str) -> None:
    with pytest.raises(ModelError):
        superopt.optimize(REFUSED[name], budget=5, cost="roofline")
    with pytest.raises(ModelError):
        superopt.verify(REFUSED[name], REFUSED[name])
