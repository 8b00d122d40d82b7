"""How much `superopt verify` proves of optimized models without their certificate.

    python scripts/bench_own.py FOLDER --make 40 [--seed 0] [--family attention]
    python scripts/bench_own.py FOLDER [--tool superopt] [--limit 20] [--method auto]

With --make, random models (`random_models.py`, so many of each family) are written to FOLDER as
NAME.onnx, and what superopt makes of them by estimated costs (nothing is timed) beside them as
NAME.superopt.onnx, where that is another model. What other tools make may lie there as
NAME.TOOL.onnx. Without --make, each of these is verified against NAME.onnx, and the script prints
what is not proved, why, and a table; the exit status is 1 where an output is refuted.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from random_models import FAMILIES, draw

from superopt.api import functions
from superopt.errors import SuperoptError


@dataclass
class Row:
    """Of a tool's models of one family: outputs by what is said of them, and seconds."""

    models: int = 0
    said: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)

    def line(self, name: str) -> str:
        every = self.said.total()
        times = sorted(self.seconds)
        return (
            f"| {name} | {self.models} | {every} | {self.said['proved']}"
            f" ({self.said['proved'] / every:.1%}) | {self.said['refuted']} |"
            f" {self.said['unknown']} | {times[len(times) // 2]:.2f} | {times[-1]:.1f} |"
        )


def make(folder: Path, names: list[str], seeds: range, budget: float) -> None:
    """Write random models, and what superopt makes of them."""
    folder.mkdir(parents=True, exist_ok=True)
    for family in names:
        changed = 0
        for seed in seeds:
            path = folder / f"{family}-{seed}.onnx"
            path.write_bytes(draw(family, seed).SerializeToString())
            done = functions.optimize(
                path, cost="roofline", budget=budget, store=folder / "store.db"
            )
            if done.changed:
                done.save(path.with_suffix(".superopt.onnx"))
                changed += 1
        print(f"{family}: {changed} of {len(seeds)} models changed", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--make", type=int, default=0, help="so many models of each family")
    parser.add_argument("--seed", type=int, default=0, help="the first of them")
    parser.add_argument("--family", default="", help="only of this one, or these, with commas")
    parser.add_argument("--budget", type=float, default=4.0, help="seconds to optimize a model")
    parser.add_argument("--tool", default="", help="only what this one made")
    parser.add_argument("--limit", type=float, default=20.0, help="seconds to verify a model")
    parser.add_argument("--method", default="auto")
    args = parser.parse_args()
    families = [f for f in args.family.split(",") if f] or list(FAMILIES)
    if args.make:
        make(args.folder, families, range(args.seed, args.seed + args.make), args.budget)
        return 0
    rows: dict[tuple[str, str], Row] = {}
    for changed in sorted(args.folder.glob("*.*.onnx")):
        name, tool, _ = changed.name.split(".")
        family = name.rpartition("-")[0] or name
        if (args.tool and tool != args.tool) or (args.family and family not in families):
            continue
        begin = time.perf_counter()
        try:
            found = functions.verify(
                changed.with_name(f"{name}.onnx"), changed, method=args.method, limit=args.limit
            )
        except SuperoptError as e:
            print(f"{changed.name}: {e}")
            continue
        row = rows.setdefault((tool, family), Row())
        row.models += 1
        row.seconds.append(time.perf_counter() - begin)
        for o in found.outputs:
            row.said[o.decision] += 1
            if o.decision != "proved":
                print(f"{changed.name}: {o.name}: {o.decision}: {o.reason[:300]}", flush=True)
        if not found.outputs:
            print(f"{changed.name}: {found.decision}: {found.reason}")
    print("\n| models | changed | outputs | proved | refuted | unknown | median s | most s |")
    print("|---|---|---|---|---|---|---|---|")
    for tool in dict.fromkeys(t for t, _ in rows):
        whole = Row()
        for (t, family), row in rows.items():
            if t == tool:
                print(row.line(f"{tool}: {family}"))
                whole.models += row.models
                whole.said += row.said
                whole.seconds += row.seconds
        print(whole.line(f"{tool}: all"))
    return int(any(row.said["refuted"] for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
