"""Attention as one kernel: all the forms in which models have it, sizes that nothing divides."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import superopt
import superopt.plan.rewrites.matmul.attention
from superopt import ort
from superopt.compilation.cpu.native_segment import NativeSegment

F, B = TensorProto.FLOAT, TensorProto.BOOL


def attention(
    batch: int,
    heads: int,
    rows: int,
    length: int,
    width: int,
    *,
    mask: str = "",
    merged: bool = False,
    groups: int = 1,
    before: str = "Transpose",
    values: int = 0,
) -> onnx.ModelProto:
    """mask: "", "causal" (a constant), "given" (an input of one row a batch), "where" (of bools).
    merged: queries come as [batch, rows, heads * width], as from a projection. groups: heads that
    share keys. before: how keys are turned; values: the width of these."""
    values = values or width
    node = helper.make_node
    rng = np.random.default_rng(0)
    nodes, weights = [], {"scale": np.float32(width**-0.5)}
    inputs = {"k": (F, [batch, heads // groups, length, width]),
              "v": (F, [batch, heads // groups, length, values])}  # fmt: skip
    if merged:
        inputs["x"] = (F, [batch, rows, heads * width])
        weights |= {"split": np.array([batch, rows, heads, width])}
        nodes += [node("Reshape", ["x", "split"], ["xs"]),
                  node("Transpose", ["xs"], ["q"], perm=[0, 2, 1, 3])]  # fmt: skip
    else:
        inputs["q"] = (F, [batch, heads, rows, width])
    k, v = "k", "v"
    if groups > 1:
        weights |= {"repeat": np.array([batch, heads // groups, groups, length, width]),
                    "heads": np.array([batch, heads, length, width]),
                    "two": np.array([2])}  # fmt: skip
        for name in "kv":
            nodes += [node("Unsqueeze", [name, "two"], [f"{name}u"]),
                      node("Expand", [f"{name}u", "repeat"], [f"{name}e"]),
                      node("Reshape", [f"{name}e", "heads"], [f"{name}r"])]  # fmt: skip
        k, v = "kr", "vr"
    nodes += [node("Transpose", [k], ["kt"], perm=[0, 1, 3, 2]), node("MatMul", ["q", "kt"], ["s"])]
    nodes.append(node("Mul", ["s", "scale"], ["scaled"]))
    last = "scaled"
    if mask == "causal":
        weights["m"] = np.triu(np.full((rows, length), -1e9, np.float32), 1)
        nodes.append(node("Add", [last, "m"], ["masked"]))
    elif mask == "given":
        inputs["m"] = (F, [batch, 1, 1, length])
        nodes.append(node("Add", [last, "m"], ["masked"]))
    elif mask == "where":
        weights |= {"m": rng.random((rows, length)) < 0.7, "low": np.float32(-3e38)}
        nodes.append(node("Where", ["m", last, "low"], ["masked"]))
    last = "masked" if mask else last
    nodes += [node("Softmax", [last], ["p"], axis=-1), node("MatMul", ["p", v], ["o"])]
    out = "o"
    if merged:
        weights["join"] = np.array([batch, rows, heads * values])
        nodes += [node("Transpose", ["o"], ["ot"], perm=[0, 2, 1, 3]),
                  node("Reshape", ["ot", "join"], ["y"])]  # fmt: skip
        out = "y"
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(n, *t) for n, t in inputs.items()],
        [onnx.ValueInfoProto(name=out)],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items()],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(made)


def merged_heads(heads: int, length: int, width: int, causal: bool) -> onnx.ModelProto:
    """q, k and v come as [1, length, heads * width]."""
    node = helper.make_node
    weights = {
        "split": np.array([1, length, heads, width]),
        "mask": np.triu(np.full((length, length), -1e9 if causal else 0, np.float32), 1),
    }
    nodes = [node("Reshape", [n, "split"], [f"{n}4"]) for n in "qkv"]
    nodes += [node("Transpose", [f"{n}4"], [f"{n}t"], perm=[0, 2, 1, 3]) for n in "qv"]
    nodes += [
        node("Transpose", ["k4"], ["kt"], perm=[0, 2, 3, 1]),
        node("MatMul", ["qt", "kt"], ["s"]), node("Add", ["s", "mask"], ["masked"]),
        node("Softmax", ["masked"], ["p"], axis=-1), node("MatMul", ["p", "vt"], ["y"]),
    ]  # fmt: skip
    shape = [1, length, heads * width]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(n, F, shape) for n in "qkv"],
        [helper.make_tensor_value_info("y", F, None)],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(made)


CASES = {
    "plain": attention(1, 2, 32, 48, 16),
    "sizes that nothing divides": attention(2, 3, 37, 41, 20),
    "one row a head more than a block": attention(1, 1, 17, 64, 32),
    "few rows": attention(1, 2, 5, 64, 32),
    "a causal mask": attention(1, 2, 40, 40, 16, mask="causal"),
    "a mask that is given": attention(2, 2, 24, 33, 16, mask="given"),
    "a mask of conditions": attention(1, 2, 24, 32, 16, mask="where"),
    "merged heads": attention(2, 4, 21, 32, 16, merged=True, mask="given"),
    "heads that share keys": attention(1, 4, 24, 32, 16, groups=2),
    "values of another width": attention(1, 2, 24, 32, 16, values=48),
    "long rows": attention(1, 1, 40, 1100, 8),
}


@pytest.mark.one_in(7)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_one_kernel_computes_it(
    name: str, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(superopt.plan.rewrites.matmul.attention, "MIN_SCORE_BYTES", 0)
    made = CASES[name]
    exe = superopt.compile(made, threads=threads)
    onnx.save(made, tmp_path / "m.onnx")
    session = ort.load_session(tmp_path / "m.onnx", 1)
    rng = np.random.default_rng(1)
    feeds = {}
    for i in made.graph.input:
        shape = [d.dim_value for d in i.type.tensor_type.shape.dim]
        feeds[i.name] = rng.standard_normal(shape).astype(np.float32)
    (wanted,) = ort.run(session, feeds).values()
    (got,) = exe.run(feeds).values()
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5 * np.sqrt(np.mean(wanted**2)))
    (step,) = exe.variant({})
    assert isinstance(step, NativeSegment)
    kinds = [o.algorithm for o in step.code.program.options.values()]
    assert kinds.count("attention") == 1
    assert "row_wise" not in kinds


def test_what_is_read_elsewhere_is_computed_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(superopt.plan.rewrites.matmul.attention, "MIN_SCORE_BYTES", 0)
    made = attention(1, 2, 32, 48, 16)
    made.graph.output.append(helper.make_tensor_value_info("p", F, [1, 2, 32, 48]))
    exe = superopt.compile(onnx.shape_inference.infer_shapes(made))
    (step,) = exe.variant({})
    assert isinstance(step, NativeSegment)
    kinds = [o.algorithm for o in step.code.program.options.values()]
    assert "row_wise" in kinds
    assert "attention" not in kinds


@pytest.mark.parametrize("mask", ["", "causal"])
def test_merged_heads_stream(mask: str) -> None:
    """Keys and values are copied, by heads, though their copies have a higher rank."""
    exe = superopt.compile(merged_heads(2, 130, 32, mask == "causal"))
    (step,) = exe.variant({})
    assert isinstance(step, NativeSegment)
    kinds = [o.algorithm for o in step.code.program.options.values()]
    assert kinds.count("streaming") == 1
    assert "attention" not in kinds
