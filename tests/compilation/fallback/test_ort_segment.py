"""What runs in onnxruntime: nodes without a kernel, what has little to do beside them, and models
that only onnxruntime reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import superopt
from superopt.compilation.cpu.native_segment import NativeSegment
from superopt.compilation.fallback.session_segment import OrtSegment
from superopt.compilation.fallback.whole_model import Fallback
from superopt.errors import ModelError, UsageError
from superopt.ort import sessions
from superopt.plan.graph.partition import TOO_SMALL_REASON
from tests.support.compilation.models import F, in_parts, model, near, reference


def test_what_has_no_kernel_runs_in_onnxruntime() -> None:
    node = helper.make_node
    m = model(
        [
            node("Relu", ["x"], ["a"]),
            node("TopK", ["a", "k"], ["b", "i"], axis=1),
            node("Mul", ["b", "b"], ["c"]),
            node("NonZero", ["c"], ["z"]),
            node("Exp", ["c"], ["y"]),
        ],
        {"x": (F, [400, 900])},
        ["y", "i", "z"],
        {"k": np.array([300], np.int64)},
    )
    exe = superopt.compile(m)
    x = np.random.default_rng(0).standard_normal((400, 900)).astype(np.float32)
    near(exe(x=x), reference(m, {"x": x}))
    (steps,) = exe.variants.values()
    assert [type(s) for s in steps] == [NativeSegment, OrtSegment, NativeSegment, OrtSegment]
    assert {n.op.name for n, _ in exe.fallback_nodes({})} == {"TopK", "NonZero"}


def test_what_optimizations_refuse_runs_without(monkeypatch: pytest.MonkeyPatch) -> None:
    own, asked = sessions.load_session, []

    def session(m: Any, threads: int = 1, level: str = "all") -> Any:
        asked.append(level)
        if level == "all":
            raise ModelError("no", "its optimizer made a node that is none", "")
        return own(m, threads, level)

    monkeypatch.setattr(sessions, "load_session", session)
    exe = superopt.compile(m := in_parts())
    x = np.random.default_rng(0).standard_normal((1, 3, 9, 9)).astype(np.float32)
    near(exe(x=x), reference(m, {"x": x}))
    assert asked[:2] == ["all", sessions.optimization_levels()[0]]


def little_beside_recurrence() -> onnx.ModelProto:
    """Kernels do not compute the layer: it does not say the alpha of its second function."""
    unsaid = ["Sigmoid", "ThresholdedRelu", "Tanh"]
    rng = np.random.default_rng(0)
    known = {
        "w": rng.standard_normal((1, 32, 8)).astype(np.float32),
        "r": rng.standard_normal((1, 32, 8)).astype(np.float32),
        "v": rng.standard_normal((8, 4)).astype(np.float32),
        "one": np.array([1]),
    }
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        helper.make_node("LSTM", ["t", "w", "r"], ["", "h"], hidden_size=8, activations=unsaid),
        helper.make_node("MatMul", ["h", "v"], ["a"]),
        helper.make_node("Relu", ["a"], ["y"]),
    ]
    return model(nodes, {"x": (F, [2, 5, 8])}, ["y"], known)


def test_what_has_little_to_do_runs_with_what_it_is_beside() -> None:
    m = little_beside_recurrence()
    exe = superopt.compile(m)
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 5, 8)).astype(np.float32)}
    wanted = reference(m, feeds)
    for _ in range(3):  # the first call, and direct ones
        near(exe.run(feeds), wanted)
    assert {why for n, why in exe.fallback_nodes({}) if n.op.name != "LSTM"} == {TOO_SMALL_REASON}
    with pytest.raises(UsageError, match="shape"):
        exe.run({"x": np.ones((2, 5), np.float32)})
    near(exe.run(feeds), wanted)


def norm(opset: int, *more: int) -> onnx.ModelProto:
    """Of several axes, where there are more: that of the last one is told by other operators."""
    nodes = [helper.make_node("LayerNormalization", ["x", "s"], ["y"], axis=1)]
    m = model(nodes, {"x": (F, ["n", *more, 8])}, ["y"], {"s": np.ones((*more, 8), np.float32)})
    m.opset_import[0].version = opset
    return m


def test_what_only_onnxruntime_reads_runs_there(tmp_path: Path) -> None:
    """It had this operator before ONNX did."""
    exe = superopt.compile(norm(13, 2))
    right = superopt.compile(norm(17, 2))
    for n in (2, 3, 3):
        x = np.random.default_rng(n).standard_normal((n, 2, 8)).astype(np.float32)
        near(exe(x=x), right(x=x))
    ((_, why),) = exe.fallback_nodes({"n": 3})
    assert "LayerNormalization exists since opset 17" in why
    with pytest.raises(UsageError, match="cannot be saved"):
        exe.save(tmp_path / "m.superopt")
    with pytest.raises(UsageError, match="cannot be exported"):
        exe.export(tmp_path / "m", shapes={"n": 2})


def test_what_onnxruntime_does_not_read_is_refused() -> None:
    m = norm(17)
    m.graph.node[0].op_type = "LayerNormalisation"
    with pytest.raises(ModelError, match="LayerNormalisation"):
        superopt.compile(m)


def test_outputs_may_have_no_shapes(tmp_path: Path) -> None:
    """onnxruntime says which ones they have; then it is a model as others are."""
    m = norm(17)
    plain = superopt.compile(m)
    m.graph.output[0].type.tensor_type.ClearField("shape")
    with pytest.raises(onnx.checker.ValidationError, match="shape"):
        onnx.checker.check_model(m)
    onnx.save(m, tmp_path / "m.onnx")
    x = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    for given in (m, tmp_path / "m.onnx"):
        exe = superopt.compile(given)
        near(exe(x=x), plain(x=x))
        assert not exe.fallback_nodes({"n": 3})
        exe.save(tmp_path / "m.superopt")
        near(superopt.load(tmp_path / "m.superopt")(x=x), plain(x=x))


def test_outputs_without_shapes_may_be_inputs() -> None:
    """Of which the shapes are known; inputs with values of their own can be given, too."""
    nodes = [helper.make_node("Mul", ["x", "w"], ["a"]),
             helper.make_node("Split", ["a", "k"], ["b", "c"], axis=-1),
             helper.make_node("TopK", ["b", "n"], ["y", "i"], axis=-1)]  # fmt: skip
    w = np.linspace(1, 2, 6, dtype=np.float32)
    known = {"w": w, "k": np.array([3, 3]), "n": np.array([2])}
    inputs = {"x": (F, [3, 6]), "w": (F, [6]), "k": (onnx.TensorProto.INT64, [2])}
    m = model(nodes, inputs, ["y", "x"], known)
    m.opset_import[0].version = 16
    del m.graph.value_info[:]
    for v in m.graph.output:
        v.type.CopyFrom(helper.make_tensor_type_proto(F, None))
    x = np.random.default_rng(0).standard_normal((3, 6)).astype(np.float32)
    exe = superopt.compile(m)
    for more in ({}, {"w": -w}):
        near(exe.run({"x": x, **more}), reference(m, {"x": x, **more}))


def test_inputs_that_do_not_fit_each_other() -> None:
    """Which onnxruntime refuses before it runs them: they are named with their shapes."""
    nodes = [helper.make_node("Add", ["x", "z"], ["a"]), helper.make_node("NonZero", ["a"], ["y"])]
    m = model(nodes, {"x": (F, ["n", 4]), "z": (F, ["k", 4])}, ["y"])
    given = {"x": np.ones((3, 4), np.float32), "z": np.ones((2, 4), np.float32)}
    with pytest.raises(ModelError, match=r"x: f32\[3, 4\], z: f32\[2, 4\]"):
        superopt.compile(m).run(given)


def test_what_only_onnxruntime_reads_is_tuned_and_timed(tmp_path: Path) -> None:
    assert superopt.tune(norm(13), budget=0.1, store=tmp_path).rewrites == 0
    onnx.save(norm(13), tmp_path / "m.onnx")
    (row,) = superopt.bench([tmp_path / "m.onnx"], vs=("superopt",), seconds=0.02)
    assert row.latency is not None


def test_what_leaves_out_shapes_is_tuned(tmp_path: Path) -> None:
    m = norm(17)
    m.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 3
    m.graph.output[0].type.tensor_type.ClearField("shape")
    x = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    exe = superopt.compile(m, tune=0.1, store=tmp_path)
    near(exe(x=x), reference(m, {"x": x}))


def test_what_only_onnxruntime_reads_may_give_its_inputs() -> None:
    m = norm(13)
    m.graph.output.insert(0, m.graph.input[0])
    exe = superopt.compile(m)
    x = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    wanted = {"x": x, **superopt.compile(norm(17))(x=x)}
    for _ in range(2):
        near(exe(x=x), wanted)
    assert exe(x=x)["x"] is not x
    del m.graph.output[1:]
    near(superopt.compile(m)(x=x), {"x": x})


@pytest.mark.parametrize("rows", [200, "n"])
def test_bodies_that_state_no_shapes_run_behind_kernels(rows: int | str) -> None:
    """onnxruntime takes them from what the body is given, so that must have some."""
    plain = {k: helper.make_tensor_value_info(k, F, None) for k in ("s", "e", "t", "o")}
    body = helper.make_graph(
        [
            helper.make_node("Add", ["s", "e"], ["t"]),
            helper.make_node("NonZero", ["t"], ["at"]),  # which has no kernel
            helper.make_node("Cast", ["at"], ["places"], to=F),
            helper.make_node("ReduceSum", ["places"], ["some"], keepdims=0),
            helper.make_node("Add", ["t", "some"], ["o"]),
        ],
        "body",
        [plain["s"], plain["e"]],
        [plain["t"], plain["o"]],
    )
    m = model(
        [
            helper.make_node("MatMul", ["x", "w"], ["a"]),
            helper.make_node("Relu", ["a"], ["b"]),
            helper.make_node("ReduceSum", ["b", "first"], ["z"], keepdims=0),
            helper.make_node("Scan", ["z", "b"], ["f", "y"], body=body, num_scan_inputs=1),
        ],
        {"x": (F, [rows, 300])},
        ["f", "y"],
        {"w": np.eye(300, 300, 5, np.float32), "first": np.array([0])},
    )
    del m.graph.value_info[:]
    (scan,) = (n for n in m.graph.node if n.op_type == "Scan")
    scan.attribute[0].CopyFrom(helper.make_attribute("body", body))
    exe = superopt.compile(m)
    feeds = {"x": np.random.default_rng(0).standard_normal((200, 300)).astype(np.float32)}
    near(exe.run(feeds), reference(m, feeds))
    (steps,) = exe.variants.values()
    assert [type(s) for s in steps] == [NativeSegment, OrtSegment]


def test_weights_of_an_old_file_are_inputs() -> None:
    """Of IR version 3: nobody gives them, to parts in onnxruntime neither."""
    nodes = [
        helper.make_node("NonZero", ["x"], ["z"]),
        helper.make_node("Cast", ["z"], ["c"], to=1),
        helper.make_node("Transpose", ["c"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["t", "w"], ["y"]),
    ]
    weight = numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(3, 2), "w")
    given = [("x", [2, 3, 4]), ("w", [3, 2])]
    ins = [helper.make_tensor_value_info(n, 1, s) for n, s in given]
    out = [helper.make_tensor_value_info("y", 1, ["n", 2])]
    graph = helper.make_graph(nodes, "g", ins, out, [weight])
    m = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 9)], ir_version=3)
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    near(superopt.compile(m)(x=x), reference(m, {"x": x}))


def test_data_in_another_file_of_what_onnx_refuses(tmp_path: Path) -> None:
    """An output of no stated shape, which onnxruntime needs not."""
    weight = numpy_helper.from_array(np.ones((400, 5), np.float32), "w")
    ins = [helper.make_tensor_value_info("x", 1, [3, 400])]
    out = [helper.make_tensor_value_info("y", 1, None)]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    graph = helper.make_graph(nodes, "g", ins, out, [weight])
    m = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = np.ones((3, 400), np.float32)
    wanted = reference(m, {"x": x})
    path = tmp_path / "m.onnx"
    onnx.save(m, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    near(superopt.compile(path)(x=x), wanted)


def test_initializers_that_are_no_inputs_in_an_old_model() -> None:
    """ONNX's checker refuses them before IR version 4; the model ran in onnxruntime, whole."""
    w = np.random.default_rng(0).standard_normal((32, 8)).astype(np.float32)
    m = model([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": (F, [4, 32])}, ["y"], {"w": w})
    m.ir_version = 3
    m.opset_import[0].version = 9
    with pytest.raises(onnx.checker.ValidationError):
        onnx.checker.check_model(m)
    exe = superopt.compile(m)
    x = np.random.default_rng(1).standard_normal((4, 32)).astype(np.float32)
    near(exe(x=x), {"y": x @ w})
    assert not exe.fallback_nodes({})


def test_a_model_that_is_one_part_takes_no_more_than_onnxruntime() -> None:
    """What a call asked for took 2 us beside the 6 of a small model, and onnxruntime's own `run`
    asks, too; whatever the order of its outputs is."""
    node = helper.make_node
    m = model(
        [node("Relu", ["x"], ["a"]), node("NonZero", ["a"], ["z"])], {"x": (F, [4, 9])}, ["z", "a"]
    )
    exe = superopt.compile(m)
    x = np.random.default_rng(0).standard_normal((4, 9)).astype(np.float32)
    for _ in range(2):
        near(exe(x=x), reference(m, {"x": x}))
    assert exe.last_call is not None
    near(exe.last_call({"x": x}), reference(m, {"x": x}))
    (step,) = exe.variant({})
    assert isinstance(step, Fallback)
    assert step.named_call is not None
    with pytest.raises(UsageError):
        exe(x=x[:2])


def test_outputs_that_are_inputs_or_constants_are_copies() -> None:
    """Such a model was looked through in each call: 25 us, of 14 in onnxruntime."""
    w = np.random.default_rng(0).standard_normal((9, 4)).astype(np.float32)
    m = model([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": (F, [4, 9])}, ["w", "y", "x"])
    m.graph.initializer.append(numpy_helper.from_array(w, "w"))
    exe = superopt.compile(m)
    x = np.random.default_rng(1).standard_normal((4, 9)).astype(np.float32)
    for _ in range(3):
        got = exe(x=x)
        near(got, {"w": w, "y": x @ w, "x": x})
        for a in got.values():
            a[:] = 0
    assert exe.last_call is not None
    near(exe.last_call({"x": x}), {"w": w, "y": x @ w, "x": x})


def test_shapes_behind_a_node_without_a_kernel_that_hang_on_constants() -> None:
    """As torch's exporter writes the shape of an Expand: ONNX's inference of the whole model does
    not compute it, and all behind the TopK ran in onnxruntime."""
    node = helper.make_node
    known = {
        "k": np.array([12]), "minus": np.array(-1), "given": np.array([-1, 64, 900]),
        "rank": np.array([3]), "w": np.random.default_rng(0).standard_normal((12, 512)),
    }  # fmt: skip
    known["w"] = known["w"].astype(np.float32)
    one = numpy_helper.from_array(np.array([1]))
    m = model(
        [
            node("ConstantOfShape", ["rank"], ["ones"], value=one),
            node("Mul", ["ones", "minus"], ["all"]),
            node("Equal", ["given", "all"], ["kept"]),
            node("Where", ["kept", "ones", "given"], ["shape"]),
            node("Expand", ["x", "shape"], ["e"]),
            node("TopK", ["e", "k"], ["v", "i"]),
            node("MatMul", ["v", "w"], ["y"]),
        ],
        {"x": (F, [4, 1, 900])},
        ["y"],
        known,
    )
    exe = superopt.compile(m)
    x = np.random.default_rng(1).standard_normal((4, 1, 900)).astype(np.float32)
    near(exe(x=x), reference(m, {"x": x}))
    assert {n.op.name for n, _ in exe.fallback_nodes({})} <= {"TopK", "Expand"}
