#!/usr/bin/env python3
"""What calls at many different sizes take: seconds, stalls, and memory, beside the peers.

    scripts/bench_sizes.py [MODEL ...] [--calls 200] [--symbol sequence] [--range 5,300]
                           [--specialize background] [--threads 1]

Models are files with weights, or without (of ../shared/models, whose weights are drawn), or names
of `NETS`; by default bert_2l_dynamic. Each call has another value of a symbolic size, or of several
(--symbol height,width), drawn log-normally as lengths of texts are (a median of a third of the
range); other sizes are 1. superopt, ONNX Runtime and, if installed, OpenVINO run in turns in one
process: first with an empty cache, then in a new process with the cache of the first. Totals are
given with and without loading: onnxruntime and OpenVINO optimize a model when they load it,
superopt compiles it in the first call. A stall is a call that takes more than three times the
median of calls of like sizes (within a power of two); the first such call does not count. Then the
peak of resident memory of a process with one of them alone.

A model without symbolic sizes is called three times, for its memory.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
MIB = 1 << 20
STALL = 3.0  # medians of calls of like sizes
# By name of a function in sequence_nets.py: the symbol, and its range.
NETS = {"text_recognizer": ("width", (40, 400)), "audio_net": ("time", (50, 1000))}

Interface = list[tuple[str, str, list[object]]]  # name, element type and shape of each input
Call = Callable[[dict[str, np.ndarray]], object]


def feeds_of(inputs: Interface, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Values for inputs as onnxruntime describes them: name, type, shape."""
    rng = np.random.default_rng([*sizes.values()])
    out: dict[str, np.ndarray] = {}
    for name, kind, dims in inputs:
        shape = [d if isinstance(d, int) else sizes.get(str(d), 1) for d in dims]
        if "float" in kind:
            out[name] = rng.standard_normal(shape).astype(np.float32)
        else:
            element = {"tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(bool)": bool}
            out[name] = rng.integers(0, 2, shape).astype(element[kind])
    return out


def interface(path: Path) -> Interface:
    """The inputs of a model in a file, by onnx alone."""
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    held = {t.name for t in graph.initializer}
    names = {
        onnx.TensorProto.FLOAT: "tensor(float)",
        onnx.TensorProto.INT64: "tensor(int64)",
        onnx.TensorProto.INT32: "tensor(int32)",
        onnx.TensorProto.BOOL: "tensor(bool)",
    }
    out: Interface = []
    for i in graph.input:
        kind = i.type.tensor_type
        dims = [d.dim_value or d.dim_param or "?" for d in kind.shape.dim]
        if i.name not in held:
            out.append((i.name, names[kind.elem_type], dims))
    return out


def symbols(inputs: Interface) -> list[str]:
    return list(dict.fromkeys(d for _, _, dims in inputs for d in dims if isinstance(d, str)))


def drawn_sizes(count: int, low: int, high: int, seed: int) -> list[int]:
    """Different sizes, drawn log-normally around a third of the range; again from the beginning if
    the range has fewer."""
    rng, found = np.random.default_rng(seed), dict[int, None]()
    count_of_others = min(count, high - low + 1)
    while len(found) < count_of_others:
        n = round(low + (high - low) / 3 * float(rng.lognormal(0, 0.8)))
        if low <= n <= high:
            found[n] = None
    return [int(n) for n in np.resize(np.array(list(found)), count)]


def sizes_of_calls(a: argparse.Namespace) -> list[dict[str, int]]:
    """The values of the symbols of each call."""
    drawn = [drawn_sizes(a.calls, *a.range, seed) for seed in range(len(a.symbol))]
    return [dict(zip(a.symbol, values, strict=True)) for values in zip(*drawn, strict=True)]


def superopt_call(path: Path, a: argparse.Namespace) -> Call:
    import superopt

    return superopt.compile(path, specialize=a.specialize, threads=a.threads).run


def onnxruntime_call(path: Path, a: argparse.Namespace) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = a.threads
    held = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda feeds: held.run(None, feeds)


def openvino_call(path: Path, a: argparse.Namespace) -> Call:
    import openvino

    options = {
        "INFERENCE_NUM_THREADS": a.threads,
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
    }
    request = openvino.Core().compile_model(str(path), "CPU", options).create_infer_request()
    return lambda feeds: request.infer(feeds, share_inputs=True)


RUNTIMES = {
    "superopt": superopt_call, "onnxruntime": onnxruntime_call, "openvino": openvino_call,
}  # fmt: skip


def installed_runtimes() -> list[str]:
    import importlib.util

    return [name for name in RUNTIMES if importlib.util.find_spec(name)]


def measure_in_turns(path: Path, a: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Return, for each runtime, the seconds of each call, which passed and of the processor."""
    inputs, calls = a.inputs, dict[str, Call]()
    taken: dict[str, dict[str, list[float]]] = {}
    for name in installed_runtimes():
        used, begin = time.process_time(), time.perf_counter()
        calls[name] = RUNTIMES[name](path, a)
        taken[name] = {
            "load": [time.perf_counter() - begin], "load_processor": [time.process_time() - used],
            "passed": [], "processor": [],
        }  # fmt: skip
    for sizes in sizes_of_calls(a):
        feeds = feeds_of(inputs, sizes)
        for name, call in calls.items():
            used, begin = time.process_time(), time.perf_counter()
            call(feeds)
            taken[name]["passed"].append(time.perf_counter() - begin)
            taken[name]["processor"].append(time.process_time() - used)
    return taken


LOADING = {"passed": "load", "processor": "load_processor"}


def alike(values: list[float], sizes: list[int]) -> list[tuple[int, list[float]]]:
    """Return the values of like sizes: between powers of two."""
    found: dict[int, list[float]] = {}
    for n, x in zip(sizes, values, strict=True):
        found.setdefault(int(math.log2(n)), []).append(x)
    return sorted(found.items())


def stalls(seconds: list[float], sizes: list[int]) -> list[float]:
    """Return the calls that stalled, in medians of calls of like sizes."""
    ratios = (s / statistics.median(each) for _, each in alike(seconds, sizes) for s in each[1:])
    return [r for r in ratios if r > STALL]


def print_times(taken: dict[str, dict[str, list[float]]], a: argparse.Namespace) -> None:
    sizes = [round(statistics.geometric_mean(each.values())) for each in sizes_of_calls(a)]
    for name, each in taken.items():
        slow = stalls(each["passed"], sizes)
        print(
            f"    {name:12} load {each['load'][0]:6.3f} s ({each['load_processor'][0]:6.3f} s of "
            f"processor time), first call {each['passed'][0]:6.3f} s; "
            f"all calls {sum(each['passed']):7.3f} s ({sum(each['processor']):7.3f} s of processor "
            f"time), median {1e3 * statistics.median(each['passed']):7.2f} ms; {len(slow)} stalls"
            + (f", the longest {max(slow):.0f} medians" if slow else "")
        )
    own, others = taken["superopt"], [t for name, t in taken.items() if name != "superopt"]
    for kind in ("passed", "processor"):
        peer = min(others, key=lambda t: sum(t[kind]))
        best, loading = peer[kind], LOADING[kind]
        of_calls = [min(x) / s for s, *x in zip(own[kind], *(t[kind] for t in others), strict=True)]
        print(
            f"    {kind}: speedup over the better peer {sum(best) / sum(own[kind]):.2f} in total, "
            f"{sum(best[1:]) / sum(own[kind][1:]):.2f} without the first call, "
            f"{(sum(best) + sum(peer[loading])) / (sum(own[kind]) + sum(own[loading])):.2f} with "
            f"loading; median of the calls "
            f"{statistics.median(of_calls):.2f}; by size "
            + ", ".join(
                f"{2**k}: {statistics.median(each):.2f}" for k, each in alike(of_calls, sizes)
            )
        )


def peak_bytes(path: Path, a: argparse.Namespace) -> int:
    """Run one of them alone in this process; return the peak of its resident memory. getrusage's
    begins with that of the parent."""
    call = RUNTIMES[a.alone](path, a)
    for sizes in sizes_of_calls(a) if symbols(a.inputs) else [{}] * 3:
        call(feeds_of(a.inputs, sizes))
    status = Path("/proc/self/status").read_text("ascii")
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def run_child(path: Path, a: argparse.Namespace, cache: str, alone: str) -> object:
    """Return what a new process measured."""
    options = {
        "calls": a.calls, "symbol": ",".join(a.symbol), "range": "{},{}".format(*a.range),
        "specialize": a.specialize, "threads": a.threads, "alone": alone,
        "inputs": json.dumps(interface(path)),  # reading them takes memory
    }  # fmt: skip
    given = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    modules = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    env = {**os.environ, "SUPEROPT_CACHE": cache, "PYTHONPATH": modules}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has bytecode
    command = [sys.executable, __file__, str(path), *given]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def print_measurements(path: Path, name: str, a: argparse.Namespace) -> None:
    size = path.stat().st_size
    print(f"{name}: {size / MIB:.0f} MiB", flush=True)
    with tempfile.TemporaryDirectory() as cache:
        for state in ("empty", "full") if symbols(interface(path)) else ():
            print(f"  cache {state}", flush=True)
            print_times(run_child(path, a, cache, "none"), a)  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as cache:
        for which in ("superopt", "superopt", *installed_runtimes()[1:]):
            state = f", cache {'full' if os.listdir(cache) else 'empty'}"
            peak = run_child(path, a, cache, which)
            assert isinstance(peak, int)
            print(
                f"  {which:12} peak {peak / MIB:6.0f} MiB = {peak / size:.2f} models; "
                f"{(peak - 200 * MIB) / size:.2f} beyond 200 MiB"
                + (state if which == "superopt" else ""),
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", type=Path, help=f"files, or {', '.join(NETS)}")
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--symbol", default="sequence")
    parser.add_argument("--range", default="5,300")
    parser.add_argument("--specialize", default="background")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    parser.add_argument("--inputs", type=json.loads, help=argparse.SUPPRESS)
    a = parser.parse_args()
    a.range, a.symbol = tuple(map(int, a.range.split(","))), a.symbol.split(",")
    some = a.models or [ROOT.parent / "shared" / "models" / "bert_2l_dynamic.onnx"]
    if a.alone == "none":
        print(json.dumps(measure_in_turns(some[0], a)))
        return
    if a.alone:
        print(peak_bytes(some[0], a))
        return
    sys.path.insert(0, str(ROOT))
    from superopt.errors import ModelError
    from superopt.onnx_io.read.weightless import draw_weights

    for each in some:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{each.stem}.onnx"
            if str(each) in NETS:
                import sequence_nets

                path.write_bytes(getattr(sequence_nets, str(each))().SerializeToString())
                symbol, a.range = NETS[str(each)]
                a.symbol = [symbol]
            else:
                try:
                    path.write_bytes(draw_weights(each).SerializeToString())
                except ModelError:  # it has weights
                    path = each
            print_measurements(path, each.stem, a)


if __name__ == "__main__":
    main()
