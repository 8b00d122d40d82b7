"""What `superopt explain` says of a quantized model."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper

from superopt.api.model_files import compile_model
from superopt.report.compilation.compile_report import (
    CompilationReport,
    TuningReport,
    compilation_text,
    fallback_text,
)
from superopt.report.compilation.quantization import QuantizationSummary
from superopt.report.data import codec
from superopt.report.html.compilation_page import compilation_page
from tests.support.quantized_models import FLOAT, INT32, S8, U8, QuantizedLayers, onnx_model

Golden = Callable[[str, str], None]


def compile_report(net: onnx.ModelProto) -> CompilationReport:
    return compile_model(
        net, threads=1, shapes={}, dump=None, float_class="E2", target="cpu", precision="fp32",
        vendor=True,
    )  # fmt: skip


def report(net: onnx.ModelProto) -> CompilationReport:
    found = compile_report(net)
    assert found.quantization is not None
    return replace(found, quantization=replace(found.quantization, saturates_here=False))


def summary(net: onnx.ModelProto) -> QuantizationSummary:
    found = report(net).quantization
    assert found is not None
    return found


def counts(q: QuantizationSummary) -> set[tuple[str, str, int, str]]:
    return {(p.op, p.exactness, p.count, p.why) for p in q.products}


def mixed_network() -> onnx.ModelProto:
    """A convolution, one of groups, a product of two activations, and one of given weights."""
    node = helper.make_node
    rng = np.random.default_rng(0)
    known = {
        "s": np.float32(0.05), "z": np.uint8(128), "t": np.float32(0.01),
        "w": rng.integers(-127, 128, (8, 4, 3, 3)).astype(np.int8),
        "g": rng.integers(-60, 61, (8, 1, 3, 3)).astype(np.int8),
    }  # fmt: skip
    known["w"][5:] //= 2  # three channels that do not saturate

    def quantize_nodes(x: str) -> list[onnx.NodeProto]:
        return [
            node("QuantizeLinear", [x, "s", "z"], [f"{x}q"]),
            node("DequantizeLinear", [f"{x}q", "s", "z"], [f"{x}d"]),
        ]

    nodes = [
        *quantize_nodes("x"),
        node("DequantizeLinear", ["w", "t"], ["wd"]),
        node("Conv", ["xd", "wd"], ["a"], pads=[1] * 4),
        *quantize_nodes("a"),
        node("MatMul", ["ad", "ad"], ["b"]),
        *quantize_nodes("b"),
        node("DequantizeLinear", ["g", "t"], ["gd"]),
        node("Conv", ["bd", "gd"], ["c"], group=8),
        node("QuantizeLinear", ["c", "s", "z"], ["cq"]),
        node("DequantizeLinear", ["cq", "s", "z"], ["y"]),
    ]
    return onnx_model(nodes, {"x": (FLOAT, [1, 4, 6, 6])}, ("y", FLOAT), known)


def test_which_products_are_exact_and_why() -> None:
    q = summary(mixed_network())
    assert q.quantizers == 4
    assert counts(q) == {
        ("Conv", "one step", 2, ""), ("MatMul", "floats", 1, "of two activations")
    }  # fmt: skip
    (conv,) = (s for s in q.saturating if s.node == "Conv a")
    assert (conv.channels, conv.of, conv.terms) == (5, 8, 36)
    assert conv.largest > 60_000
    assert conv.remedy == "session.x64quantprecision"


def test_sums_of_integers_are_exact() -> None:
    product = helper.make_node("MatMulInteger", ["x", "w"], ["y"])
    given: dict[str, tuple[int, list[int | str]]] = {"x": (U8, [2, 6])}
    w = np.zeros((6, 3), np.int8)
    w[2:4, 1] = 65, 64
    q = summary(onnx_model([product], given, ("y", INT32), {"w": w}))
    assert counts(q) == {("MatMulInteger", "exact", 1, "")}
    (found,) = q.saturating
    assert (found.channels, found.of, found.terms, found.largest) == (1, 3, 6, 255 * 129)
    w[2:4, 1] = 64, 64
    assert not summary(onnx_model([product], given, ("y", INT32), {"w": w})).saturating


def test_weights_that_are_given_run_in_onnxruntime() -> None:
    pytest.importorskip("onnxruntime")
    given: dict[str, tuple[int, list[int | str]]] = {"x": (U8, [2, 6]), "w": (S8, [6, 3])}
    net = onnx_model(
        [helper.make_node("MatMulInteger", ["x", "w"], ["y"])], given, ("y", INT32), {}
    )
    q = summary(net)
    assert counts(q) == {("MatMulInteger", "fallback", 1, "")}
    (found,) = q.saturating
    assert (found.of, found.remedy) == (0, "none")


def test_other_models_have_no_such_lines() -> None:
    net = onnx_model(
        [helper.make_node("Relu", ["x"], ["y"])], {"x": (FLOAT, [2])}, ("y", FLOAT), {}
    )
    found = compile_report(net)
    assert found.quantization is None
    assert "quantization" not in fallback_text(found)


def test_the_texts(golden: Golden) -> None:
    layers = replace(report(QuantizedLayers(2).model()), model="layers.onnx")
    mixed = replace(report(mixed_network()), model="mixed.onnx")
    golden("explain-quantized.txt", fallback_text(layers) + "\n" + fallback_text(mixed))
    (line,) = (x for x in compilation_text(layers).splitlines() if "saturate" in x)
    assert line.strip() == (
        "2 products may saturate in onnxruntime and OpenVINO on x86 without VNNI: 96 of 96 output "
        "channels"
    )
    data = json.loads(codec.dumps(layers))
    assert data["quantization"]["products"][0]["exactness"] == "one step"
    page = compilation_page(layers, TuningReport((), 1.0))
    assert "one step: 2 MatMul" in page
