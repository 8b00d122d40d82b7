"""Functions of 8 bits as tables: which are, and their elements."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import superopt
from superopt.ir.evaluate import evaluate
from superopt.ir.graph import nodes
from superopt.kernels.llvm.byte_lookups import has_byte_lookups
from superopt.kernels.processor import ZEN5
from superopt.kernels.runtime.engine import Machine
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import read_model
from superopt.plan.graph.simplify import simplify_graph
from superopt.te.expr import index as te_index
from superopt.te.expr.dtype import I32, U8
from superopt.te.expr.tensor import Tensor, cast, compute, gather

CONSTANTS = """<float s = {0.05}, float t = {0.004}, float r = {0.03}, uint8 z = {100},
    uint8 o = {0}, int8 n = {-3}, float two = {2.0}>"""
SILU = """v = DequantizeLinear(q, s, z) g = Sigmoid(v) gq = QuantizeLinear(g, t, o)
    gd = DequantizeLinear(gq, t, o) m = Mul(v, gd) y = QuantizeLinear(m, r, z)"""
TABLES = {
    "SiLU": f"(uint8[3, 5, 40] q) => (uint8[3, 5, 40] y) {CONSTANTS} {{ {SILU} }}",
    "int8": f"""(int8[7, 100] q) => (int8[7, 100] y) {CONSTANTS} {{
        v = DequantizeLinear(q, s, n) g = Tanh(v) y = QuantizeLinear(g, t, n) }}""",
    "int8 to uint8": f"""(int8[70] q) => (uint8[70] y) {CONSTANTS} {{
        v = DequantizeLinear(q, s) g = Exp(v) y = QuantizeLinear(g, r) }}""",
    "Gelu in steps": f"""(uint8[2, 9, 33] q) => (uint8[2, 9, 33] y) {CONSTANTS} {{
        v = DequantizeLinear(q, s, z) d = Div(v, two) dq = QuantizeLinear(d, r, z)
        dd = DequantizeLinear(dq, r, z) e = Erf(dd) eq = QuantizeLinear(e, t, z)
        ed = DequantizeLinear(eq, t, z) m = Mul(v, ed) y = QuantizeLinear(m, r, z) }}""",
    "of a product": f"""(uint8[90, 16] x) => (uint8[90, 16] y) {CONSTANTS} {{
        xd = DequantizeLinear(x, s, z) c = MatMul(xd, w) q = QuantizeLinear(c, s, z) {SILU} }}""",
    "of an image": f"""(uint8[1, 16, 9, 15] x) => (uint8[1, 16, 9, 15] y) {CONSTANTS} {{
        xd = DequantizeLinear(x, s, z) c = Conv(xd, k) q = QuantizeLinear(c, s, z) {SILU} }}""",
}
OTHERS = {
    "an affine function": f"""(uint8[3, 5] q) => (uint8[3, 5] y) {CONSTANTS} {{
        v = DequantizeLinear(q, s, z) g = Mul(v, two) y = QuantizeLinear(g, r, z) }}""",
    "of two values": f"""(uint8[3, 5] q, uint8[3, 5] p) => (uint8[3, 5] y) {CONSTANTS} {{
        v = DequantizeLinear(q, s, z) u = DequantizeLinear(p, s, z) a = Add(u, v) g = Sigmoid(a)
        y = QuantizeLinear(g, t, z) }}""",
}


def model_of(text: str) -> onnx.ModelProto:
    m = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {text}')
    rng = np.random.default_rng(0)
    drawn = {"w": rng.standard_normal((16, 16)), "k": rng.standard_normal((16, 16, 1, 1))}
    used = {name for n in m.graph.node for name in n.input}
    for name in used & {*drawn}:
        scale, q = np.float32(0.01), f"{name}q"
        values = np.clip(np.rint(20 * drawn[name]), -128, 127).astype(np.int8)
        m.graph.initializer.append(onnx.numpy_helper.from_array(values, q))
        m.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(scale), f"{name}s"))
        made = onnx.helper.make_node("DequantizeLinear", [q, f"{name}s"], [name])
        m.graph.node.insert(0, made)
    onnx.checker.check_model(m)
    return m


def every_byte(m: onnx.ModelProto, seed: int) -> dict[str, np.ndarray]:
    """All values in drawn order, again and again."""
    rng, out = np.random.default_rng(seed), {}
    for v in m.graph.input:
        shape = [d.dim_value for d in v.type.tensor_type.shape.dim]
        some = [rng.permutation(256) for _ in range(-(-np.prod(shape) // 256))]
        drawn = np.concatenate(some)[: np.prod(shape)].astype(np.uint8).reshape(shape)
        signed = v.type.tensor_type.elem_type == onnx.TensorProto.INT8
        out[v.name] = drawn.view(np.int8) if signed else drawn
    return out


@pytest.mark.parametrize("name", TABLES)
def test_tables_have_the_values_of_the_definition(name: str) -> None:
    """In float64: bit for bit, but where a product before is quantized to the step beside, which
    is up to two steps of the function."""
    m = model_of(TABLES[name])
    graph = import_model(read_model(m)).graph
    ops = [n.op.name for n in nodes(simplify_graph(graph))]
    assert "Gather" in ops
    assert not {"Sigmoid", "Tanh", "Exp", "Erf", "QuantizeLinear"} & {*ops}
    exe = superopt.compile(m, threads=1)
    for seed in range(3):
        x = every_byte(m, seed)
        (wanted,) = evaluate(graph, x)
        got, wanted = exe.run(x)["y"].astype(int), np.asarray(wanted).astype(int)
        assert np.abs(got - wanted).max() <= 2 * (len(ops) > 2)
        assert (got != wanted).mean() < 0.01
    assert exe.fallback_nodes({}) == []


@pytest.mark.parametrize("name", OTHERS)
def test_other_functions_are_computed(name: str) -> None:
    m = model_of(OTHERS[name])
    graph = import_model(read_model(m)).graph
    assert "Gather" not in [n.op.name for n in nodes(simplify_graph(graph))]
    x = every_byte(m, 0)
    (wanted,) = evaluate(graph, x)
    got = superopt.compile(m).run(x)["y"].astype(int)
    assert np.abs(got - np.asarray(wanted).astype(int)).max() <= 1


def test_float_class_e0_keeps_functions() -> None:
    graph = import_model(read_model(model_of(TABLES["SiLU"]))).graph
    assert "Sigmoid" in [n.op.name for n in nodes(simplify_graph(graph, "E0"))]


def test_lookups_are_permutations_where_the_processor_has_them() -> None:
    """A table of 256 bytes that an integer of 8 bits selects from, and nothing else."""
    table, q, wide = Tensor("table", U8, (256,)), Tensor("q", U8, (64,)), Tensor("i", I32, (64,))
    by_byte = compute((64,), lambda i: table[gather(cast(q[i], I32), te_index.as_index(256))])
    by_integer = compute((64,), lambda i: table[gather(wide[i], te_index.as_index(256))])
    assert has_byte_lookups(by_byte.body)
    assert not has_byte_lookups(by_integer.body)
    some = "+avx512f,+avx512vbmi"
    assert Machine("znver5", some, 64).processor.permutes_bytes
    assert not Machine("znver5", "+avx512f,-avx512vbmi", 64).processor.permutes_bytes
    assert not ZEN5.permutes_bytes
