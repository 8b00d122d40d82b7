#!/usr/bin/env python3
"""torch.compile by backends "superopt" and "inductor", and eager: the table of
docs/benchmarks/torch_backend.md.

    scripts/bench_torch_backend.py [--only resnet18,bert,...] [--threads 1] [--seconds 4]
                                   [--note TEXT] [--out FILE]

Ten models of torchvision, timm and transformers with drawn weights, each in a process of its own.
Calls run in turns, medians of rounds; on the CPU in float32 without gradients. *first*: seconds of
the call that compiles, with an empty cache.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from peers import geometric_mean

from superopt.cost.machine import this_machine
from superopt.torch_backend.backend import superopt_backend

Made = tuple[torch.nn.Module, tuple[torch.Tensor, ...]]
LENGTH = 128
ROUNDS = 15
HEAD = """# Backend of torch.compile

By `scripts/bench_torch_backend.py`, on {machine}; torch {torch}, {threads}. {note} Medians of calls
in turns in one process, batch 1, {length} tokens, float32. *first*: seconds of the call that
compiles. *error / rms*: the largest difference from eager's output, by its rms.
"""


def timm_model(name: str, size: int = 224) -> Callable[[], Made]:
    def make() -> Made:
        import timm

        return timm.create_model(name, pretrained=False), (torch.randn(1, 3, size, size),)

    return make


def transformers_model(config: str, model: str, **sizes: int) -> Callable[[], Made]:
    def make() -> Made:
        import transformers

        about = getattr(transformers, config)(**sizes)
        made = getattr(transformers, model)(about)
        made.config.use_cache = False
        made.config.return_dict = False
        return made, (torch.randint(0, 1000, (1, LENGTH)),)

    return make


MODELS: Mapping[str, Callable[[], Made]] = {
    "resnet18": timm_model("resnet18"),
    "resnet50": timm_model("resnet50"),
    "mobilenetv3": timm_model("mobilenetv3_large_100"),
    "efficientnet_b0": timm_model("efficientnet_b0"),
    "convnext_tiny": timm_model("convnext_tiny"),
    "deit_small": timm_model("deit_small_patch16_224"),
    "swin_tiny": timm_model("swin_tiny_patch4_window7_224"),
    "bert": transformers_model("BertConfig", "BertModel"),
    "distilbert": transformers_model("DistilBertConfig", "DistilBertModel"),
    "gpt2": transformers_model("GPT2Config", "GPT2Model"),
}


def first_tensor(y: Any) -> torch.Tensor:
    while not isinstance(y, torch.Tensor):
        y = y[0]
    return y


def measure(name: str, threads: int, seconds: float) -> dict[str, Any]:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    model.eval()
    out: dict[str, Any] = {"notes": []}
    calls: dict[str, Callable[..., Any]] = {"eager": model}
    with torch.no_grad(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        wanted = first_tensor(model(*inputs))
        for backend in (superopt_backend, "inductor"):
            title = backend if isinstance(backend, str) else "superopt"
            torch._dynamo.reset()
            begin = time.perf_counter()
            compiled = torch.compile(model, backend=backend)
            got = first_tensor(compiled(*inputs))
            out[f"first {title}"] = time.perf_counter() - begin
            rms = wanted.square().mean().sqrt()
            out[f"error {title}"] = float((got - wanted).abs().max() / rms)
            calls[title] = compiled
        times: dict[str, list[float]] = {n: [] for n in calls}
        end = time.monotonic() + seconds
        while time.monotonic() < end or len(times["eager"]) < ROUNDS:
            for n, call in calls.items():
                begin = time.perf_counter()
                call(*inputs)
                times[n].append(time.perf_counter() - begin)
    out["notes"] = [str(w.message) for w in said if "superopt" in str(w.message)]
    return out | {n: 1e3 * statistics.median(t) for n, t in times.items()}


def row(name: str, r: Mapping[str, Any]) -> str:
    cells = [name, *(f"{r[n]:.2f}" for n in ("eager", "inductor", "superopt"))]
    cells += [f"**{r['inductor'] / r['superopt']:.2f}**", f"{r['eager'] / r['superopt']:.2f}"]
    cells += [f"{r['first inductor']:.1f}", f"{r['first superopt']:.1f}"]
    cells += [f"{r['error inductor']:.1e}", f"{r['error superopt']:.1e}"]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="names of models, e.g. resnet18,bert")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=4.0, help="measuring time of a model")
    parser.add_argument("--one", action="store_true", help="one model; print its figures")
    parser.add_argument("--note", default="", help="the date, and the load of the machine")
    parser.add_argument("--out", type=Path, help="write the table there")
    args = parser.parse_args()
    wanted = args.only.split(",") if args.only else [*MODELS]
    if args.one:
        print(json.dumps(measure(wanted[0], args.threads, args.seconds)))
        return
    lines = [
        "| model | eager ms | inductor ms | superopt ms | inductor / superopt | eager / superopt"
        " | first inductor s | first superopt s | error / rms inductor | superopt |",
        "|---|" + "---:|" * 9,
    ]
    print("\n".join(lines), flush=True)
    ratios = []
    for name in wanted:
        with tempfile.TemporaryDirectory() as cache:
            done = subprocess.run(
                [sys.executable, __file__, "--only", name, "--threads", str(args.threads),
                 "--seconds", str(args.seconds), "--one"],
                capture_output=True, text=True,
                env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache, "XDG_CACHE_HOME": cache,
                     "OMP_NUM_THREADS": str(args.threads)},
            )  # fmt: skip
        if done.returncode:
            print(name, done.stderr.strip().splitlines()[-3:], flush=True)
            continue
        found = json.loads(done.stdout.strip().splitlines()[-1])
        ratios.append(found["inductor"] / found["superopt"])
        lines += [row(name, found), *(f"<!-- {note} -->" for note in found["notes"])]
        print("\n".join([lines[-1 - len(found["notes"])], *found["notes"]]), flush=True)
    lines.append(f"\nInductor / superopt: geometric mean **{geometric_mean(ratios):.2f}**.")
    print(lines[-1])
    if args.out is not None:
        threads = f"{args.threads} thread{'s' * (args.threads > 1)}"
        head = HEAD.format(machine=this_machine().text, torch=torch.__version__, threads=threads,
                           note=args.note, length=LENGTH)  # fmt: skip
        args.out.write_text(head + "\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
