"""Smallest graphs of 8-bit integers that were wrong, or that no kernel was made of, once."""

from __future__ import annotations

import numpy as np
import pytest

import superopt
from superopt.ir.evaluate import evaluate
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import read_model
from tests.support.integer_texts import drawn_integer_model

# Graphs in ONNX's text syntax; inputs whose names begin with "w" are constants of the whole range.
GRAPHS = {
    "a limit beyond the range": """(uint8[4, 4] x) => (uint8[4, 4] y)
        <float s = {0.45}, uint8 z = {3}, float low = {108.0}, float high = {113.0},
         float t = {0.387}>
        { d = DequantizeLinear(x, s, z) c = Clip(d, low, high) y = QuantizeLinear(c, t) }""",
    "few channels in groups, quantized": """(uint8[1, 24, 4, 4] x, int8[24, 1, 1, 1] w)
        => (uint8[1, 24, 4, 4] y) <float s = {40.0}>
        { i = ConvInteger<group = 24>(x, w) f = Cast<to = 1>(i) y = QuantizeLinear(f, s) }""",
    "a term axis of several axes": """(uint8[1, 5, 47, 9] x, uint8[2115, 16] w)
        => (int32[1, 16] y) { f = Flatten(x) y = MatMulInteger(f, w) }""",
    "groups before a product": """(uint8[2, 4, 5, 1] x, uint8[8, 2, 1, 1] w, uint8[1, 3] w2)
        => (int32[2, 8, 5, 3] y)
        <float s = {1.0}, float t = {900.0}, uint8 z = {128}, uint8 v = {0}>
        { q = QLinearConv<group = 2>(x, s, z, w, s, v, t, z) y = MatMulInteger(q, w2) }""",
    "groups of uint8 weights": """(int8[2, 4, 5, 4] x, uint8[8, 1, 2, 2] w)
        => (int32[2, 8, 4, 3] y) { y = ConvInteger<group = 4>(x, w) }""",
    "a vector": """(int8[80] x, uint8[80, 32] w) => (uint8[32] y)
        <float s = {0.01}, int8 z = {5}, uint8 v = {9}>
        { y = QLinearMatMul(x, s, z, w, s, v, s, v) }""",
}  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_give_the_definition(name: str) -> None:
    m, feeds = drawn_integer_model(GRAPHS[name])
    exe = superopt.compile(m, threads=1)
    assert not exe.fallback_nodes({})
    (wanted,) = evaluate(import_model(read_model(m)).graph, feeds)
    np.testing.assert_array_equal(exe.run(feeds)["y"], np.asarray(wanted))
