#!/usr/bin/env python3
"""WebAssembly beside onnxruntime-web, one thread each: the table of docs/benchmarks/wasm.md.

    npm install --prefix FOLDER onnxruntime-web
    scripts/bench_wasm.py --models MODELS --onnxruntime-web FOLDER [--only resnet18,...]
                          [--cpu simd128] [--rounds 15] [--note TEXT] [--out FILE]

Each model is exported (`superopt export --target wasm`) and runs in Node, in turns with a session
of onnxruntime-web's WebAssembly. Medians of rounds; loading counts once.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from peers import geometric_mean

import superopt
from superopt.cost.machine import this_machine

SIZES = {"batch": 1, "sequence": 64}
HEAD = """# WebAssembly

By `scripts/bench_wasm.py`, on {machine}; Node {node}, onnxruntime-web {version}, one thread each,
`--cpu {cpu}`. {note} Medians of runs in turns in one process, batch 1 and {sequence} tokens.
*load*: to read, check and instantiate the model. *error / rms*: the largest difference of outputs,
by the rms of onnxruntime-web's.
"""


def measure(path: Path, peer: Path, cpu: str, rounds: int) -> dict[str, float]:
    """Return the times in milliseconds, and the error."""
    with tempfile.TemporaryDirectory() as folder:
        exe = superopt.compile(path, threads=1, shapes=())
        report = exe.export(Path(folder) / "model", target="wasm", cpu=cpu)
        module = next(f for f, _ in report.files if f.endswith(".mjs"))
        flags = ["--experimental-wasm-relaxed-simd"] if cpu == "relaxed-simd" else []
        script = Path(__file__).with_name("bench_wasm.mjs")
        done = subprocess.run(
            ["node", *flags, script, module, path, peer, str(rounds), json.dumps(SIZES)],
            capture_output=True, text=True,
        )  # fmt: skip
        bytes_ = sum(n for f, n in report.files if f.endswith((".wasm", ".weights")))
    if done.returncode:
        raise SystemExit(f"{path.name}: {done.stderr}")
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return {**found, "share": bytes_ / path.stat().st_size}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--onnxruntime-web", type=Path, required=True, dest="peer")
    parser.add_argument("--only", default="", help="names of models, e.g. resnet18,mobilenet_v2")
    parser.add_argument("--cpu", default="simd128", help="simd128 or relaxed-simd")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--note", default="", help="the date, and the load of the machine")
    parser.add_argument("--out", type=Path, help="write the table there")
    args = parser.parse_args()
    known = sorted(p.stem for p in args.models.glob("*.onnx"))
    lines = [
        "| model | onnxruntime-web ms | superopt ms | speed-up | load onnxruntime-web ms | load ms"
        " | files / model | error / rms |",
        "|---|" + "---:|" * 7,
    ]
    print("\n".join(lines), flush=True)
    ratios = []
    for name in args.only.split(",") if args.only else known:
        r = measure(args.models / f"{name}.onnx", args.peer, args.cpu, args.rounds)
        ratios.append(r["theirs"] / r["ours"])
        lines.append(
            f"| {name} | {r['theirs']:.2f} | {r['ours']:.2f} | **{ratios[-1]:.2f}** | "
            f"{r['theirLoad']:.0f} | {r['ourLoad']:.0f} | {r['share']:.2f} | {r['error']:.1e} |"
        )
        print(lines[-1], flush=True)
    lines.append(f"\nGeometric mean of the speed-ups **{geometric_mean(ratios):.2f}**.")
    print(lines[-1])
    if args.out is not None:
        about = json.loads((args.peer / "node_modules/onnxruntime-web/package.json").read_text())
        node = subprocess.run(["node", "--version"], capture_output=True, text=True).stdout.strip()
        head = HEAD.format(
            machine=this_machine().text, node=node, version=about["version"], cpu=args.cpu,
            note=args.note, sequence=SIZES["sequence"],
        )  # fmt: skip
        args.out.write_text(head + "\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
