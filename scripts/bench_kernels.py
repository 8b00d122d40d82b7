#!/usr/bin/env python3
"""Kernels by family against onnxruntime and OpenVINO: docs/benchmarks/bench_kernels.md.

    scripts/bench_kernels.py [--only FAMILY,...] [--threads 1,2] [--seconds 2] [--note TEXT]

Each case is a model of one kernel (scripts/kernel_cases.py). It is compiled by the default call,
and runs in turns with both peers in one process (OpenVINO in float32): medians of rounds, and the
ratio to the faster peer. What was measured before stays in the .json, family by family, and with
`--only` in the table.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import onnx
from json_rows import json_rows
from kernel_cases import FAMILIES, Case, model
from peers import RUNTIMES, drawn, geometric_mean, in_turns

import superopt
from superopt import ort
from superopt.baselines import openvino
from superopt.cost.machine import this_machine
from superopt.kernels.runtime.cpu_peak import measure_cpu_peak

SLOWER = 0.95  # of the better peer: noted

HEAD = """# Kernels against onnxruntime and OpenVINO

By `scripts/bench_kernels.py --threads {threads} --seconds {seconds}`, on {machine};
onnxruntime {ort}, OpenVINO {openvino} in float32. Batch 1, weights drawn; medians of runs in turns
in one process, in us, each a call from Python; direct convolutions by `float_class="E1"`, all else
by the default. {note}

- *kernels us*: our kernels alone, each timed within the call (`exe.profile()`), and by it *GFLOP/s*
  and *roof %*: the least time by the roofline, divided by the time. The least time is that of the
  operations at the peak of multiply-adds ({flops}), or that of the bytes at the rate of
  the cache or memory that holds them, whichever is more (*by*); peaks are measured anew before each
  case. A multiply-add is two operations, a function as many as its polynomial has. Of a convolution
  in Winograd's tiles a direct one's operations are counted, so that its share may be above 100 %;
  rows of a table are counted as if none stayed in a cache.
- *error*: the largest difference from onnxruntime's output, by the output's rms.
- *target*: what is to be reached, in % of the roofline or as the ratio to the better peer.
"""


def measure(case: Case, threads: int, seconds: float, work: Path) -> dict[str, object]:
    """Everything about one case."""
    path = work / "kernel.onnx"
    onnx.save(model(case), path)
    session = ort.load_session(path, threads)
    feeds = drawn(session, 0, {}, max(case.whole.values(), default=2))
    exe = superopt.compile(path, threads=threads, float_class=case.float_class, shapes=())
    found = in_turns(exe, session, path, feeds, threads, seconds)
    measure_cpu_peak.cache_clear()
    p = exe.profile(feeds, seconds=seconds / 4)
    least = sum(x.roofline_seconds for x in p.parts)
    arithmetic, memory = sum(x.arithmetic for x in p.parts), sum(x.memory for x in p.parts)
    return {
        **found,
        "kernels_us": 1e6 * p.seconds,
        "operations": sum(x.operations for x in p.parts),
        "share": least / p.seconds,
        "by": "flops" if arithmetic >= memory else "bytes",
        "foreign": any(x.how == "onnxruntime" for x in p.parts),
        "flops": p.flops,
        "target": {"share": case.share, "ratio": case.ratio},
    }


def missed(m: dict) -> str:
    """Why a case is noted; empty where it is not."""
    out = []
    if m["ratio"] < SLOWER:
        out.append("slower")
    out += ["target missed" for k, v in m["target"].items() if v and m[k] < v]
    return ", ".join(out)


def row(name: str, m: dict) -> str:
    us = " | ".join(f"{m['us'][k]:.1f}" for k in RUNTIMES)
    rate = m["operations"] / m["kernels_us"] / 1e3
    share, ratio = m["target"]["share"], m["target"]["ratio"]
    target = f"{100 * share:.0f} %" if share else f"{ratio:.1f}x" if ratio else ""
    noted = "in onnxruntime" if m["foreign"] else missed(m)
    return (
        f"| {name} | {us} | {m['ratio']:.2f} | {m['kernels_us']:.1f} | {rate:.0f} |"
        f" {100 * m['share']:.0f} | {m['by']} | {m['error']:.0e} | {target} | {noted} |"
    )


def table(threads: str, families: dict[str, dict]) -> str:
    """As Markdown."""
    lines = [f"## {threads} thread{'s' if threads != '1' else ''}", ""]
    for family, of in families.items():
        ratios = [m["ratio"] for m in of["cases"].values()]
        lines += [
            f"### {family[0].upper()}{family[1:]}",
            "",
            f"{of['date']}, load {of['load']:.1f} before; geometric mean of the ratios"
            f" {geometric_mean(ratios):.2f}.",
            "",
            "| case | superopt | onnxruntime | OpenVINO | better peer / superopt | kernels us |"
            " GFLOP/s | roof % | by | error | target | |",
            "|" + "---|" * 12,
            *(row(name, m) for name, m in of["cases"].items()),
            "",
        ]
    return "\n".join(lines)


def text(found: dict) -> str:
    """The whole document."""
    rates = {
        t: [m["flops"] / 1e9 for of in families.values() for m in of["cases"].values()]
        for t, families in sorted(found["threads"].items())
    }
    flops = ", ".join(
        f"{min(r):.0f} to {max(r):.0f} GFLOP/s at {t} thread{'s' * (t != '1')}"
        for t, r in rates.items()
    )
    head = HEAD.format(**found["about"], threads=",".join(rates), flops=flops)
    return head + "\n" + "\n".join(table(t, f) for t, f in sorted(found["threads"].items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--threads", default="1")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--note", default="", help="conditions, for the table")
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks/bench_kernels.json"))
    args = parser.parse_args()
    wanted = args.only.split(",") if args.only else list(FAMILIES)
    unknown = set(wanted) - FAMILIES.keys()
    if unknown:
        parser.error(f"no family {', '.join(sorted(unknown))}; there are {', '.join(FAMILIES)}")
    found = json.loads(args.out.read_text()) if args.out.exists() else {"threads": {}}
    found["about"] = {
        "machine": this_machine().text,
        "ort": ort.installed_version(),
        "openvino": openvino.version(),
        "seconds": f"{args.seconds:g}",
        "note": args.note or found.get("about", {}).get("note", ""),
    }
    for threads in args.threads.split(","):
        known = found["threads"].setdefault(threads, {})
        for family in wanted:
            begin = {"date": str(datetime.date.today()), "load": os.getloadavg()[0]}
            cases = {}
            for case in FAMILIES[family]:
                with tempfile.TemporaryDirectory() as folder:
                    cases[case.name] = measure(case, int(threads), args.seconds, Path(folder))
                print(threads, family, row(case.name, cases[case.name]), flush=True)
            known[family] = {**begin, "cases": cases}
            found["threads"][threads] = {f: known[f] for f in FAMILIES if f in known}
            args.out.write_text(json_rows(found, depth=5))
            args.out.with_suffix(".md").write_text(text(found))


if __name__ == "__main__":
    main()
