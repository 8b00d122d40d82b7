"""onnxruntime's own operators: what it says of each, in models whose kernels are ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import superopt
from superopt.onnx_io.transform.contrib_ops import CONTRIB_BEFORE_OPSET, DECOMPOSITIONS

ort = pytest.importorskip("onnxruntime")
Drawn = Callable[..., np.ndarray]


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32) / 2


def counts(*values: object) -> np.ndarray:
    return np.array(values, np.int32)


# Operator, its operands (those that are given at run time, the weights behind them, None where
# there is none) and attributes; results that are asked.
X = floats(2, 6, 32)
CASES: dict[str, tuple[str, list[np.ndarray | None], int, dict[str, object], int]] = {
    "conv": ("FusedConv", [floats(2, 8, 9, 9), floats(16, 8, 3, 3), floats(16)], 1,
             {"activation": "Relu", "pads": [1] * 4, "kernel_shape": [3, 3]}, 1),
    "conv, sum": ("FusedConv", [floats(2, 8, 9, 9), floats(16, 8, 3, 3), None, floats(2, 16, 7, 7)],
                  1, {"activation": "LeakyRelu", "activation_params": [0.2]}, 1),
    "conv, clip": ("FusedConv", [floats(1, 8, 9, 9), floats(8, 1, 3, 3)], 1,
                   {"activation": "Clip", "activation_params": [0.0, 0.5], "group": 8}, 1),
    "gemm": ("FusedGemm", [floats(5, 7), floats(9, 7), floats(9)], 1,
             {"activation": "Tanh", "transB": 1, "alpha": 0.5}, 1),
    "gemm, slope": ("FusedGemm", [floats(5, 7), floats(7, 9)], 1,
                    {"activation": "LeakyRelu", "activation_alpha": 0.1}, 1),
    "matmul": ("FusedMatMul", [floats(2, 3, 8, 5), floats(2, 3, 9, 8)], 2,
               {"transA": 1, "transB": 1, "alpha": 0.25}, 1),
    "gelu": ("Gelu", [X * 4], 1, {}, 1),
    "bias gelu": ("BiasGelu", [X, floats(32)], 1, {}, 1),
    "fast gelu": ("FastGelu", [X * 3], 1, {}, 1),
    "fast gelu, bias": ("FastGelu", [X, floats(32)], 1, {}, 1),
    "quick gelu": ("QuickGelu", [X], 1, {"alpha": 1.5}, 1),
    "skip norm": ("SkipLayerNormalization", [X, X[::-1] * 2, floats(32), floats(32)], 2, {}, 1),
    "skip norm, all": ("SkipLayerNormalization", [X, X[:1], floats(32), floats(32), floats(32)], 2,
                       {"epsilon": 1e-5}, 4),
    "skip rms": ("SkipSimplifiedLayerNormalization", [X, X[::-1] * 2, floats(32)], 2,
                 {"epsilon": 1e-5}, 4),
    "rms": ("SimplifiedLayerNormalization", [X, floats(32)], 1, {"axis": -1, "epsilon": 1e-4}, 1),
    "norm": ("LayerNormalization", [X, floats(32), floats(32)], 1, {"epsilon": 1e-4}, 1),
    "embeddings": ("EmbedLayerNormalization",
                   [counts([1, 3, 2, 0], [5, 5, 9, 1]), counts([0, 1, 1, 0], [0, 0, 1, 1]),
                    floats(10, 32), floats(8, 32), floats(2, 32), floats(32), floats(32),
                    counts([1, 1, 1, 0], [1, 1, 0, 0])], 2, {"epsilon": 1e-5}, 2),
    "attention": ("Attention", [X, floats(32, 96), floats(96)], 1, {"num_heads": 4}, 1),
    "attention, mask": ("Attention", [X, floats(32, 96), floats(96),
                                      counts([1, 1, 1, 0, 0, 1], [1, 1, 1, 1, 1, 1])], 1,
                        {"num_heads": 4, "mask_filter_value": -3.4028234663852886e38}, 1),
    "attention, lengths": ("Attention", [X, floats(32, 96), floats(96), counts(3, 6)], 1,
                           {"num_heads": 2, "scale": 0.3}, 1),
    "attention, bias": ("Attention", [X, floats(32, 80), floats(80), None, None,
                                      floats(1, 4, 6, 6)], 1,
                        {"num_heads": 4, "qkv_hidden_sizes": [24, 24, 32]}, 1),
}  # fmt: skip
MASKS = {"attention, mask", "attention, lengths"}  # given at run time, too


def built(name: str, opset: int, kind: type = np.float32) -> tuple[onnx.ModelProto, dict]:
    op, operands, given, attrs, results = CASES[name]
    inputs, weights, feeds, names = [], [], {}, []
    for k, a in enumerate(operands):
        if a is None:
            names.append("")
            continue
        names.append(f"i{k}")
        a = a.astype(kind) if a.dtype == np.float32 else a
        if k < given or (a.dtype == np.int32 and name in MASKS | {"embeddings"}):
            of = helper.np_dtype_to_tensor_dtype(a.dtype)
            inputs.append(helper.make_tensor_value_info(names[-1], of, a.shape))
            feeds[names[-1]] = a
        else:
            weights.append(numpy_helper.from_array(a, names[-1]))
    outs = ["y", *("" if k in (1, 2) and results == 4 else f"y{k}" for k in range(1, results))]
    domain = "" if op in CONTRIB_BEFORE_OPSET else "com.microsoft"
    node = helper.make_node(op, names, outs, domain=domain, **attrs)
    out = [helper.make_value_info(n, onnx.TypeProto()) for n in outs if n]
    for v in out:
        v.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
        if name == "embeddings" and v.name == "y1":
            v.type.tensor_type.elem_type = TensorProto.INT32
    graph = helper.make_graph([node], "g", inputs, out, weights)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), feeds


def wanted(m: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return ort.InferenceSession(m.SerializeToString(), options).run(None, feeds)


def test_each_is_tried() -> None:
    assert {op for op, *_ in CASES.values()} == DECOMPOSITIONS.keys()


@pytest.mark.one_in(9)
@pytest.mark.parametrize("opset", [11, 13, 20])
@pytest.mark.parametrize("name", CASES)
def test_as_onnxruntime_computes_it(name: str, opset: int) -> None:
    m, feeds = built(name, opset)
    exe = superopt.compile(m)
    assert bool(exe.fallback_nodes({})) == (
        (name, opset) == ("matmul", 11)
    )  # there is no Einsum yet
    for ours, theirs in zip(exe.run(feeds).values(), wanted(m, feeds), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)


OTHERS: dict[str, tuple[str, list[np.ndarray | None], dict[str, object]]] = {
    "one direction": ("Attention", [X, floats(32, 96), floats(96)],
                      {"num_heads": 4, "unidirectional": 1}),
    "another operator": ("Inverse", [floats(4, 4)], {}),
}  # fmt: skip


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", OTHERS)
def test_others_run_in_onnxruntime(name: str) -> None:
    op, operands, attrs = OTHERS[name]
    CASES["it"] = (op, operands, len(operands), attrs, 1)
    m, feeds = built("it", 17)
    del CASES["it"]
    exe = superopt.compile(m)
    assert [why for _, why in exe.fallback_nodes({})] == [f"{op}: domain com.microsoft (opset 1)"]
    np.testing.assert_array_equal(exe.run(feeds)["y"], wanted(m, feeds)[0])


@pytest.mark.usefixtures("float16")
@pytest.mark.parametrize("name", ["gelu", "skip rms", "rms", "skip norm", "fast gelu, bias"])
def test_in_sixteen_bits(name: str) -> None:
    m, feeds = built(name, 17, np.float16)
    exe = superopt.compile(m)
    assert exe.fallback_nodes({}) == []
    for ours, theirs in zip(exe.run(feeds).values(), wanted(m, feeds), strict=True):
        assert ours.dtype == theirs.dtype == np.float16
        np.testing.assert_allclose(ours, theirs, rtol=1e-2, atol=4e-3)


ODD: dict[str, Callable[[onnx.NodeProto], object]] = {
    "no heads": lambda n: n.attribute.pop(),
    "more heads than columns": lambda n: setattr(n.attribute[0], "i", 10**6),
    "0 heads": lambda n: setattr(n.attribute[0], "i", 0),
    "heads in words": lambda n: n.attribute[0].CopyFrom(helper.make_attribute("num_heads", "a")),
    "too few operands": lambda n: n.input.pop() and n.input.pop() and n.input.pop(),
    "too many": lambda n: n.input.extend(["i0"] * 20),
    "no result": lambda n: n.output.pop(),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", ODD)
def test_of_odd_nodes_a_clear_error(name: str) -> None:
    m, _ = built("attention", 17)
    ODD[name](m.graph.node[0])
    with pytest.raises(superopt.errors.SuperoptError):
        superopt.compile(m)
