"""Models of 8-bit integers: products exact by ONNX's definition, modulo 2^32, at any size."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import superopt
from superopt.ir.evaluate import evaluate
from superopt.ir.graph import nodes
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import read_model
from superopt.plan.lowering.graph_tensors import GraphTensors
from superopt.te.eval.domain import Reals
from superopt.te.expr.dtype import F64
from tests.support.compilation.exporting import CC, HERE, OK, InC

U8, S8, FLOAT, INT32 = TensorProto.UINT8, TensorProto.INT8, TensorProto.FLOAT, TensorProto.INT32
DTYPES = {U8: np.uint8, S8: np.int8}


def model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int, list[int | str]]],
    output: int,
    known: dict[str, np.ndarray],
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info(n, kind, shape) for n, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info("y", output, None)],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in known.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def definition_result(m: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    """What the operators' expressions give."""
    (out,) = evaluate(import_model(read_model(m)).graph, feeds)
    return np.asarray(out)


def whole_range(kind: int, shape: tuple[int, ...], seed: int) -> np.ndarray:
    rng, ends = np.random.default_rng(seed), np.iinfo(DTYPES[kind])
    some = rng.integers(ends.min, ends.max + 1, shape)
    extreme = rng.choice([ends.min, ends.max], shape)
    return np.where(rng.random(shape) < 0.4, extreme, some).astype(DTYPES[kind])


KINDS = st.sampled_from([U8, S8])


@settings(max_examples=12, deadline=None)
@given(
    KINDS, KINDS, st.integers(1, 40), st.integers(1, 200), st.integers(1, 70), st.booleans(),
    st.integers(0, 1 << 30),
)  # fmt: skip
def test_matrix_products_are_exact(
    of_x: int, of_w: int, m: int, k: int, n: int, per_column: bool, seed: int
) -> None:
    shape = (n,) if per_column else ()
    known = {
        "w": whole_range(of_w, (k, n), seed), "z": whole_range(of_x, (), seed + 1),
        "v": whole_range(of_w, shape, seed + 2),
    }  # fmt: skip
    net = model(
        [helper.make_node("MatMulInteger", ["x", "w", "z", "v"], ["y"])], {"x": (of_x, [m, k])},
        INT32, known,
    )  # fmt: skip
    exe = superopt.compile(net)
    assert not exe.fallback_nodes({})
    x = {"x": whole_range(of_x, (m, k), seed + 3)}
    np.testing.assert_array_equal(exe.run(x)["y"], definition_result(net, x))


@settings(max_examples=12, deadline=None)
@given(
    KINDS, KINDS, st.integers(1, 3), st.integers(1, 40), st.integers(1, 40), st.integers(1, 5),
    st.integers(1, 3), st.integers(0, 2), st.integers(5, 14), st.integers(0, 1 << 30),
)  # fmt: skip
def test_convolutions_are_exact(
    of_x: int, of_w: int, stride: int, inner: int, outer: int, window: int, dilation: int,
    pad: int, size: int, seed: int,
) -> None:  # fmt: skip
    if dilation * (window - 1) + 1 > size + 2 * pad:
        return
    known = {
        "w": whole_range(of_w, (outer, inner, window, window), seed),
        "z": whole_range(of_x, (), seed + 1), "v": whole_range(of_w, (outer,), seed + 2),
    }  # fmt: skip
    conv = helper.make_node(
        "ConvInteger", ["x", "w", "z", "v"], ["y"], pads=[pad] * 4, strides=[stride] * 2,
        dilations=[dilation] * 2,
    )  # fmt: skip
    net = model([conv], {"x": (of_x, [2, inner, size, size])}, INT32, known)
    exe = superopt.compile(net)
    assert not exe.fallback_nodes({})
    x = {"x": whole_range(of_x, (2, inner, size, size), seed + 3)}
    np.testing.assert_array_equal(exe.run(x)["y"], definition_result(net, x))


def test_programs_of_all_sizes_share_the_weights() -> None:
    known = {"w": whole_range(U8, (32, 16), 0), "v": whole_range(U8, (16,), 1)}
    net = model([helper.make_node("MatMulInteger", ["x", "w", "", "v"], ["y"])],
                {"x": (U8, ["n", 32])}, INT32, known)  # fmt: skip
    graph = import_model(read_model(net)).graph
    found = []
    for n in (3, 5):
        tensors = GraphTensors({"n": n})
        for node in nodes(graph):
            tensors.add(node)
        found.append([load for t, load in tensors.constants.items() if t.name[0] != "x"])
    assert len(found[0]) == 2  # weights, and their zero points less 128
    assert all(a is b for a, b in zip(*found, strict=True))


def test_sums_wrap_around() -> None:
    """255 * 127 * 70,000 exceeds 2^31: the sum is modulo 2^32."""
    k = 70_000
    w = np.full((k, 16), 127, np.int8)
    net = model([helper.make_node("MatMulInteger", ["x", "w"], ["y"])], {"x": (U8, [2, k])},
                INT32, {"w": w})  # fmt: skip
    x = np.full((2, k), 255, np.uint8)
    wanted = (np.int64(k) * 255 * 127 + 2**31) % 2**32 - 2**31
    assert (superopt.compile(net).run({"x": x})["y"] == wanted).all()


def residual_network() -> onnx.ModelProto:
    """QDQ around convolutions, an addition, pools and a Gemm with a bias, as onnxruntime's tools
    write them."""
    rng = np.random.default_rng(3)
    known: dict[str, np.ndarray] = {}
    nodes: list[onnx.NodeProto] = []

    def quantize(x: str, scale: float) -> str:
        known[f"{x}s"], known[f"{x}z"] = np.float32(scale), np.uint8(110)
        nodes.append(helper.make_node("QuantizeLinear", [x, f"{x}s", f"{x}z"], [f"{x}q"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"{x}q", f"{x}s", f"{x}z"], [f"{x}d"]))
        return f"{x}d"

    def weights(name: str, shape: tuple[int, ...]) -> str:
        known[f"{name}w"] = whole_range(S8, shape, len(known))
        known[f"{name}t"] = (rng.random(shape[0]) * 0.01 + 0.001).astype(np.float32)
        known[f"{name}v"] = np.zeros(shape[0], np.int8)
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}w", f"{name}t", f"{name}v"],
                                      [f"{name}f"], axis=0))  # fmt: skip
        return f"{name}f"

    def conv(x: str, out: str, channels: int, inner: int) -> None:
        known[f"{out}b"] = rng.standard_normal(channels).astype(np.float32)
        w = weights(out, (channels, inner, 3, 3))
        nodes.append(helper.make_node("Conv", [x, w, f"{out}b"], [f"{out}c"], pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"{out}c"], [out]))

    conv(quantize("x", 0.02), "a", 24, 3)
    conv(quantize("a", 0.1), "b", 24, 24)
    nodes.append(helper.make_node("Add", ["ad", quantize("b", 0.3)], ["c"]))
    nodes.append(helper.make_node("MaxPool", [quantize("c", 0.3)], ["p"], kernel_shape=[2, 2],
                                  strides=[2, 2]))  # fmt: skip
    nodes.append(helper.make_node("GlobalAveragePool", [quantize("p", 0.3)], ["g"]))
    nodes.append(helper.make_node("Flatten", [quantize("g", 0.3)], ["f"]))
    known["gemmb"] = rng.standard_normal(10).astype(np.float32)
    nodes.append(helper.make_node("Gemm", ["f", weights("gemm", (10, 24)), "gemmb"], ["h"],
                                  transB=1))  # fmt: skip
    known["ys"], known["yz"] = np.float32(0.05), np.uint8(128)
    nodes.append(helper.make_node("QuantizeLinear", ["h", "ys", "yz"], ["y"]))
    return model(nodes, {"x": (FLOAT, [1, 3, 16, 16])}, U8, known)


def test_a_network_of_dequantized_products_differs_by_at_most_one_step() -> None:
    """From its definition in float64."""
    net = residual_network()
    exe = superopt.compile(net)
    assert not exe.fallback_nodes({})
    graph = import_model(read_model(net)).graph
    for seed in range(5):
        x = {"x": np.random.default_rng(seed).standard_normal((1, 3, 16, 16)).astype(np.float32)}
        (wanted,) = evaluate(graph, x, Reals(F64))
        got = exe.run(x)["y"].astype(int)
        assert np.abs(got - np.asarray(wanted).astype(int)).max() <= 1
        assert len({*got.ravel()}) > 3  # no saturated result


@pytest.mark.parametrize("specialize", ["never", "eager"])
def test_dynamic_quantization_of_any_number_of_rows(specialize: str) -> None:
    rng = np.random.default_rng(0)
    known = {
        "w": whole_range(S8, (96, 40), 1), "v": np.int8(0), "t": np.float32(0.01),
        "b": rng.standard_normal(40).astype(np.float32),
    }  # fmt: skip
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("MatMulInteger", ["q", "w", "z", "v"], ["i"]),
        helper.make_node("Cast", ["i"], ["f"], to=FLOAT),
        helper.make_node("Mul", ["s", "t"], ["st"]), helper.make_node("Mul", ["f", "st"], ["g"]),
        helper.make_node("Add", ["g", "b"], ["y"]),
    ]  # fmt: skip
    net = model(nodes, {"x": (FLOAT, ["n", 96])}, FLOAT, known)
    exe = superopt.compile(net, specialize=specialize)
    for n in (1, 2, 7, 33, 64):
        x = {"x": rng.standard_normal((n, 96)).astype(np.float32)}
        np.testing.assert_allclose(exe.run(x)["y"], definition_result(net, x), rtol=2e-6, atol=2e-6)


@pytest.mark.skipif(CC is None or not HERE, reason="needs Linux on x86-64 and a C compiler")
def test_c_gets_the_same_bits(tmp_path: Path) -> None:
    """Exported code cannot ask the system for AMX's registers: it uses other instructions."""
    exe = superopt.compile(residual_network())
    x = {"x": np.random.default_rng(0).standard_normal((1, 3, 16, 16)).astype(np.float32)}
    opened = InC(exe.export(tmp_path / "m"))
    assert opened.error == OK
    np.testing.assert_array_equal(opened.run(x)["y"], exe.run(x)["y"])
    opened.close()


@pytest.mark.skipif(CC is None or not HERE, reason="needs Linux on x86-64 and a C compiler")
@pytest.mark.parametrize("sizes", [{"n": 5}, None])
def test_c_gets_the_same_bits_for_rows(sizes: dict[str, int] | None, tmp_path: Path) -> None:
    """For one number of rows, and for all."""
    w = whole_range(S8, (64, 32), 1)
    net = model([helper.make_node("MatMulInteger", ["x", "w"], ["y"])], {"x": (U8, ["n", 64])},
                INT32, {"w": w})  # fmt: skip
    exe = superopt.compile(net)
    opened = InC(exe.export(tmp_path / "m", shapes=sizes))
    assert opened.error == OK
    x = {"x": whole_range(U8, (5, 64), 2)}
    got = np.zeros((5, 32), np.int32)
    assert opened.call([x["x"]], [got], [] if sizes else [5]) == OK
    np.testing.assert_array_equal(got, definition_result(net, x))
    opened.close()


def test_another_process_runs_the_program_from_the_cache(tmp_path: Path) -> None:
    """It asks for the permission to use AMX before it runs the code."""
    path = tmp_path / "m.onnx"
    onnx.save(residual_network(), path)
    child = (
        "import sys, numpy as np, superopt; "
        "x = np.linspace(-1, 1, 768, dtype=np.float32).reshape(1, 3, 16, 16); "
        "print(superopt.compile(sys.argv[1]).run({'x': x})['y'].ravel().tolist())"
    )
    command = [sys.executable, "-c", child, str(path)]
    first, second = (
        subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)
    )
    assert first == second != ""
