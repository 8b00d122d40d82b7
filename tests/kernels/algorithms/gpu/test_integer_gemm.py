"""Products of 8-bit integers on a GPU: exact, by tensor cores where they are large enough."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from superopt.compilation.cuda import load_compiler
from superopt.ir.evaluate import evaluate
from superopt.kernels.triton import codegen
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import read_model
from tests.support.integer_texts import drawn_integer_model

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("interpreted")]

# By kind: a graph of element types XT, WT and the zero point ZERO of x, and whether tensor cores
# take it.
GRAPHS = {
    "a matrix product": ("""(XT[40, 64] x, WT[64, 48] w) => (int32[40, 48] y) <XT z = {ZERO}>
        { y = MatMulInteger(x, w, z) }""", True),
    "zero points of columns": ("""(XT[2, 17, 70] x, WT[70, 33] w, WT[33] wv)
        => (int32[2, 17, 33] y) <XT z = {ZERO}> { y = MatMulInteger(x, w, z, wv) }""", True),
    "one row": ("""(XT[1, 64] x, WT[64, 48] w) => (int32[1, 48] y) <XT z = {ZERO}>
        { y = MatMulInteger(x, w, z) }""", False),
    "few terms": ("""(XT[40, 8] x, WT[8, 48] w) => (int32[40, 48] y) <XT z = {ZERO}>
        { y = MatMulInteger(x, w, z) }""", False),
    "less terms than a block": ("""(XT[40, 9] x, WT[9, 48] w) => (int32[40, 48] y) <XT z = {ZERO}>
        { y = MatMulInteger(x, w, z) }""", True),
    "a convolution with a border": ("""(XT[1, 32, 9, 9] x, WT[24, 32, 3, 3] w)
        => (int32[1, 24, 9, 9] y) <XT z = {ZERO}>
        { y = ConvInteger<pads = [1, 1, 1, 1]>(x, w, z) }""", True),
    "an image of three channels": ("""(XT[1, 3, 19, 19] x, WT[16, 3, 5, 5] w)
        => (int32[1, 16, 10, 10] y) <XT z = {ZERO}>
        { y = ConvInteger<pads = [2, 2, 2, 2], strides = [2, 2]>(x, w, z) }""", True),
    "requantized": ("""(XT[1, 40, 6, 6] x, WT[32, 40, 1, 1] w) => (XT[1, 32, 6, 6] y)
        <float s = {0.02}, XT z = {ZERO}, float t = {0.003}, WT v = {2}, float u = {0.4}>
        { y = QLinearConv(x, s, z, w, t, v, u, z) }""", True),
    "an unknown zero point": ("""(XT[40, 64] x, WT[64, 48] w, XT[1] p) => (int32[40, 48] y)
        { y = MatMulInteger(x, w, p) }""", True),
    "an image with an unknown zero point": ("""(XT[1, 32, 9, 9] x, WT[24, 32, 3, 3] w, XT p)
        => (int32[1, 24, 9, 9] y) { y = ConvInteger<pads = [1, 1, 1, 1]>(x, w, p) }""", True),
}  # fmt: skip


@pytest.mark.one_in(4)
@pytest.mark.parametrize("types", [*product(("uint8", "int8"), ("int8", "uint8"))], ids="-".join)
@pytest.mark.parametrize("name", GRAPHS)
def test_products_are_exact(
    name: str, types: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text, of_tensor_cores = GRAPHS[name]
    zero = "200" if types[0] == "uint8" else "-7"
    for old, new in zip(("XT", "WT", "ZERO"), (*types, zero), strict=True):
        text = text.replace(old, new)
    m, feeds = drawn_integer_model(text)
    dots: list[bool] = []
    emit = codegen.match_dot

    def record_dot(*given: object) -> object:
        found = emit(*given)  # type: ignore[arg-type]
        dots.append(found is not None)
        return found

    monkeypatch.setattr(codegen, "match_dot", record_dot)
    exe = load_compiler.compile_model(read_model(m))
    got = exe.run(feeds)["y"]
    assert not exe.fallback_nodes({})
    (wanted,) = evaluate(import_model(read_model(m)).graph, feeds)
    np.testing.assert_array_equal(got, np.asarray(wanted))
    assert any(dots) == of_tensor_cores
