#!/usr/bin/env python3
"""torch's times of the models of bench_gpu.py, by torchvision's definitions: docs/gpu_peers.json.

    scripts/gpu_peers.py [--only NAME,...] [--precision fp16,tf32] [--batch 1,16] --out FILE.json

Weights are drawn. `graph`: eager, in a CUDA graph; `compile`: torch.compile(mode="reduce-overhead")
with freezing, convolutions with channels last. Medians of events around a call with inputs that are
there, in ms; by device and torch's version. What is in the file is not measured again.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

from bench_gpu import event_ms

NAMES = ("resnet18", "resnet50", "squeezenet1_1", "mobilenet_v2", "inception_v3")
SIDES = {"inception_v3": 299}
KINDS = {"fp16": torch.float16, "tf32": torch.float32}


def measured(name: str, precision: str, batch: int) -> dict[str, float]:
    import torchvision

    torch.manual_seed(0)
    more = {"init_weights": False} if name == "inception_v3" else {}
    net = getattr(torchvision.models, name)(weights=None, **more).eval().cuda()
    side = SIDES.get(name, 224)
    net = net.to(KINDS[precision], memory_format=torch.channels_last)
    x = torch.randn(batch, 3, side, side, device="cuda", dtype=KINDS[precision])
    x = x.contiguous(memory_format=torch.channels_last)
    out = {}
    with torch.no_grad():
        for _ in range(3):
            net(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            net(x)
        out["graph"] = event_ms(graph.replay)
        torch._dynamo.reset()
        fast = torch.compile(net, mode="reduce-overhead")
        out["compile"] = event_ms(lambda: fast(x))
    return out


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    given.add_argument("--only", default=",".join(NAMES))
    given.add_argument("--precision", default="fp16,tf32")
    given.add_argument("--batch", default="1")
    given.add_argument("--out", type=Path, required=True)
    how = given.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    torch._inductor.config.freezing = True
    where = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    found = json.loads(how.out.read_text()) if how.out.exists() else {}
    own = found.setdefault(where, {})
    for name in how.only.split(","):
        for precision in how.precision.split(","):
            for batch in map(int, how.batch.split(",")):
                key = f"{name} {precision} {batch}"
                if key not in own:
                    own[key] = measured(name, precision, batch)
                    print(key, own[key], file=sys.stderr, flush=True)
                    how.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
