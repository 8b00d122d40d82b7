"""Small nets quantized in all ways that onnxruntime's tools know: results are onnxruntime's without
optimizations, up to quantization steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import superopt
from scripts.quantizer_settings import (
    CALIBRATION_SETS,
    SETTINGS,
    difference_of,
    drawn_inputs,
    prepare,
    quantize_with,
    runtime,
)

# Inputs whose names begin with "w" are constants.
NETS = {
    "residual": """(float[1, 3, 20, 20] x, float[16, 3, 3, 3] w1, float[16] w1b,
        float[16, 16, 3, 3] w2, float[24, 16, 1, 1] w3, float[16, 1, 3, 3] w4, float[10, 24] w5)
        => (float[1, 10] y) {
        a = Conv<pads = [1, 1, 1, 1]>(x, w1, w1b) b = Relu(a)
        c = Conv<pads = [1, 1, 1, 1]>(b, w2) d = Add(b, c) e = Relu(d)
        f = Conv<group = 16, pads = [1, 1, 1, 1], strides = [2, 2]>(e, w4) s = Sigmoid(f)
        g = Mul(f, s) h = AveragePool<kernel_shape = [2, 2], strides = [2, 2]>(g)
        i = Conv(h, w3) m = MaxPool<kernel_shape = [2, 2]>(i) p = GlobalAveragePool(m)
        q = Flatten(p) y = Gemm<transB = 1>(q, w5) }""",
    "attention with a mask": """(float[1, 12, 32] x, int64[1, 12] mask, float[32, 32] wq,
        float[32, 32] wk, float[32, 32] wv, float[32] wb, float[32, 64] w1, float[64, 32] w2,
        float[32] wg, float[32] wh) => (float[1, 12, 32] y)
        <float one = {1.0}, float least = {-3.4028235e38}, float sixteenth = {0.0625},
         int64[3] axes = {1, 1, 12}>
        { fm = Cast<to = 1>(mask) r = Reshape(fm, axes) n = Sub(one, r) away = Mul(n, least)
        q = MatMul(x, wq) qb = Add(q, wb) k = MatMul(x, wk) v = MatMul(x, wv)
        kt = Transpose<perm = [0, 2, 1]>(k) s = MatMul(qb, kt) ss = Mul(s, sixteenth)
        sm = Add(ss, away) p = Softmax<axis = -1>(sm) o = MatMul(p, v) z = Add(o, x)
        l = LayerNormalization(z, wg, wh) a = MatMul(l, w1) b = Relu(a) c = MatMul(b, w2)
        y = Add(c, l) }""",
}  # fmt: skip
MAX_MEAN_DIFFERENCE = 0.03  # by the output's rms: a few quantization steps in some elements


def small_net(text: str) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    m = onnx.ModelProto(ir_version=9)
    m.opset_import.add(domain="", version=17)
    m.graph.CopyFrom(parser.parse_graph("g " + text))
    for v in [v for v in m.graph.input if v.name[0] == "w"]:
        shape = [d.dim_value for d in v.type.tensor_type.shape.dim]
        array = rng.standard_normal(shape) / np.sqrt(max(np.prod(shape[1:]), 1))
        m.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), v.name))
        m.graph.input.remove(v)
    return m


@pytest.mark.one_in(6)
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("net", NETS)
def test_quantized_nets_give_what_the_runtime_gives(net: str, setting: str, tmp_path: Path) -> None:
    source, whole, path = (tmp_path / f"{n}.onnx" for n in ("net", "whole", "quantized"))
    onnx.save(small_net(NETS[net]), source)
    prepare(source, whole)
    inputs = [drawn_inputs(whole, {}, k) for k in range(CALIBRATION_SETS)]
    quantize_with(SETTINGS[setting], whole, path, inputs)
    feeds = drawn_inputs(whole, {}, CALIBRATION_SETS)
    exe = superopt.compile(path, threads=1)
    found = difference_of(exe.run(feeds).values(), runtime(path, optimized=False)(feeds))
    assert found.mean < MAX_MEAN_DIFFERENCE
