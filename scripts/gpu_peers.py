#!/usr/bin/env python3
"""torch's times of the models of bench_gpu.py (docs/gpu_peers.json), by gpu_nets.py's definitions.

    scripts/gpu_peers.py [--only NAME,...] [--precision fp16,tf32] [--batch 1,16] --out FILE.json

Weights are drawn. `graph`: eager, in a CUDA graph; `compile`: torch.compile(mode="reduce-overhead")
with freezing, convolutions with channels last. Medians of events around a call with inputs that are
there, in ms; by device and torch's version. What is in the file is not measured again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

from bench_gpu import event_ms
from gpu_nets import VISION, net

NAMES = (*VISION, "bert_base_12l", "llama_layers", "csrnet", "nasrnn")
KINDS = {"fp16": torch.float16, "tf32": torch.float32}


def runs(name: str, precision: str, batch: int, most: bool = False) -> dict[str, Callable[[], Any]]:
    """Calls by torch's mode: eager in a CUDA graph, compiled with reduce-overhead, and, where
    `most`, with max-autotune."""
    _set()
    module, given = net(name, batch, KINDS[precision])
    out: dict[str, Callable[[], Any]] = {}
    with torch.no_grad():
        for _ in range(3):
            module(*given)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            module(*given)
    out["graph"] = graph.replay
    torch._dynamo.reset()
    for key, mode in (("compile", "reduce-overhead"), ("max", "max-autotune")):
        if key == "compile" or most:
            fast = torch.compile(module, mode=mode)
            out[key] = torch.no_grad()(lambda fast=fast: fast(*given))
            out[key]()
    return out


def _set() -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    torch._inductor.config.freezing = True


def measured(name: str, precision: str, batch: int, most: bool) -> dict[str, float]:
    return {key: event_ms(run) for key, run in runs(name, precision, batch, most).items()}


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    given.add_argument("--only", default=",".join(NAMES))
    given.add_argument("--precision", default="fp16,tf32")
    given.add_argument("--batch", default="1")
    given.add_argument("--most", action="store_true", help="max-autotune, too: minutes for a net")
    given.add_argument("--out", type=Path, required=True)
    how = given.parse_args()
    where = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    found = json.loads(how.out.read_text()) if how.out.exists() else {}
    own = found.setdefault(where, {})
    for name in how.only.split(","):
        for precision in how.precision.split(","):
            for batch in map(int, how.batch.split(",")):
                key = f"{name} {precision} {batch}"
                if key not in own:
                    own[key] = measured(name, precision, batch, how.most)
                    print(key, own[key], file=sys.stderr, flush=True)
                    how.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
