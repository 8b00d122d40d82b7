#!/usr/bin/env python3
"""How long it takes from `import superopt` to a model's first output on a GPU, each time in a new
process: the first one compiles, and those after it find what it kept.

    python scripts/bench_gpu_start.py --models FOLDER --out FOLDER [--only resnet18,bert_base_12l]

With --out of scripts/bench_gpu.py (--tune) kernels are as they were tuned there. Nothing that was
kept before is found: the cache is a new one, but for Triton's. With TRITON_INTERPRET=1 it runs
without a GPU, and its times say nothing of one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench_gpu import Bench, Case

ROOT = Path(__file__).resolve().parents[1]
CHILD = """
import json, sys, time
begin = time.perf_counter()
path, precision, store = json.loads(sys.argv[1])
import superopt
steps = [("import", time.perf_counter() - begin)]

from superopt.kernels.cuda import driver as gpu_driver
own, calls = gpu_driver.Driver.__call__, {}
def timed(self, name, *given):
    since = time.perf_counter()
    own(self, name, *given)
    calls[name] = calls.get(name, 0.0) + time.perf_counter() - since
gpu_driver.Driver.__call__ = timed

def lap(name):
    steps.append((name, time.perf_counter() - begin - sum(s for _, s in steps)))
lap("driver's module")
exe = superopt.compile(path, target="cuda", precision=precision, store=store)
lap("compile")
import numpy as np
feeds = {p.name: np.zeros([d if isinstance(d, int) else 1 for d in p.shape], p.dtype)
         for p in exe.input_ports}
out = exe.run(feeds)
lap("first run")
total = time.perf_counter() - begin
exe.run(feeds)
lap("second run")
digest = [float(np.nan_to_num(np.asarray(x, np.float64)).sum()) for x in out.values()]
print(json.dumps({
    "found": any(v.options is not None for v in exe.variants.values()),
    "torch": "torch" in sys.modules, "total": total,
    "steps": steps,
    "driver": sorted(calls.items(), key=lambda x: -x[1])[:8], "sums": digest,
}))
"""


def child(path: Path, precision: str, store: Path | None, cache: Path) -> dict[str, Any]:
    """What one process measured; "process": seconds of all of it, from outside."""
    given = json.dumps([str(path), precision, None if store is None else str(store)])
    known = [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    paths = os.pathsep.join(p for p in known if p)
    env = {**os.environ, "SUPEROPT_CACHE": str(cache), "PYTHONPATH": paths}
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", CHILD, given], capture_output=True, text=True, env=env
    )
    seconds = time.perf_counter() - begin
    if done.returncode:
        raise SystemExit(f"{path.name} in {precision}: {done.stderr}")
    out: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**out, "process": seconds}


def shown(n: int, x: dict[str, Any]) -> str:
    how = "found" if x["found"] else "compiled"
    steps = ", ".join(f"{name} {seconds:.3f}" for name, seconds in x["steps"])
    lines = [
        f"  {n}: {x['total']:.2f} s ({x['process']:.2f} of the process), {how}"
        f"{', with torch' if x['torch'] else ''}: {steps}"
    ]
    if x["driver"]:
        lines.append("     " + ", ".join(f"{name} {s:.3f}" for name, s in x["driver"]))
    return "\n".join(lines)


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    given.add_argument("--models", type=Path, required=True, help="where fill.py is")
    given.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    given.add_argument("--only", default="resnet18,bert_base_12l")
    given.add_argument("--precision", default="fp16,tf32")
    given.add_argument("--batch", default="1")
    given.add_argument("--times", type=int, default=3, help="processes that find what was kept")
    how = given.parse_args()
    sys.path.insert(0, str(ROOT))
    how.out.mkdir(parents=True, exist_ok=True)
    bench = Bench(how.models, how.out, 0)
    store = how.out / "store" if (how.out / "store").exists() else None
    wrong = 0
    with tempfile.TemporaryDirectory(dir=how.out) as cache:
        for name in how.only.split(","):
            for batch in map(int, how.batch.split(",")):
                for precision in how.precision.split(","):
                    case = Case(name, precision, batch)
                    path = bench.path(case)
                    print(case, flush=True)
                    first: Any = None
                    for n in range(1 + how.times):
                        found = child(path, precision, store, Path(cache))
                        first = first or found
                        print(shown(n, found), flush=True)
                        if found["sums"] != first["sums"]:
                            print(f"  ANOTHER RESULT: {found['sums']}, not {first['sums']}")
                        wrong += found["sums"] != first["sums"] or (n > 0) != found["found"]
    if wrong:
        sys.exit(f"{wrong} processes had another result, or did not find what was kept")


if __name__ == "__main__":
    main()
