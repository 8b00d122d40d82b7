#!/usr/bin/env python3
"""Elements of 8-bit integer products that differ from ONNX's definition, by runtime.

    scripts/wrong_integer_elements.py [--runtimes onnxruntime,openvino,superopt,model]

Peers multiply exactly on processors with VNNI. What they do on others is measured there, or here:

    ONEDNN_MAX_CPU_ISA=AVX2 scripts/wrong_integer_elements.py --runtimes openvino
    valgrind --tool=none python scripts/wrong_integer_elements.py --runtimes onnxruntime,superopt

The first is an option of oneDNN, which OpenVINO multiplies with. valgrind emulates a processor that
has AVX2 and no VNNI, so that onnxruntime chooses its kernels for AVX2. `model` is `vpmaddubsw` in
numpy. The definition is computed here with integers of 64 bits.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import onnx
from onnx import helper

from tests.support.quantized_models import FLOAT, INT32, U8, onnx_model
from tests.support.saturating_products import saturating_matmul

RUNTIMES = ("onnxruntime", "openvino", "superopt", "model")
Product = Callable[[np.ndarray, np.ndarray], np.ndarray]
Run = Callable[[], np.ndarray]


@dataclass(frozen=True)
class Case:
    """A model with its input, and its result by a product of matrices. step: of the result."""

    name: str
    model: onnx.ModelProto
    x: np.ndarray
    result: Callable[[Product], np.ndarray]
    step: float = 1.0


def exact_matmul(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return x.astype(np.int64) @ w.astype(np.int64)


def matmul_integer(bits: int) -> Case:
    """64 x 256 by 256 x 128, of the whole range. bits: of the weights."""
    rng, most = np.random.default_rng(0), 1 << (bits - 1)
    w = rng.integers(-most, most, (256, 128)).astype(np.int8)
    x = rng.integers(0, 256, (64, 256)).astype(np.uint8)
    nodes = [helper.make_node("MatMulInteger", ["x", "w"], ["y"])]
    net = onnx_model(nodes, {"x": (U8, [64, 256])}, ("y", INT32), {"w": w})
    return Case(f"MatMulInteger, weights of {bits} bits", net, x, lambda product: product(x, w))


def convolution(bits: int) -> Case:
    """QDQ around a 3 x 3 convolution of 32 channels, quantized to 8 bits."""
    rng, most = np.random.default_rng(0), 1 << (bits - 1)
    w = rng.integers(-most, most, (32, 32, 3, 3)).astype(np.int8)
    x = rng.random((1, 32, 16, 16)).astype(np.float32)
    s, t, step = np.float32(1 / 255), np.float32(1 / most), np.float32(0.05)
    known = {
        "s": s, "z": np.uint8(0), "w": w, "t": t, "v": np.int8(0), "ys": step, "yz": np.uint8(128)
    }  # fmt: skip
    node = helper.make_node
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        node("DequantizeLinear", ["w", "t", "v"], ["e"]),
        node("Conv", ["d", "e"], ["c"]),
        node("QuantizeLinear", ["c", "ys", "yz"], ["p"]),
        node("DequantizeLinear", ["p", "ys", "yz"], ["y"]),
    ]
    net = onnx_model(nodes, {"x": (FLOAT, [1, 32, 16, 16])}, ("y", FLOAT), known)
    q = np.clip(np.rint(x / s), 0, 255).astype(np.uint8)

    def result(product: Product) -> np.ndarray:
        windows = np.lib.stride_tricks.sliding_window_view(q, (3, 3), (2, 3))[0]
        rows = windows.transpose(1, 2, 3, 4, 0).reshape(14 * 14, -1)  # channels innermost
        total = product(rows, w.transpose(2, 3, 1, 0).reshape(-1, 32))
        y = np.clip(np.rint(total * (float(s) * float(t)) / float(step)), -128, 127) * float(step)
        return np.asarray(y.T.reshape(1, 32, 14, 14))

    return Case(f"QDQ convolution, weights of {bits} bits", net, x, result, float(step))


def qgemm() -> Case:
    """Of microsoft/onnxruntime issue 16105."""
    x, w = np.uint8([[210, 198, 234]]), np.int8([[-81], [-80], [127]])
    known = {"s": np.float32(0.01), "z": np.uint8(0), "w": w, "v": np.int8(0)}
    nodes = [
        helper.make_node(
            "QGemm", ["x", "s", "z", "w", "s", "v"], ["y"], domain="com.microsoft"
        )
    ]  # fmt: skip
    net = onnx_model(nodes, {"x": (U8, [1, 3])}, ("y", FLOAT), known)
    return Case("QGemm of 3 terms", net, x, lambda product: product(x, w) * 1e-4, 1e-4)


def runners(case: Case, runtime: str) -> Iterator[tuple[str, Run]]:
    """Yield the ways to run a model, named."""
    match runtime:
        case "model":
            yield "model of vpmaddubsw", lambda: case.result(saturating_matmul)
        case "superopt":
            import superopt

            yield "superopt", lambda: superopt.compile(case.model).run({"x": case.x})["y"]
        case "openvino":
            import openvino as ov

            core = ov.Core()
            net = core.compile_model(core.read_model(case.model.SerializeToString()), "CPU")
            yield "OpenVINO", lambda: np.asarray(net([case.x])[0])
        case "onnxruntime":
            yield "onnxruntime", lambda: run_onnxruntime(case, "ENABLE_ALL", exact=False)
            yield (
                "onnxruntime, x64quantprecision",
                lambda: run_onnxruntime(case, "ENABLE_ALL", exact=True),
            )
            yield (
                "onnxruntime, no optimizations",
                lambda: run_onnxruntime(case, "DISABLE_ALL", exact=False),
            )


def run_onnxruntime(case: Case, level: str, *, exact: bool) -> np.ndarray:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_{level}")
    if exact:
        options.add_session_config_entry("session.x64quantprecision", "1")
    data = case.model.SerializeToString()
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": case.x})[0])


def describe_difference(case: Case, found: np.ndarray) -> tuple[str, str]:
    """Return how many elements are wrong, and by how much: steps, or the value of integers."""
    wanted = case.result(exact_matmul)
    off = np.rint(np.abs(found.astype(np.float64) - wanted) / case.step)
    return f"{np.count_nonzero(off):,} of {off.size:,}", f"{int(off.max()):,}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runtimes", default=",".join(RUNTIMES))
    given = parser.parse_args()
    print("| case | runtime | wrong elements | largest error |\n|---|---|---:|---:|")
    for case in (matmul_integer(8), matmul_integer(7), convolution(8), convolution(7), qgemm()):
        for runtime in given.runtimes.split(","):
            try:
                for name, run in runners(case, runtime):
                    row = (case.name, name, *describe_difference(case, run()))
                    print(f"| {' | '.join(row)} |", flush=True)
            except Exception as e:  # a runtime lacks an operator
                print(f"| {case.name} | {runtime} | {type(e).__name__} | |", flush=True)


if __name__ == "__main__":
    main()
