#!/usr/bin/env python3
"""Models on a GPU: checked, and timed as one CUDA graph each.

    scripts/bench_gpu.py --models ../shared/models [--only NAME,...] [--precision fp16,tf32]
                         [--batch N] [--tune N] [--out FILE.json] [--kernels N] [--peers]

Times are medians of events around some replays, in ms; each result is compared with onnxruntime's,
in float32 on the processor: the largest difference by the output's rms. `--kernels N` adds the N
slowest kernels of each model, each timed alone; `--tune N` measures N ways to compute each problem
first, and writes down what they took; `--peers` times torch (gpu_peers.py) in turns with ours. The
file is written as it goes, and what is in it is not measured again.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

MODELS = (
    "resnet18", "resnet50", "squeezenet1_1", "mobilenet_v2", "inception_v3", "bert_base_12l",
    "llama_block", "csrnet", "nasrnn", "two_tower",
)  # fmt: skip
RUNS, TOGETHER = 20, 10  # so many calls between two events


def drawn(exe: Any, rng: np.random.Generator) -> dict[str, np.ndarray]:
    out = {}
    for p in exe.ports:
        shape = [d if isinstance(d, int) else 1 for d in p.shape]
        if p.dtype.kind == "f":
            out[p.name] = rng.standard_normal(shape).astype(p.dtype)
        else:
            out[p.name] = rng.integers(0, 2, shape).astype(p.dtype)
    return out


def event_ms(run: Any, runs: int = RUNS) -> float:
    """Of one of several calls in a row: what comes before the first one does not count."""
    import torch

    for _ in range(3):
        run()
    times = []
    for _ in range(runs):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        for _ in range(TOGETHER):
            run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / TOGETHER)
    return float(np.median(times))


def _first(name: str, by: dict[str, Any]) -> str:
    """The constant that holds a shape's first number."""
    while name in by and by[name].op_type in ("Concat", "Unsqueeze"):
        name = by[name].input[0]
    return name


def batched(model: Any, n: int) -> Any:
    """The model for so many inputs at a time, where its first dimensions say how many there are;
    so do those of shapes that are written into it."""
    from onnx import numpy_helper

    given = {i.name for i in model.graph.initializer}
    for v in model.graph.input:
        if v.name not in given:
            v.type.tensor_type.shape.dim[0].dim_value = n
    for v in model.graph.output:
        v.type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]
    by = {out: x for x in model.graph.node for out in x.output}
    read = {_first(x.input[1], by) for x in model.graph.node if x.op_type == "Reshape"}
    held = [i for i in model.graph.initializer if i.name in read]
    made = {x.output[0]: x.attribute[0].t for x in model.graph.node if x.op_type == "Constant"}
    for t in (*held, *(made[x] for x in read if x in made)):
        shape = numpy_helper.to_array(t).copy()
        if n != 1 and shape.size and shape.flat[0] == 1:
            shape.flat[0] = n
            t.CopyFrom(numpy_helper.from_array(shape, t.name))
    return model


def measured(path: Path, precision: str, kernels: int, tune: int) -> dict[str, Any]:
    import onnxruntime
    import torch

    from superopt.onnx_io.source import read
    from superopt.pipeline import cuda

    begin = time.perf_counter()
    exe = cuda.compile(read(path), precision)
    feeds = drawn(exe, np.random.default_rng(0))
    made = exe.variant(exe.sizes(exe.given(feeds)))
    before = event_ms(made.running)
    rows: list[Any] = []

    def seen(p: Any, found: Any) -> None:
        if found:
            rows.append(
                [str(p.tensor.type), gpu_sizes(p), {str(o): t * 1e6 for o, t in found.items()}]
            )

    if tune:
        exe.tune(exe.sizes(exe.given(feeds)), most=tune, seen=seen)
        made = exe.variant(exe.sizes(exe.given(feeds)))
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    got = exe.run(feeds)
    wanted = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    worst = 0.0
    for a, b in zip(got.values(), wanted.run(None, feeds), strict=True):
        rms = float(np.sqrt((np.asarray(b, np.float64) ** 2).mean())) or 1.0
        far = float(np.abs(np.asarray(a, np.float64) - b).max()) / rms
        worst = float(np.maximum(worst, far))  # what is no number stays none
    r = made.running
    out = {
        "untuned": before, "ms": event_ms(r), "error": worst, "seconds": seconds,
        "kernels": len(r.launches), "device": torch.cuda.get_device_name(), "run": r,
    }  # fmt: skip
    if tune:
        out["tuning"] = rows
    if kernels:
        out["slowest"] = slowest(made, kernels)
    return out


def in_turns(own: Any, name: str, precision: str, batch: int) -> dict[str, float]:
    """Medians of ours and of torch's modes, five times one after the other."""
    from gpu_peers import runs

    some = {"ms": own, **runs(name, precision, batch)}
    times: dict[str, list[float]] = {key: [] for key in some}
    for _ in range(5):
        for key, run in some.items():
            times[key].append(event_ms(run, 5))
    return {key: float(np.median(t)) for key, t in times.items()}


def gpu_sizes(p: Any) -> Any:
    from superopt.kernels.gpu_products import matrix_of

    m = matrix_of(p)
    return None if m is None else [*m.sizes, *(a.extent for a in m.batch)]


def slowest(made: Any, count: int) -> list[str]:
    import torch

    rows, r = [], made.running
    for n, (_, function, programs, given, how) in enumerate(r.launches):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(10):
                function[(programs,)](*given, **how)
        ms = event_ms(graph.replay, 5) / 10
        call = n if len(r.launches) == len(made.program.calls) else 0
        key = made.program.solved[call]
        t = made.program.problems[key].tensor
        rows.append((1e3 * ms, programs, str(made.program.options[key]), str(t.type)))
    total = sum(x[0] for x in rows)
    rows.sort(reverse=True)
    text = [f"{us:8.1f} us  {p} programs  {o}  {t}" for us, p, o, t in rows[:count]]
    return [f"{total:8.1f} us in all", *text]


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    given.add_argument("--models", type=Path, required=True)
    given.add_argument("--only", default=",".join(MODELS))
    given.add_argument("--precision", default="fp16,tf32")
    given.add_argument("--batch", type=int, default=1)
    given.add_argument("--out", type=Path)
    given.add_argument("--kernels", type=int, default=0)
    given.add_argument("--tune", type=int, default=0)
    given.add_argument("--peers", action="store_true")
    how = given.parse_args()
    sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(how.models)]
    import onnx
    from fill import fill
    from gpu_nets import llama_layers

    found: dict[str, Any] = {}
    if how.out is not None and how.out.exists():
        found = json.loads(how.out.read_text())
    for name in how.only.split(","):
        path = Path(tempfile.gettempdir()) / f"bench_gpu_{name}_{how.batch}.onnx"
        if not path.exists() and name == "llama_layers":
            llama_layers(path, how.batch)
        elif not path.exists():
            onnx.save(batched(fill(name), how.batch), path)
        for precision in how.precision.split(","):
            key = f"{name} {precision} {how.batch}"
            if key in found:
                continue
            try:
                found[key] = measured(path, precision, how.kernels, how.tune)
                if how.peers:
                    found[key] |= in_turns(found[key].pop("run"), name, precision, how.batch)
            except Exception as e:
                found[key] = {"failed": f"{type(e).__name__}: {str(e)[:600]}"}
            found[key].pop("run", None)
            line = {k: v for k, v in found[key].items() if k not in ("slowest", "tuning")}
            print(key, json.dumps(line), *found[key].get("slowest", ()), sep="\n  ", flush=True)
            if how.out is not None:
                how.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
