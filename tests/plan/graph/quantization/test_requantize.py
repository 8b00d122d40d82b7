"""Requantization: which QuantizeLinear nodes are rewritten, which are not, and their results."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import superopt
from superopt.ir.evaluate import evaluate
from superopt.ir.graph import nodes
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import read_model
from superopt.plan.graph.simplify import simplify_graph
from superopt.te.eval.domain import Reals
from superopt.te.expr.dtype import F64

# Scales s0, s1, .. and zero points z0, z1, .. are constants, drawn as weights w, v and biases are:
# z0 is 0, the others are not.
CONV = "xd = DequantizeLinear(x, s0, z0) wd = DequantizeLinear<axis = 0>(w, t, u)"
QDQ = "{0}q = QuantizeLinear({0}, s1, z1) {0}d = DequantizeLinear({0}q, s1, z1)"
GRAPHS = {
    "scales": """(uint8[2, 16, 6, 6] x, int8[32, 16, 3, 3] w, float[32] t, int8[32] u, float[32] b)
        => (uint8[2, 32, 6, 6] y) {{ {conv} c = Conv<pads = [1, 1, 1, 1]>(xd, wd, b)
        y = QuantizeLinear(c, s1, z1) }}""",
    "border that is no zero": """(uint8[1, 16, 6, 6] x, int8[16, 16, 3, 3] w, float[16] t,
        int8[16] u) => (int8[1, 16, 6, 6] y) {{ xd = DequantizeLinear(x, s0, z1)
        wd = DequantizeLinear<axis = 0>(w, t, u) c = Conv<pads = [1, 1, 1, 1]>(xd, wd)
        y = QuantizeLinear(c, s1, z2) }}""",
    "Relu": """(uint8[1, 16, 6, 6] x, int8[16, 16, 1, 1] w, float[16] t, int8[16] u)
        => (uint8[1, 16, 6, 6] y) {{ {conv} c = Conv(xd, wd) r = Relu(c)
        y = QuantizeLinear(r, s1, z1) }}""",
    "limits": """(uint8[1, 16, 6, 6] x, int8[16, 16, 1, 1] w, float[16] t, int8[16] u)
        => (uint8[1, 16, 6, 6] y) {{ {conv} c = Conv(xd, wd) low = Constant<value_float = -0.7>()
        high = Constant<value_float = 1.3>() r = Clip(c, low, high)
        y = QuantizeLinear(r, s1, z1) }}""",
    "normalization": """(uint8[1, 16, 6, 6] x, int8[16, 16, 3, 3] w, float[16] t, int8[16] u,
        float[16] b, float[16] scale, float[16] shift, float[16] mean, float[16] var)
        => (uint8[1, 16, 4, 4] y) {{ {conv} c = Conv(xd, wd, b) {q}
        n = BatchNormalization(cd, scale, shift, mean, var) r = Relu(n)
        y = QuantizeLinear(r, s0, z0) }}""",
    "sum": """(uint8[1, 16, 6, 6] x, int8[16, 16, 3, 3] w, float[16] t, int8[16] u, float[16] b)
        => (uint8[1, 16, 6, 6] y) {{ {conv} c = Conv<pads = [1, 1, 1, 1]>(xd, wd, b) {q}
        a = Add(cd, xd) r = Relu(a) y = QuantizeLinear(r, s1, z2) }}""",
    "24 channels": """(uint8[1, 16, 6, 6] x, int8[24, 16, 1, 1] w, float[24] t, int8[24] u,
        float[24] b, int8[24, 24, 3, 3] w2) => (uint8[1, 24, 6, 6] y) {{ {conv}
        c = Conv(xd, wd, b) {q} vd = DequantizeLinear(w2, s2)
        e = Conv<pads = [1, 1, 1, 1]>(cd, vd) a = Add(e, cd) y = QuantizeLinear(a, s1, z1) }}""",
    "depthwise": """(uint8[1, 16, 9, 9] x, int8[24, 16, 1, 1] w, float[24] t, int8[24] u,
        float[24] b, int8[24, 1, 3, 3] w2) => (uint8[1, 24, 5, 5] y) {{ {conv}
        c = Conv(xd, wd, b) r = Relu(c) rq = QuantizeLinear(r, s1, z0)
        rd = DequantizeLinear(rq, s1, z0) vd = DequantizeLinear(w2, s2)
        e = Conv<pads = [1, 1, 1, 1], strides = [2, 2], group = 24>(rd, vd)
        y = QuantizeLinear(e, s1, z1) }}""",
    "pool": """(uint8[1, 16, 8, 8] x, int8[16, 16, 3, 3] w, float[16] t, int8[16] u)
        => (uint8[1, 16, 4, 4] y) {{ {conv} c = Conv<pads = [1, 1, 1, 1]>(xd, wd)
        p = MaxPool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(c)
        y = QuantizeLinear(p, s1, z1) }}""",
    "concatenation": """(uint8[1, 16, 5, 5] x, int8[16, 16, 3, 3] w, float[16] t, int8[16] u,
        int8[32, 16, 1, 1] w2) => (uint8[1, 48, 5, 5] y) {{ {conv}
        c = Conv<pads = [1, 1, 1, 1]>(xd, wd) vd = DequantizeLinear(w2, s2) e = Conv(xd, vd)
        a = Concat<axis = 1>(c, e) y = QuantizeLinear(a, s1, z1) }}""",
    "average": """(uint8[1, 16, 7, 7] x, int8[32, 16, 1, 1] w, float[32] t, int8[32] u)
        => (uint8[1, 32, 5, 5] y) {{ {conv} c = Conv(xd, wd) {q}
        p = AveragePool<kernel_shape = [3, 3]>(cd)
        y = QuantizeLinear(p, s2, z2) }}""",
    "average with zeros beyond the edge": """(uint8[1, 16, 7, 7] x) => (uint8[1, 16, 4, 4] y) {{
        d = DequantizeLinear(x, s0, z0) p = AveragePool<kernel_shape = [3, 3], strides = [2, 2],
        pads = [1, 1, 1, 1], count_include_pad = 1>(d) y = QuantizeLinear(p, s1, z2) }}""",
    "average of all": """(uint8[2, 96, 7, 7] x) => (uint8[2, 96, 1, 1] y) {{
        d = DequantizeLinear(x, s0, z1) p = GlobalAveragePool(d)
        y = QuantizeLinear(p, s2, z1) }}""",
    "matrix": """(uint8[9, 40] x, int8[40, 20] w, float[20] b) => (int8[9, 20] y) {{
        xd = DequantizeLinear(x, s0, z0) wd = DequantizeLinear(w, s2) c = MatMul(xd, wd)
        a = Add(c, b) y = QuantizeLinear(a, s1, z2) }}""",
}  # fmt: skip
MOVED = {
    "cancels": "(uint8[4, 6] x) => (uint8[4, 6] y) {{ a = DequantizeLinear(x, s1, z1)"
    " y = QuantizeLinear(a, s1, z1) }}",
    "before a concatenation": "(float[3, 4] x, float[3, 5] x2) => (uint8[3, 9] y) {{"
    " a = Concat<axis = 1>(x, x2) y = QuantizeLinear(a, s1, z1) }}",
}
STAYS = {
    "of a pool of floats": "(float[1, 4, 8, 8] x) => (uint8[1, 4, 4, 4] y) {{"
    " p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x) y = QuantizeLinear(p, s1, z1) }}",
    "a zero point of many steps": "(uint8[4, 6] x) => (uint8[4, 6] y) {{"
    " a = DequantizeLinear(x, s3, z1) y = QuantizeLinear(a, s2, z1) }}",
    "of floats": "(float[4, 6] x) => (uint8[4, 6] y) {{ y = QuantizeLinear(x, s1, z1) }}",
    "of a product of inputs": "(uint8[4, 6] x, uint8[6, 4] x2) => (uint8[4, 4] y) {{"
    " a = DequantizeLinear(x, s1, z1) b = DequantizeLinear(x2, s1, z1) c = MatMul(a, b)"
    " y = QuantizeLinear(c, s1, z1) }}",
    "an average with numbers beyond the edge": """(uint8[1, 4, 8, 8] x) => (uint8[1, 4, 8, 8] y)
        {{ a = DequantizeLinear(x, s1, z1) p = AveragePool<kernel_shape = [3, 3],
        pads = [1, 1, 1, 1], count_include_pad = 1>(a) y = QuantizeLinear(p, s1, z1) }}""",
    "other scale": "(uint8[4, 6] x, float[1] x2) => (uint8[4, 6] y) {{"
    " a = DequantizeLinear(x, x2, z1) y = QuantizeLinear(a, s1, z1) }}",
    "a sum that is an output, too": """(uint8[1, 16, 6, 6] x, int8[16, 16, 1, 1] w, float[16] t,
        int8[16] u) => (uint8[1, 16, 6, 6] y, float[1, 16, 6, 6] c) {{ {conv} c = Conv(xd, wd)
        y = QuantizeLinear(c, s1, z1) }}""",
}


def model_of(text: str, seed: int = 0) -> onnx.ModelProto:
    """The graph, with drawn constants for all inputs but those whose names begin with x."""
    rng = np.random.default_rng(seed)
    text = text.format(conv=CONV, q=QDQ.format("c"))
    m = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {text}')
    kinds = {"y": np.uint8 if "uint8[" in text.split("=>")[1] else np.int8}
    drawn: dict[str, np.ndarray] = {}
    for v in [v for v in m.graph.input if not v.name.startswith("x")]:
        shape = [d.dim_value for d in v.type.tensor_type.shape.dim]
        if v.type.tensor_type.elem_type == onnx.TensorProto.INT8:
            drawn[v.name] = rng.integers(-127, 128, shape).astype(np.int8) * (v.name != "u")
        else:
            drawn[v.name] = (0.5 + rng.random(shape)).astype(np.float32)
            drawn[v.name] *= np.float32(0.001 if v.name == "t" else 1.0)
        m.graph.input.remove(v)
    for n, scale in enumerate((0.02, 0.03, 0.002, 3000.0)):
        drawn[f"s{n}"] = np.float32(scale)
    zeros = {"z0": 0, "z1": 119, "z2": 3}
    for name, zero in zeros.items():
        made_by = [n for n in m.graph.node if [*n.input[-1:]] == [name]]
        of_result = any(n.op_type == "QuantizeLinear" and n.output[0] == "y" for n in made_by)
        drawn[name] = np.asarray(zero, kinds["y"] if of_result else np.uint8)
    used = set(re.findall(r"\b[sz]\d\b", text)) | {*drawn} - {*zeros, "s0", "s1", "s2", "s3"}
    m.graph.initializer.extend(numpy_helper.from_array(drawn[n], n) for n in sorted(used))
    onnx.checker.check_model(m)
    return m


def inputs_of(m: onnx.ModelProto, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    out = {}
    for v in m.graph.input:
        shape = [d.dim_value for d in v.type.tensor_type.shape.dim]
        if v.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            out[v.name] = (4 * rng.standard_normal(shape)).astype(np.float32)
        else:
            out[v.name] = rng.integers(0, 256, shape).astype(np.uint8)
    return out


def ops_of(m: onnx.ModelProto, float_class: str = "E2") -> list[str]:
    graph = simplify_graph(import_model(read_model(m)).graph, float_class)
    return [n.op.name for n in nodes(graph)]


@pytest.mark.parametrize("name", GRAPHS)
def test_merged_quantization_is_within_one_step_of_its_definition(name: str) -> None:
    """In float64. Elements that differ are those near ties."""
    m = model_of(GRAPHS[name])
    ops = ops_of(m)
    assert "QuantizeLinear" not in ops
    assert "DequantizeLinear" not in ops
    exe, graph = superopt.compile(m), import_model(read_model(m)).graph
    for seed in range(3):
        x = inputs_of(m, seed)
        (wanted,) = evaluate(graph, x, Reals(F64))
        got, wanted = exe.run(x)["y"].astype(int), np.asarray(wanted).astype(int)
        assert np.abs(got - wanted).max() <= 1
        assert (got != wanted).mean() < 0.01
        assert len({*got.ravel()}) > 20  # no saturated result


@pytest.mark.parametrize("name", MOVED)
def test_moved_quantization_is_exact(name: str) -> None:
    m = model_of(MOVED[name])
    exe, graph = superopt.compile(m), import_model(read_model(m)).graph
    for seed in range(3):
        x = inputs_of(m, seed)
        (wanted,) = evaluate(graph, x)
        np.testing.assert_array_equal(exe.run(x)["y"], np.asarray(wanted))
    assert not ops_of(m) or ops_of(m)[-1] != "QuantizeLinear"


@pytest.mark.parametrize("name", STAYS)
def test_other_quantization_stays(name: str) -> None:
    m = model_of(STAYS[name])
    assert "QuantizeLinear" in ops_of(m)
    x = inputs_of(m, 0)
    wanted = evaluate(import_model(read_model(m)).graph, x, Reals(F64))[0]
    got = superopt.compile(m).run(x)["y"].astype(int)
    assert np.abs(got - np.asarray(wanted).astype(int)).max() <= 1


def test_other_float_classes_keep_the_order_of_rounding() -> None:
    m = model_of(GRAPHS["scales"])
    assert "QuantizeLinear" in ops_of(m, "E0")
    assert "QuantizeLinear" not in ops_of(m, "E1")


def test_channels_are_padded_to_whole_vectors() -> None:
    """Those of a convolution of 24, and of the sum that reads its result."""
    graph = simplify_graph(import_model(read_model(model_of(GRAPHS["24 channels"]))).graph)
    made = [n.type.shape for n in nodes(graph) if n.op.name == "ConvInteger"]
    assert made == [(1, 32, 6, 6), (1, 32, 6, 6)]


def test_a_pool_of_floats_keeps_its_nan() -> None:
    m = model_of(STAYS["of a pool of floats"])
    x = inputs_of(m, 0)
    x["x"][0, 1, 2, 3] = np.nan
    (wanted,) = evaluate(import_model(read_model(m)).graph, x)
    np.testing.assert_array_equal(superopt.compile(m).run(x)["y"], np.asarray(wanted))


def test_long_sums_stay() -> None:
    """Deeper than Python goes."""
    steps = " ".join(f"a{k + 1} = Add(a{k}, c)" for k in range(1500))
    m = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        g (uint8[3] x) => (uint8[3] y) <float s = {{0.5}}, uint8 z = {{1}}, float c = {{0.01}}>
        {{ a0 = DequantizeLinear(x, s, z) {steps} y = QuantizeLinear(a1500, s, z) }}""")
    x = {"x": np.array([1, 7, 30], np.uint8)}
    np.testing.assert_array_equal(superopt.compile(m).run(x)["y"], x["x"] + 30)
