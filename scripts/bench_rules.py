#!/usr/bin/env python3
"""What the rule generator takes and finds: the table of docs/bench_rules.md.

    scripts/bench_rules.py [--families matrices,images] [--max-ops 3] [--complete 3] [--jobs 2]

For each family: candidates, distinct tensors, equal pairs, equations and rules, with seconds and
peak memory; and how many of all equal pairs of up to so many operators follow from the rules that
were found (each application of the bank from its class's smallest term; chains of at most 8
rewrites, 2 nodes larger, 4,000 graphs).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from superopt.api import generate_rules
from superopt.cost.machine import machine
from superopt.generate.complete import BOUNDS, completeness
from superopt.generate.family import FAMILIES
from superopt.generate.find import find
from superopt.report.data import Generation
from superopt.rules.rule import parse_rules


def generated(folder: Path, families: list[str], most: int, jobs: int) -> list[Generation]:
    """A run for each family on its own, so that each has its seconds."""
    return [
        generate_rules(folder / name, families=[name], max_ops=most, jobs=jobs) for name in families
    ]


def table(runs: list[Generation]) -> list[str]:
    lines = [
        "| family | operators | candidates | tensors | equal pairs | equations |"
        " candidates a second |",
        "|---|---|---|---|---|---|---|",
    ]
    for run in runs:
        (f,) = run.families
        for n, v in enumerate(f.levels, 1):
            rate = v.candidates / max(v.enumerating, 1e-9)
            lines.append(
                f"| {f.family} | {n} | {v.candidates:,} | {v.tensors:,} | {v.pairs:,} |"
                f" {v.equations:,} | {rate:,.0f} |"
            )
    return lines


def kept(runs: list[Generation]) -> list[str]:
    lines = [
        "| family | equations | minimal | claims | covered | refuted | derivable | rules |"
        " s: enumerate, prune, make rules | peak MB |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for run in runs:
        (f,) = run.families
        lines.append(
            f"| {f.family} | {f.equations} | {f.minimal} | {f.claims} | {f.covered} |"
            f" {len(f.refuted)} | {f.derivable} | {f.rules} | {f.enumerating:.1f},"
            f" {f.pruning:.1f}, {f.generalising:.1f} | {run.peak_mb:,.0f} |"
        )
    return lines


def complete(folder: Path, families: list[str], most: int) -> list[str]:
    rules = [
        r
        for name in families
        for r in parse_rules((folder / name / f"{name}.rules").read_text(), name)
    ]
    lines = ["| family | equal pairs | derived | s |", "|---|---|---|---|"]
    for name in families:
        found = find(FAMILIES[name](), most, 0)
        begin = time.monotonic()
        done = completeness(found, rules)
        share = 1 - len(done.missed) / max(done.pairs, 1)
        seconds = time.monotonic() - begin
        lines.append(f"| {name} | {done.pairs:,} | {share:.2%} | {seconds:.1f} |")
        lines += [f"missed: {m}" for m in done.missed[:20]]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--max-ops", type=int, default=3)
    parser.add_argument("--complete", type=int, default=3, help="operators; 0 leaves it out")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    families = args.families.split(",")
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.out or Path(scratch)
        runs = generated(folder, families, args.max_ops, args.jobs)
        print(f"{machine().text}, {args.jobs} processes\n")
        print("\n".join(table(runs)), "\n")
        print("\n".join(kept(runs)), "\n")
        if args.complete:
            print(f"Equal pairs of up to {args.complete} operators, {BOUNDS}:\n")
            print("\n".join(complete(folder, families, args.complete)))


if __name__ == "__main__":
    main()
