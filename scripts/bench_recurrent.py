"""Recurrent layers of many steps, compiled, against onnxruntime and OpenVINO in float32.

    python scripts/bench_recurrent.py [PATTERN ...] [--threads 1] [--runs 15] [--steps 200 300 600]

All three are called in turns, in one process. Printed are medians in ms, of processor time on one
thread and of wall time on several, how much longer the better peer takes, and the time of compiling
a number of steps, when another one was compiled before.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import openvino
from onnx import TensorProto, helper, numpy_helper

import superopt

GATES = {"LSTM": 4, "GRU": 3}
Run = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """A layer. hidden: elements of a state, and of what it is given."""

    kind: str
    hidden: int
    batch: int
    direction: str

    @property
    def label(self) -> str:
        return f"{self.kind} {self.hidden}, batch {self.batch}, {self.direction}"

    def model(self) -> onnx.ModelProto:
        rng = np.random.default_rng(0)
        d, rows = 1 + (self.direction == "bidirectional"), GATES[self.kind] * self.hidden
        shapes = {"w": (d, rows, self.hidden), "r": (d, rows, self.hidden), "b": (d, 2 * rows)}
        known = {
            k: (rng.standard_normal(s) / np.sqrt(self.hidden)).astype(np.float32)
            for k, s in shapes.items()
        }
        given = ["x", *known]
        node = helper.make_node(
            self.kind, given, ["y"], hidden_size=self.hidden, direction=self.direction
        )
        info, float_ = helper.make_tensor_value_info, TensorProto.FLOAT
        graph = helper.make_graph(
            [node], "layer",
            [info("x", float_, ["t", self.batch, self.hidden])],
            [info("y", float_, ["t", d, self.batch, self.hidden])],
            [numpy_helper.from_array(v, k) for k, v in known.items()],
        )  # fmt: skip
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def cases(patterns: list[str]) -> Iterator[Case]:
    for some in product(GATES, (128, 256), (1, 8), ("forward", "bidirectional")):
        case = Case(*some)
        if not patterns or any(p in case.label for p in patterns):
            yield case


def medians(runs: dict[str, Run], count: int, clock: Callable[[], float]) -> dict[str, float]:
    """Seconds of each, called in turns."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(count):
        for name, run in runs.items():
            begin = clock()
            run()
            times[name].append(clock() - begin)
    return {name: float(np.median(some)) for name, some in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("patterns", nargs="*", metavar="PATTERN", help="parts of cases' names")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--steps", type=int, nargs="+", default=[200, 300, 600])
    args = parser.parse_args()
    clock = time.process_time if args.threads == 1 else time.perf_counter
    ratios = []
    for case in cases(args.patterns):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "m.onnx"
            onnx.save(case.model(), path)
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = args.threads
            session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
            how = {"INFERENCE_NUM_THREADS": args.threads, "INFERENCE_PRECISION_HINT": "f32"}
            request = openvino.Core().compile_model(path, "CPU", how).create_infer_request()
            exe = superopt.compile(path, threads=args.threads, shapes=())
        exe.run({"x": np.zeros((100, case.batch, case.hidden), np.float32)})
        for steps in args.steps:
            x = np.random.default_rng(1).standard_normal((steps, case.batch, case.hidden))
            feeds = {"x": x.astype(np.float32)}
            begin = time.process_time()
            y = exe.run(feeds)["y"]
            compiled = time.process_time() - begin
            wanted = session.run(None, feeds)[0]
            if not np.allclose(y, wanted, rtol=1e-3, atol=1e-4):
                error = abs(y - wanted).max()
                raise SystemExit(f"{case.label}, {steps} steps: maximum absolute error {error}")
            found = medians(
                {
                    "superopt": lambda: exe.run(feeds),  # noqa: B023
                    "onnxruntime": lambda: session.run(None, feeds),  # noqa: B023
                    "openvino": lambda: request.infer(feeds, share_inputs=True),  # noqa: B023
                },
                args.runs, clock,
            )  # fmt: skip
            ours, *peers = found.values()
            ratios.append(min(peers) / ours)
            shown = "  ".join(f"{name} {1e3 * t:.2f}" for name, t in found.items())
            print(f"{case.label}, {steps} steps: {shown} ms  {ratios[-1]:.2f}  ({compiled:.2f} s)")
    if ratios:
        print(f"geometric mean of {len(ratios)}: {np.exp(np.mean(np.log(ratios))):.2f}")


if __name__ == "__main__":
    main()
