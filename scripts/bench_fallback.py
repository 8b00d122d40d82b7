"""What a model costs that runs wholly in ONNX Runtime: the processor's time of a process that finds
it in the cache, and of a call, each against onnxruntime alone.

    python scripts/bench_fallback.py [MODEL] [--processes 9] [--calls 2000]

MODEL: a file without symbolic sizes; by default a quantized transformer is made. Processes, and
calls, are run in turns; medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import superopt
from superopt.compilation.fallback.whole_model import Fallback

AT_REST = 2.5  # seconds after which a file's digest is remembered
OURS = "import sys, superopt; superopt.compile(sys.argv[1])"
THEIRS = """
import sys, onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--processes", type=int, default=9, help="new processes to time")
    parser.add_argument("--calls", type=int, default=2000, help="calls in each process")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"SUPEROPT_CACHE": folder, "ORT_DISABLE_TELEMETRY": "1"}
        for path in [asked.model] if asked.model else _written(Path(folder)):
            _print(path, asked.processes, asked.calls)


def _print(path: Path, processes: int, calls: int) -> None:
    exe = superopt.compile(path)
    (step,) = exe.variant({})
    if not isinstance(step, Fallback):
        raise SystemExit(f"{path} has kernels")
    pairs = [(_cpu_seconds(THEIRS, path), _cpu_seconds(OURS, path)) for _ in range(processes)]
    theirs, ours = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"{path.name}: {len(onnx.load(path).graph.node)} nodes")
    print(f"  process: onnxruntime {theirs:.2f} s of CPU, superopt {ours:.2f} s")
    theirs, ours = _calls(path, calls)
    ratio = ours / theirs - 1
    print(f"  call: onnxruntime {1e6 * theirs:.1f} us, superopt {1e6 * ours:.1f} us, {ratio:+.1%}")


def _cpu_seconds(code: str, path: Path) -> float:
    """Of a process that opens the model."""
    before = os.times()
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    after = os.times()
    spent = after.children_user + after.children_system
    return spent - before.children_user - before.children_system


def _calls(path: Path, calls: int) -> tuple[float, float]:
    """Seconds of a call, by numpy arrays."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    exe = superopt.compile(path)
    rng = np.random.default_rng(0)
    feeds = {p.name: rng.random(p.shape).astype(p.dtype) for p in exe.input_ports}
    times = []
    for _ in range(calls):
        begin = time.perf_counter()
        session.run(None, feeds)
        middle = time.perf_counter()
        exe.run(feeds)
        times.append((middle - begin, time.perf_counter() - middle))
    theirs, ours = (statistics.median(column) for column in zip(*times, strict=True))
    return theirs, ours


def _written(folder: Path) -> list[Path]:
    """Quantized models of one layer of 16 x 16, and of 24 of 64 x 64."""
    paths = []
    for layers, width in ((1, 16), (24, 64)):
        paths.append(folder / f"quantized_{layers}x{width}.onnx")
        paths[-1].write_bytes(_quantized_model(layers, width).SerializeToString())
    time.sleep(AT_REST)
    return paths


def _quantized_model(layers: int, width: int) -> onnx.ModelProto:
    node, info = helper.make_node, helper.make_tensor_value_info
    rng = np.random.default_rng(0)
    held = {"scale": np.array(0.01, np.float32)}
    nodes, x = [], "x"
    for k in range(layers):
        held[f"w{k}"] = rng.integers(-127, 128, (width, width)).astype(np.int8)
        nodes += [
            node("DynamicQuantizeLinear", [x], [f"q{k}", f"s{k}", f"z{k}"]),
            node("MatMulInteger", [f"q{k}", f"w{k}", f"z{k}"], [f"i{k}"]),
            node("Cast", [f"i{k}"], [f"f{k}"], to=TensorProto.FLOAT),
            node("Mul", [f"s{k}", "scale"], [f"t{k}"]),
            node("Mul", [f"f{k}", f"t{k}"], [f"m{k}"]),
            node("FastGelu", [f"m{k}"], [f"x{k}"], domain="com.microsoft"),
        ]
        x = f"x{k}"
    graph = helper.make_graph(
        nodes, "quantized", [info("x", TensorProto.FLOAT, [1, 16, width])],
        [info(x, TensorProto.FLOAT, [1, 16, width])],
        [numpy_helper.from_array(v, k) for k, v in held.items()],
    )  # fmt: skip
    ids = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=ids, ir_version=8)


if __name__ == "__main__":
    main()
