"""Dequantization behind data movement."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import superopt
from superopt.ir.evaluate import evaluate
from superopt.ir.graph import nodes
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import read_model
from superopt.plan.graph.quantization.data_movement import move_dequantization
from superopt.plan.graph.simplify import simplify_graph

CONSTANTS = "<float s = {0.05}, uint8 z = {100}, float t = {0.03}>"
QUANTIZED = "y = QuantizeLinear(m, s, z)"
# What is left is only movement of bytes.
CANCELS = {
    "heads": f"""(uint8[9, 12] x) => (uint8[3, 9, 4] y) {CONSTANTS} {{
        d = DequantizeLinear(x, s, z) h = Constant<value_ints = [9, 3, 4]>() r = Reshape(d, h)
        q = QuantizeLinear(r, s, z) e = DequantizeLinear(q, s, z)
        m = Transpose<perm = [1, 0, 2]>(e) {QUANTIZED} }}""",
    "parts": f"""(uint8[2, 7] x) => (uint8[2, 3] y) {CONSTANTS} {{
        d = DequantizeLinear(x, s, z) h = Constant<value_ints = [4, 3]>()
        a, m = Split<axis = 1>(d, h) {QUANTIZED} }}""",
    "concatenation": f"""(uint8[2, 7] x, uint8[2, 3] p) => (uint8[2, 10] y) {CONSTANTS} {{
        d = DequantizeLinear(x, s, z) e = DequantizeLinear(p, s, z) m = Concat<axis = 1>(d, e)
        {QUANTIZED} }}""",
    "pool": f"""(uint8[1, 2, 6, 6] x) => (uint8[1, 2, 6, 6] y) {CONSTANTS} {{
        d = DequantizeLinear(x, s, z)
        m = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(d) {QUANTIZED} }}""",
    "nearest": f"""(uint8[1, 2, 3, 4] x) => (uint8[1, 2, 6, 8] y)
        <float s = {{0.05}}, uint8 z = {{100}}, float[4] f = {{1.0, 1.0, 2.0, 2.0}}> {{
        d = DequantizeLinear(x, s, z)
        m = Resize<mode = "nearest", nearest_mode = "floor",
            coordinate_transformation_mode = "asymmetric">(d, , f) {QUANTIZED} }}""",
}
# Scales differ, or a sum is computed.
STAYS = {
    "another scale": f"""(uint8[2, 7] x, uint8[2, 3] p) => (float[2, 10] y) {CONSTANTS} {{
        d = DequantizeLinear(x, s, z) e = DequantizeLinear(p, t, z)
        y = Concat<axis = 1>(d, e) }}""",
    "means": f"""(uint8[1, 2, 6, 6] x) => (float[1, 2, 5, 5] y) {CONSTANTS} {{
        d = DequantizeLinear(x, s, z) y = AveragePool<kernel_shape = [2, 2]>(d) }}""",
    "rows with scales": """(uint8[2, 6] x) => (float[12] y) <float[2] s = {0.05, 0.5}> {
        d = DequantizeLinear<axis = 0>(x, s)
        h = Constant<value_ints = [12]>() y = Reshape(d, h) }""",
}


def parse_model(text: str) -> onnx.ModelProto:
    m = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {text}')
    onnx.checker.check_model(m)
    return m


def drawn_bytes(m: onnx.ModelProto) -> dict[str, np.ndarray]:
    rng, out = np.random.default_rng(0), {}
    for v in m.graph.input:
        shape = [d.dim_value for d in v.type.tensor_type.shape.dim]
        out[v.name] = rng.integers(0, 256, shape).astype(np.uint8)
    return out


@pytest.mark.parametrize("name", CANCELS)
def test_quantization_cancels_through_movement(name: str) -> None:
    m = parse_model(CANCELS[name])
    graph = import_model(read_model(m)).graph
    ops = [n.op.name for n in nodes(simplify_graph(graph))]
    assert not {"QuantizeLinear", "DequantizeLinear", "Mul", "Round"} & {*ops}
    x = drawn_bytes(m)
    (wanted,) = evaluate(graph, x)
    got = superopt.compile(m, threads=1).run(x)["y"]
    np.testing.assert_array_equal(got, np.asarray(wanted))
    assert got.dtype == np.uint8


@pytest.mark.parametrize("name", STAYS)
def test_other_dequantization_stays(name: str) -> None:
    m = parse_model(STAYS[name])
    graph = import_model(read_model(m)).graph
    assert move_dequantization(graph) is graph
    x = drawn_bytes(m)
    (wanted,) = evaluate(graph, x)
    got = superopt.compile(m, threads=1).run(x)["y"]
    np.testing.assert_allclose(got, np.asarray(wanted), rtol=1e-6, atol=1e-6)


def test_transposed_weights_with_scales_are_multiplied_as_integers() -> None:
    rng = np.random.default_rng(0)
    m = parse_model("""(uint8[5, 20] x, int8[16, 20] w, float[16] t) => (float[5, 16] y)
        <float s = {0.05}, uint8 z = {100}> { d = DequantizeLinear(x, s, z)
        e = DequantizeLinear<axis = 0>(w, t) f = Transpose<perm = [1, 0]>(e) y = MatMul(d, f) }""")
    arrays = {
        "w": rng.integers(-128, 128, (16, 20)).astype(np.int8),
        "t": rng.uniform(0.01, 0.1, 16).astype(np.float32),
    }
    for name, array in arrays.items():
        m.graph.input.remove(next(v for v in m.graph.input if v.name == name))
        m.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    graph = import_model(read_model(m)).graph
    assert "MatMulInteger" in [n.op.name for n in nodes(simplify_graph(graph))]
    x = drawn_bytes(m)
    wanted = (x["x"].astype(float) - 100) * np.float32(0.05) @ (arrays["w"].T * arrays["t"])
    np.testing.assert_allclose(superopt.compile(m).run(x)["y"], wanted, rtol=1e-5, atol=1e-4)
