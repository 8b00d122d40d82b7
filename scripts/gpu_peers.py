"""torch's modes as peers of bench_gpu.py, by gpu_nets.py's definitions with drawn weights; and the
times that were taken of them, by GPU and torch's version (docs/benchmarks/gpu_peers.json):

    {"NVIDIA H100 80GB HBM3, torch 2.11.0+cu130": {"resnet18 fp16 1": {"graph": 0.345, ...}}}

`graph`: eager, in a CUDA graph; `compile`: torch.compile(mode="reduce-overhead") with freezing,
convolutions with channels last; `max`: the same with max-autotune, which takes minutes for a model,
so that it is asked of a few only, in float16: in tf32 its own convolutions do not use tf32 (torch
2.11), and trying them takes over eight minutes for ResNet-18. Times are medians of events around a
call with inputs that are there, in ms.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from json_rows import json_rows

NINE = (
    "resnet18", "resnet50", "squeezenet1_1", "mobilenet_v2", "inception_v3", "bert_base_12l",
    "llama_layers", "csrnet", "nasrnn",
)  # fmt: skip
MOST = ("resnet18", "bert_base_12l", "llama_layers")  # of which max-autotune is asked, too
MODES = {"compile": "reduce-overhead", "max": "max-autotune"}  # of torch.compile
KNOWN = Path(__file__).resolve().parents[1] / "docs" / "benchmarks" / "gpu_peers.json"

Times = dict[str, dict[str, float]]  # ms by model, precision and batch, and by mode


def wanted(name: str, precision: str) -> tuple[str, ...]:
    """The modes that a model is compared with; none where gpu_nets.py does not define it."""
    if name not in NINE:
        return ()
    most = name in MOST and precision == "fp16"
    return ("graph", *(m for m in MODES if m != "max" or most))


def call(name: str, precision: str, batch: int, mode: str) -> Callable[[], Any]:
    """A model in one of torch's modes, compiled, as a call on inputs that are there."""
    import torch
    from gpu_nets import net

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.benchmark = True
    kind = torch.float16 if precision == "fp16" else torch.float32
    module, given = net(name, batch, kind)
    if mode == "graph":
        with torch.no_grad():
            for _ in range(3):
                module(*given)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                kept = module(*given)
        return lambda kept=kept: graph.replay()  # its outputs are kept as long as the call is
    torch._dynamo.reset()
    torch._inductor.config.freezing = True  # type: ignore[attr-defined, unused-ignore]
    fast = torch.compile(module, mode=MODES[mode])

    def run() -> Any:
        with torch.no_grad():
            return fast(*given)

    run()
    return run


def where() -> str:
    """Which GPU, and which version of torch."""
    import torch

    return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"


def known(path: Path, on: str) -> Times:
    """What was taken there before."""
    return json.loads(path.read_text()).get(on, {}) if path.exists() else {}


def keep(path: Path, on: str, new: Mapping[str, Mapping[str, float]], replace: bool = True) -> None:
    """Add times to the file. replace: overwrite existing entries."""
    found = json.loads(path.read_text()) if path.exists() else {}
    own = found.setdefault(on, {})
    for case, times in new.items():
        before = own.get(case, {})
        own[case] = {**before, **times} if replace else {**times, **before}
    whole = path.with_suffix(".new")
    whole.write_text(json_rows(found, depth=2))
    whole.replace(path)
