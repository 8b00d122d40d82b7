#!/usr/bin/env python3
"""Recurrent nets on a GPU beside torch's (cuDNN's, in a CUDA graph): the same weights, in turns.

    scripts/bench_gpu_recurrent.py [--precision fp16,tf32] [--only TEXT] [--out FILE.md]

Times are medians of events around replays, in us, ours and torch's in turns. `error` is the largest
difference of our output from torch's in float64, on the processor, by its rms, after memory was
filled with what is no number; it ends with an ArithmeticError where that is more than FAR. Weights
are torch's own, drawn.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gpu_checks import folder, poison

TURNS, REPLAYS = 10, 20
FAR = 0.02
# The gates of ONNX by their places in torch's matrices.
ORDER = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}


@dataclass(frozen=True)
class Net:
    kind: str
    rows: int
    steps: int
    size: int
    layers: int = 1
    both: bool = False

    def __str__(self) -> str:
        ways = ", both ways" if self.both else ""
        layers = f", {self.layers} layers" if self.layers > 1 else ""
        return f"{self.kind} of {self.size}, {self.rows} x {self.steps}{layers}{ways}"


NETS = (
    Net("LSTM", 1, 32, 512, 2), Net("LSTM", 4, 40, 128, 2, True), Net("LSTM", 8, 12, 512),
    Net("LSTM", 16, 12, 256), Net("LSTM", 64, 12, 512), Net("LSTM", 128, 12, 256),
    Net("LSTM", 1, 400, 128), Net("GRU", 8, 20, 128, 2), Net("GRU", 16, 12, 256),
    Net("GRU", 64, 12, 512), Net("RNN", 4, 16, 128, 2),
)  # fmt: skip


def model(net: Net, module: Any) -> onnx.ModelProto:
    """torch's module of (steps, rows, size) as ONNX's nodes, one after the other."""
    known: dict[str, np.ndarray] = {}
    nodes, x = [], "x"
    for layer in range(net.layers):
        for name, own in (("W", "weight_ih"), ("R", "weight_hh"), ("B", "bias")):
            some = []
            for end in ("", "_reverse")[: 1 + net.both]:
                parts = ("bias_ih", "bias_hh") if name == "B" else (own,)
                found = [getattr(module, f"{p}_l{layer}{end}").detach().numpy() for p in parts]
                gates = [np.split(p, len(ORDER[net.kind])) for p in found]
                some.append(np.concatenate([g[k] for g in gates for k in ORDER[net.kind]]))
            known[f"{name}{layer}"] = np.stack(some)
        given = [x, *(f"{name}{layer}" for name in "WRB")]
        how: dict[str, Any] = {"direction": "bidirectional" if net.both else "forward"}
        if net.kind == "GRU":
            how["linear_before_reset"] = 1
        nodes.append(helper.make_node(net.kind, given, [f"y{layer}"], hidden_size=net.size, **how))
        nodes.append(helper.make_node("Transpose", [f"y{layer}"], [f"t{layer}"], perm=[0, 2, 1, 3]))
        x = "y" if layer + 1 == net.layers else f"x{layer + 1}"
        nodes.append(helper.make_node("Reshape", [f"t{layer}", "shape"], [x]))
    wide = net.size * (1 + net.both)
    known["shape"] = np.array([net.steps, net.rows, wide])
    value: Callable[..., Any] = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "recurrent",
        [value("x", TensorProto.FLOAT, [net.steps, net.rows, net.size])],
        [value("y", TensorProto.FLOAT, [net.steps, net.rows, wide])],
        [numpy_helper.from_array(v, k) for k, v in known.items()],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return onnx.shape_inference.infer_shapes(made)


def measured(net: Net, precision: str) -> str:
    """A row of the table."""
    import torch

    from superopt.compilation.cuda import load_compiler
    from superopt.kernels.runtime.gpu_timer import warm_up
    from superopt.onnx_io.read.source import read_model

    torch.manual_seed(0)
    cls: Any = getattr(torch.nn, net.kind)
    module = cls(net.size, net.size, net.layers, bidirectional=net.both).eval()
    x = torch.randn(net.steps, net.rows, net.size)
    exe = load_compiler.compile_model(
        read_model(model(net, module)), precision, store=folder()
    )  # not the user's
    poison(exe.variant({}))
    got = exe.run({"x": x.numpy()})["y"]
    with torch.no_grad():
        wanted = module.double()(x.double())[0].numpy()
        kind = torch.float16 if precision == "fp16" else torch.float32
        theirs, given = module.to("cuda", kind), x.to("cuda", kind)
        for _ in range(3):
            theirs(given)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            theirs(given)
    running = exe.variant({}).only_step.gpu_program
    both: dict[str, Callable[[], Any]] = {"ours": running, "torch": graph.replay}
    warm_up(running)
    times: dict[str, list[float]] = {name: [] for name in both}
    for _ in range(TURNS):
        for name, run in both.items():
            times[name].append(us_of(run))
    ours, other = (float(np.median(t)) for t in times.values())
    error = float(np.abs(got - wanted).max() / np.sqrt((wanted**2).mean()))
    if not error <= FAR:
        raise ArithmeticError(f"{net}: the output is {error:.1e} of its rms from that in float64")
    count = len(running.launches)
    return (
        f"| {net} | {precision} | {ours:.1f} | {other:.1f} | {other / ours:.2f} | {count} | "
        f"{error:.1e} |"
    )


def us_of(run: Callable[[], Any]) -> float:
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(REPLAYS):
        run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / REPLAYS * 1e3


def table(precisions: list[str], only: str) -> Iterator[str]:
    yield "| net, rows x steps | precision | us | torch us | ratio | kernels | error / rms |"
    yield "|---|---|---|---|---|---|---|"
    for precision in precisions:
        for net in NETS:
            if only in str(net):
                yield measured(net, precision)


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    given.add_argument("--precision", default="fp16,tf32")
    given.add_argument("--only", default="")
    given.add_argument("--out", type=Path)
    how = given.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    lines = [f"{torch.cuda.get_device_name()}, torch {torch.__version__}", ""]
    print(lines[0], flush=True)
    for line in table(how.precision.split(","), how.only):
        lines.append(line)
        print(line, flush=True)
        if how.out is not None:
            how.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
