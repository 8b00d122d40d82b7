#!/usr/bin/env python3
"""Models of 8-bit integers in superopt, onnxruntime and OpenVINO, in turns.

    scripts/bench_quantized.py [QUANTIZED.onnx ...] [--models FOLDER] [--threads 1,16]
                               [--seconds 10] [--out FILE.md]

models: float models of scripts/bench_compile.py, which onnxruntime's tools quantize: vision to QDQ
with int8 weights of channels, calibrated on drawn inputs; transformers dynamically. Weights and
inputs are drawn, so that accuracies are of arithmetic only. Errors are differences from onnxruntime
without optimizations, which computes each operator by its definition, by the output's rms.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
import onnx
from peers import ROUNDS, difference, drawn, geometric_mean

import superopt
from superopt import ort
from superopt.baselines import openvino
from superopt.cost.machine import this_machine
from superopt.ort.timing import SPIN_SECONDS, bind_run, interleave

STATIC = ("resnet18", "resnet50", "mobilenet_v2", "squeezenet1_1", "inception_v3")
DYNAMIC = ("bert_base_12l", "bert_2l_dynamic", "llama_block")
SIZES = {"batch": 1, "sequence": 128}
NAMES = ("superopt", "onnxruntime", "OpenVINO")
CALIBRATION_INPUTS = 4
MIN_PRODUCTS = 4  # of a transformer that is quantized
HEAD = """# Models of 8-bit integers

By `scripts/bench_quantized.py`, on {machine}, {date}; onnxruntime {ort},
OpenVINO {openvino}. Batch 1; medians of {rounds} rounds, in turns in one process, ms.

- *ratio*: of the better peer's time to superopt's, the median of rounds.
- *error*: the largest difference from onnxruntime without optimizations, by the output's rms.
"""
COLUMNS = ("ratio", "error", "onnxruntime's error", "OpenVINO's error")


def quantize(source: Path, folder: Path) -> Path:
    """Return the file of a quantized model."""
    from onnxruntime import quantization as tools
    from onnxruntime.quantization.shape_inference import quant_pre_process

    prepared, made = folder / f"{source.stem}.float.onnx", folder / source.name
    quant_pre_process(source, prepared, skip_symbolic_shape=True)
    if source.stem in DYNAMIC:
        fold_transposes(prepared)
        tools.quantize_dynamic(prepared, made, weight_type=tools.QuantType.QInt8)
        count = sum(n.op_type == "MatMulInteger" for n in onnx.load(made).graph.node)
        if count < MIN_PRODUCTS:
            raise ValueError(f"{source}: onnxruntime's tool quantized only {count} products")
        return made
    (port,) = onnx.load(prepared, load_external_data=False).graph.input
    shape = [d.dim_value or 1 for d in port.type.tensor_type.shape.dim]
    rng = np.random.default_rng(0)
    inputs = iter(
        [
            {port.name: rng.standard_normal(shape).astype(np.float32)}
            for _ in range(CALIBRATION_INPUTS)
        ]
    )

    class Reader(tools.CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(inputs, None)

    tools.quantize_static(
        prepared, made, Reader(), quant_format=tools.QuantFormat.QDQ, per_channel=True,
        activation_type=tools.QuantType.QUInt8, weight_type=tools.QuantType.QInt8,
    )  # fmt: skip
    return made


def fold_transposes(path: Path) -> None:
    """Transpose constants ahead of time: the tool quantizes only products with constants."""
    m = onnx.load(path)
    held = {t.name: t for t in m.graph.initializer}
    for n in [n for n in m.graph.node if n.op_type == "Transpose" and n.input[0] in held]:
        perm = next(a.ints for a in n.attribute if a.name == "perm")
        array = onnx.numpy_helper.to_array(held[n.input[0]]).transpose(perm)
        m.graph.initializer.append(onnx.numpy_helper.from_array(array.copy(), n.output[0]))
        m.graph.node.remove(n)
    onnx.save(m, path)


def reference_outputs(path: Path, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the outputs of onnxruntime without optimizations."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    plain = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [v.name for v in plain.get_outputs()]
    return dict(zip(names, plain.run(names, feeds), strict=True))


def measure(path: Path, threads: int, seconds: float) -> list[float]:
    """Return the medians of NAMES in ms, and the values of COLUMNS."""
    session = ort.load_session(path, threads)
    feeds = drawn(session, 0, SIZES)
    wanted = reference_outputs(path, feeds)
    exe = superopt.compile(path, threads=threads, specialize="eager")
    peer = openvino.prepare(path, feeds, threads, "f32")
    runs: list[Callable[[], object]] = [lambda: exe.run(feeds), bind_run(session, feeds), peer]
    theirs = dict(zip(wanted, peer().values(), strict=True))  # type: ignore[attr-defined]
    errors = [
        max(difference(np.asarray(got[n]), x) for n, x in wanted.items())
        for got in (exe.run(feeds), ort.run(session, feeds), theirs)
    ]
    times = interleave(runs, seconds, ROUNDS, 0, pause=SPIN_SECONDS if threads > 1 else 0.0)
    best = [min(pair) for pair in zip(*times[1:], strict=True)]
    ratio = statistics.median(b / a for a, b in zip(times[0], best, strict=True))
    return [*(statistics.median(t) / 1e3 for t in times), ratio, *errors]


def table(models: list[Path], threads: list[int], seconds: float) -> Iterator[str]:
    """Yield the lines of the tables."""
    for count in threads:
        yield f"## {count} thread{'s' if count > 1 else ''}\n"
        yield "| model | " + " | ".join((*NAMES, *COLUMNS)) + " |"
        yield "|---|" + "---:|" * len((*NAMES, *COLUMNS))
        ratios = []
        for path in models:
            try:
                *times, ratio, ours, first, second = measure(path, count, seconds)
            except (RuntimeError, KeyError, ValueError) as e:
                yield f"| {path.stem} | {' '.join(str(e).split())[:80]} | | | | | | |"
                continue
            ratios.append(ratio)
            cells = [f"{t:.3g}" for t in times]
            cells += [f"**{ratio:.2f}**", *(f"{x:.1e}" for x in (ours, first, second))]
            yield f"| {path.stem} | " + " | ".join(cells) + " |"
        yield f"\nGeometric mean of ratios: {geometric_mean(ratios):.2f}.\n" if ratios else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("quantized", nargs="*", type=Path)
    parser.add_argument("--models", type=Path)
    parser.add_argument("--threads", default="1")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    head = HEAD.format(
        machine=this_machine(), date=date.today(), ort=ort.installed_version(),
        openvino=openvino.version(), rounds=ROUNDS,
    )  # fmt: skip
    print(head)
    lines = [head]
    with tempfile.TemporaryDirectory() as folder:
        files = [given.models / f"{n}.onnx" for n in (*STATIC, *DYNAMIC)] if given.models else []
        models = [*given.quantized]
        for f in (f for f in files if f.exists()):
            try:
                models.append(quantize(f, Path(folder)))
            except ValueError as e:
                print(f"left out: {e}", file=sys.stderr)
        for line in table(models, [int(t) for t in given.threads.split(",")], given.seconds):
            print(line, flush=True)
            lines.append(line)
    if given.out is not None:
        given.out.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
