#!/usr/bin/env python3
"""Models quantized in all ways that onnxruntime's tools know, in superopt and onnxruntime.

    scripts/quantizer_settings.py MODEL.onnx ... [--only TEXT] [--seconds 2] [--shape NAME=N ...]

A setting is a format (QDQ, QLinear operators, dynamic), element types, granularity and options. The
differences are from onnxruntime without optimizations, by the output's rms: the largest, and the
mean. They are steps of the quantization; a mean beyond a few hundredths asks for a closer look.
Times are of this process, on one thread, in turns.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import onnx

import superopt

Feeds = Mapping[str, np.ndarray]
CALIBRATION_SETS = 2


@dataclass(frozen=True)
class Setting:
    """How models are quantized. data, weights: element types. form: "QDQ", "QOperator", or
    "dynamic"."""

    form: str
    data: str
    weights: str
    per_channel: bool = False
    reduce_range: bool = False
    options: Mapping[str, bool] = field(default_factory=dict)


SETTINGS: Mapping[str, Setting] = MappingProxyType({
    "QDQ, channels": Setting("QDQ", "QUInt8", "QInt8", per_channel=True),
    "QDQ": Setting("QDQ", "QUInt8", "QInt8"),
    "QDQ of 7 bits": Setting("QDQ", "QUInt8", "QInt8", per_channel=True, reduce_range=True),
    "QDQ of int8": Setting("QDQ", "QInt8", "QInt8", per_channel=True),
    "QDQ of int8, symmetric": Setting(
        "QDQ", "QInt8", "QInt8", per_channel=True, options={"ActivationSymmetric": True}
    ),
    "QDQ of uint8": Setting("QDQ", "QUInt8", "QUInt8"),
    "QDQ of uint16": Setting("QDQ", "QUInt16", "QInt8", options={"UseQDQContribOps": True}),
    "QDQ of int16": Setting("QDQ", "QInt16", "QInt8", options={"UseQDQContribOps": True}),
    "QDQ of weights, too": Setting("QDQ", "QUInt8", "QInt8", options={"AddQDQPairToWeight": True}),
    "QDQ for each reader": Setting("QDQ", "QUInt8", "QInt8", options={"DedicatedQDQPair": True}),
    "QDQ, float bias": Setting("QDQ", "QUInt8", "QInt8", options={"QuantizeBias": False}),
    "QDQ around activations": Setting(
        "QDQ", "QUInt8", "QInt8", options={"QDQKeepRemovableActivations": True}
    ),
    "QLinear, channels": Setting("QOperator", "QUInt8", "QInt8", per_channel=True),
    "QLinear of uint8": Setting("QOperator", "QUInt8", "QUInt8"),
    "QLinear of int8": Setting("QOperator", "QInt8", "QInt8"),
    "dynamic": Setting("dynamic", "QUInt8", "QInt8"),
    "dynamic, channels": Setting("dynamic", "QUInt8", "QInt8", per_channel=True),
    "dynamic of 7 bits": Setting("dynamic", "QUInt8", "QInt8", reduce_range=True),
    "dynamic of uint8": Setting("dynamic", "QUInt8", "QUInt8"),
})  # fmt: skip


@dataclass(frozen=True)
class Difference:
    """Differences of outputs by their rms."""

    largest: float
    mean: float


def quantize_with(s: Setting, source: Path, target: Path, inputs: Iterable[Feeds]) -> None:
    """Write the quantized model. inputs: for calibration."""
    from onnxruntime import quantization as tools

    kinds = tools.QuantType
    how = {"per_channel": s.per_channel, "reduce_range": s.reduce_range}
    if s.form == "dynamic":
        tools.quantize_dynamic(source, target, weight_type=kinds[s.weights], **how)
        return
    left = iter(inputs)

    class Reader(tools.CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> Feeds | None:
            return next(left, None)

    tools.quantize_static(
        source, target, Reader(), quant_format=tools.QuantFormat[s.form],
        activation_type=kinds[s.data], weight_type=kinds[s.weights],
        extra_options=dict(s.options), **how,
    )  # fmt: skip


def runtime(path: Path, optimized: bool) -> Callable[[Feeds], list[np.ndarray]]:
    """Return a call of onnxruntime on one thread. Without optimizations products do not saturate,
    either."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda feeds: session.run(None, dict(feeds))


def difference_of(got: Iterable[np.ndarray], wanted: Iterable[np.ndarray]) -> Difference:
    """Return the largest differences of all outputs."""
    largest, mean = 0.0, 0.0
    for a, b in zip(got, wanted, strict=True):
        error = np.abs(np.asarray(a, np.float64) - b)
        rms = float(np.sqrt(np.square(b, dtype=np.float64).mean())) or 1.0
        largest, mean = max(largest, error.max() / rms), max(mean, error.mean() / rms)
    return Difference(float(largest), float(mean))


def prepare(source: Path, target: Path) -> None:
    """Fold constants and infer shapes, as onnxruntime's tools ask for."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    quant_pre_process(source, target, skip_symbolic_shape=True)


def drawn_inputs(model: Path, sizes: Mapping[str, int], seed: int) -> Feeds:
    rng = np.random.default_rng(seed)
    out = {}
    for p in onnx.load(model, load_external_data=False).graph.input:
        kind = p.type.tensor_type
        shape = [d.dim_value or sizes.get(d.dim_param, 1) for d in kind.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        drawn = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, 2, shape)
        out[p.name] = np.asarray(drawn, dtype)
    return out


def least_seconds(runs: list[Callable[[], Any]], seconds: float) -> list[float]:
    best, end = [float("inf")] * len(runs), time.monotonic() + seconds
    while time.monotonic() < end:
        for k, run in enumerate(runs):
            begin = time.process_time()
            run()
            best[k] = min(best[k], time.process_time() - begin)
    return best


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    p.add_argument("models", nargs="+", type=Path)
    p.add_argument("--only", default="")
    p.add_argument("--seconds", type=float, default=2.0)
    p.add_argument("--shape", action="append", default=[])
    given = p.parse_args()
    sizes = {name: int(n) for name, _, n in (x.partition("=") for x in given.shape)}
    print("| model | setting | largest | mean | superopt ms | onnxruntime ms | times as fast |")
    print("|---|---|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        for model in given.models:
            whole = Path(folder) / model.name
            prepare(model, whole)
            for name, setting in SETTINGS.items():
                if given.only not in name:
                    continue
                path = Path(folder) / "quantized.onnx"
                inputs = [drawn_inputs(whole, sizes, k) for k in range(CALIBRATION_SETS)]
                quantize_with(setting, whole, path, inputs)
                feeds = drawn_inputs(whole, sizes, CALIBRATION_SETS)
                exe = superopt.compile(path, threads=1)
                peer = runtime(path, optimized=True)
                found = difference_of(exe.run(feeds).values(), runtime(path, False)(feeds))
                runs = [lambda e=exe, f=feeds: e.run(f), lambda r=peer, f=feeds: r(f)]
                ours, theirs = (1e3 * t for t in least_seconds(runs, given.seconds))
                numbers = f"{found.largest:.1e} | {found.mean:.1e} | {ours:.2f} | {theirs:.2f}"
                print(f"| {model.stem} | {name} | {numbers} | {theirs / ours:.2f} |", flush=True)


if __name__ == "__main__":
    main()
