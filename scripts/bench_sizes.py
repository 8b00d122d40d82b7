#!/usr/bin/env python3
"""What calls at many different sizes take: time, the longest call, and memory.

    scripts/bench_sizes.py [MODEL ...] [--calls 60] [--symbol sequence] [--specialize background]
                           [--compiled 17]

Models are files with weights, or without (of ../shared/models, which are filled); the default is
bert_2l_dynamic. Each call has another value of one symbolic size, in an order that is drawn; other
sizes are 1. Two tables: seconds of processor time of all calls and of the longest one, of superopt
and of onnxruntime in turns, in one process; and the peak of resident memory of a process that does
the same with one of them alone, as a multiple of the model's bytes. --compiled: the value for which
`compile` compiles the model; by default the first call does.

A model without symbolic sizes is called three times, for its memory.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
SMALLEST, LARGEST = 8, 96  # values of the symbolic size
MIB = 1 << 20


def feeds_of(inputs: list[tuple[str, str, list[object]]], symbol: str, n: int) -> dict[str, object]:
    """Values for inputs as onnxruntime describes them: name, type, shape."""
    rng = np.random.default_rng(n)
    out: dict[str, object] = {}
    for name, kind, dims in inputs:
        shape = [d if isinstance(d, int) else n if d == symbol else 1 for d in dims]
        if "float" in kind:
            out[name] = rng.standard_normal(shape).astype(np.float32)
        else:
            element = {"tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(bool)": bool}
            out[name] = rng.integers(0, 2, shape).astype(element[kind])
    return out


def session(path: Path) -> object:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def interface(path: Path) -> list[tuple[str, str, list[object]]]:
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
    out = []
    for i in graph.input:
        kind = i.type.tensor_type
        dims = [d.dim_value or d.dim_param or "?" for d in kind.shape.dim]
        if i.name not in held:
            out.append((i.name, names[kind.elem_type], dims))
    return out


def sizes(count: int) -> list[int]:
    drawn = np.random.default_rng(0).permutation(np.arange(SMALLEST, LARGEST + 1))
    return [int(n) for n in np.resize(drawn, count)]


def symbols(inputs: list[tuple[str, str, list[object]]]) -> list[str]:
    return list(dict.fromkeys(d for _, _, dims in inputs for d in dims if isinstance(d, str)))


def superopt_runner(path: Path, a: argparse.Namespace, inputs: list) -> Callable[[dict], object]:
    import superopt

    known = dict.fromkeys(symbols(inputs), 1)
    shapes = {**known, a.symbol: a.compiled} if a.compiled and known else None
    exe = superopt.compile(path, shapes=shapes, specialize=a.specialize)
    return exe.run


def onnxruntime_runner(path: Path) -> Callable[[dict], object]:
    held = session(path)
    return lambda feeds: held.run(None, feeds)  # type: ignore[attr-defined]


def alone(path: Path, a: argparse.Namespace) -> None:
    """One of them, in this process: print the peak of its memory in bytes."""
    inputs = interface(path)
    run = superopt_runner(path, a, inputs) if a.alone == "superopt" else onnxruntime_runner(path)
    for n in sizes(a.calls if symbols(inputs) else 3):
        run(feeds_of(inputs, a.symbol, n))
    print(peak_bytes(), flush=True)


def peak_bytes() -> int:
    """The peak of this process's resident memory. getrusage's begins with that of the parent."""
    status = Path("/proc/self/status").read_text("ascii")
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def in_turns(path: Path, a: argparse.Namespace) -> None:
    inputs = interface(path)
    other, run = onnxruntime_runner(path), superopt_runner(path, a, inputs)
    took: tuple[list[float], list[float]] = ([], [])
    wall: tuple[list[float], list[float]] = ([], [])
    for n in sizes(a.calls):
        feeds = feeds_of(inputs, a.symbol, n)
        for k, call in enumerate((run, other)):
            begin, passed = time.process_time(), time.perf_counter()
            call(feeds)
            took[k].append(time.process_time() - begin)
            wall[k].append(time.perf_counter() - passed)
    for name, used, passed_ in zip(("superopt", "onnxruntime"), took, wall, strict=True):
        print(
            f"  {name:12} {len(used)} calls: {sum(used):7.3f} s of processor time, longest "
            f"{max(used):6.3f} s, the first {used[0]:6.3f} s, then longest {max(used[1:]):6.3f} s; "
            f"median {1e3 * float(np.median(used)):7.2f} ms; passed {sum(passed_):7.3f} s"
        )
    print(
        f"  superopt / onnxruntime: {sum(took[0]) / sum(took[1]):.2f}; "
        f"without the first call {sum(took[0][1:]) / sum(took[1][1:]):.2f}"
    )


def print_measurements(path: Path, name: str, a: argparse.Namespace) -> None:
    size = path.stat().st_size
    print(f"{name}: {size / MIB:.0f} MiB", flush=True)
    if symbols(interface(path)):
        in_turns(path, a)
    for which in ("superopt", "onnxruntime"):
        with tempfile.TemporaryDirectory() as cache:
            for again in range(2 if which == "superopt" else 1):
                command = [
                    sys.executable,
                    __file__,
                    str(path),
                    "--alone",
                    which,
                    "--calls",
                    str(a.calls),
                    "--symbol",
                    a.symbol,
                    "--specialize",
                    a.specialize,
                    "--compiled",
                    str(a.compiled),
                ]
                env = {**os.environ, "SUPEROPT_CACHE": cache, "PYTHONPATH": str(ROOT)}
                done = subprocess.run(command, capture_output=True, text=True, env=env)
                if done.returncode:
                    sys.exit(done.stderr)
                peak = int(done.stdout.split()[-1])
                held = sum(f.stat().st_size for f in Path(cache).rglob("*") if f.is_file())
                cached = f"; disk cache {held / MIB:.0f} MiB" if which == "superopt" else ""
                known = " with a full cache" if again else ""
                print(
                    f"  {which:12} peak {peak / MIB:6.0f} MiB = {peak / size:.2f} models; "
                    f"{(peak - 200 * MIB) / size:.2f} beyond 200 MiB{known}{cached}",
                    flush=True,
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--calls", type=int, default=60)
    parser.add_argument("--symbol", default="sequence")
    parser.add_argument("--specialize", default="background")
    parser.add_argument("--compiled", type=int, default=0)
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    a = parser.parse_args()
    some = a.models or [ROOT.parent / "shared" / "models" / "bert_2l_dynamic.onnx"]
    if a.alone:
        alone(some[0], a)
        return
    sys.path.insert(0, str(ROOT))
    from superopt.errors import ModelError
    from superopt.onnx_io.read.weightless import draw_weights

    for each in some:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / each.name
            try:
                path.write_bytes(draw_weights(each).SerializeToString())
            except ModelError:  # it has weights
                path = each
            print_measurements(path, each.stem, a)


if __name__ == "__main__":
    main()
