"""Prove the rules of the library: how many, how long, and what is refuted or not known.

    python scripts/verify_rules.py [PART OF A SOURCE | hand] [--seconds 20]
    python scripts/verify_rules.py --write [--new] [--jobs 2]
    python scripts/verify_rules.py --table
    python scripts/verify_rules.py [PART OF A SOURCE | hand] --mutants 4 [--jobs 2]

With --write, what is proved at all ranks at which it applies goes to rules/library/records.json,
from which reports take a rule's tier, and why the others are not: all rules are proved, by a count
of work and not of seconds. With --new those only of which it has neither: for when rules changed,
and the prover did not. --table prints the table of docs/benchmarks/verify_rules.md.

With --mutants N, N changed rules of each that differ numerically are put to the prover instead, and
how many it refused goes to rules/library/records.json; one that is proved is a survivor, and the
exit status is 1 (scripts/mutation.py).
"""

from __future__ import annotations

import argparse
import gc
import re
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.mutation import mutated
from superopt.rules.lang.rule import FLOAT_CLASSES, Rule
from superopt.rules.library.load import load_library
from superopt.rules.library.records import (
    Proof,
    find_proof,
    library_records,
    proof_key,
    tier,
    write_records,
)
from superopt.verifier.prove import Limits, prove
from superopt.verifier.prove_bounded import best_proof
from superopt.verifier.verdict import Proved


def library(part: str, limits: Limits) -> int:
    """Prove each rule; print what is not proved."""
    count: Counter[str] = Counter()
    times: list[tuple[float, str]] = []
    for rule in rules(part):
        verdict = prove(rule, limits)
        kind = type(verdict).__name__
        count[kind] += 1
        times.append((verdict.seconds, rule.name))
        if not isinstance(verdict, Proved):
            print(f"{rule.source} {rule.name} | {str(verdict)[:300]}", flush=True)
    times.sort(reverse=True)
    total = sum(s for s, _ in times)
    print(
        f"{dict(count)} of {len(times)} in {total:.1f} s, {total / max(len(times), 1):.3f} s each"
    )
    print("slowest:", ", ".join(f"{name} {s:.2f}" for s, name in times[:8]))
    return 0


WORK = Limits(seconds=120, work=60_000, work_beyond=200_000)


def written(jobs: int, new: bool) -> int:
    """Prove all rules, or those only of which nothing is known, and write which are and why the
    others are not; print these."""
    every = load_library()
    keys = [proof_key(r) for r in every]
    known = library_records()
    found = {k: known.proof[k] for k in keys if new and k in known.proof}
    open_ = {k: known.unproved[k] for k in keys if new and k in known.unproved}
    some = [n for n, k in enumerate(keys) if k not in found and k not in open_]
    total = 0.0
    with ProcessPoolExecutor(jobs, get_context("spawn"), collect_rarely) as pool:
        for n, (proof, why, seconds) in zip(some, pool.map(judged, some, chunksize=8), strict=True):
            total += seconds
            if proof is not None:
                found[keys[n]] = proof
            else:
                open_[keys[n]] = why
                print(f"{every[n].source} {every[n].name} | {why}", flush=True)
    write_records(proof=found, unproved=open_)
    proved = sum(k in found for k in keys)
    print(
        f"{proved} of {len(every)} rules proved, {len(some)} of them newly checked,"
        f" in {total:.1f} s"
    )
    return 0


def collect_rarely() -> None:
    """Of what a proof makes little is a cycle, and looking for those is a tenth of its time."""
    load_library()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


MOST_SAID = 300  # letters of why a rule is not proved


def judged(number: int) -> tuple[Proof | None, str, float]:
    """The proof of a rule of the library for all ranks at which it applies; else why there is none;
    seconds."""
    rule = load_library()[number]
    verdict = best_proof(rule, WORK)
    if not isinstance(verdict, Proved):
        why = str(verdict).removeprefix("unknown: ")
    elif not verdict.is_complete:
        why = f"proved in part: {verdict.scope.ranks} only"
    else:
        return verdict.proof, "", verdict.seconds
    why = _renumbered(why)
    short = why if len(why) <= MOST_SAID else why[: MOST_SAID - 3] + "..."
    return None, short, verdict.seconds


def _renumbered(text: str) -> str:
    """With the variables of the prover, whose numbers hang on what was proved before, as i0, ..."""
    names: dict[str, str] = {}
    return re.sub(r"\b[a-z]\d{3,}\b", lambda m: names.setdefault(m[0], f"i{len(names)}"), text)


def rules(part: str) -> list[Rule]:
    """Those of sources with `part` in their names; "hand" are those that were not generated."""
    if part == "hand":
        return [r for r in load_library() if not r.source.startswith("generated")]
    return [r for r in load_library() if part in r.source]


COLUMNS = "file | rules | A | B | obligations | to Z3 | ms each | longest ms"


def table() -> None:
    """A line for each file: its rules, and their stored proofs."""
    of: dict[str, list[Rule]] = {}
    for rule in load_library():
        of.setdefault(rule.source.rpartition(":")[0], []).append(rule)
    print(f"| {COLUMNS} | {' | '.join(FLOAT_CLASSES)} |")
    print("|---" * (COLUMNS.count("|") + 1 + len(FLOAT_CLASSES)) + "|")
    for file, some in [*sorted(of.items()), ("**all**", list(load_library()))]:
        tiers, classes = Counter(map(tier, some)), Counter(r.float_class for r in some)
        known = [p for p in map(find_proof, some) if p is not None]
        asked, queries = sum(p.obligations for p in known), sum(p.queries for p in known)
        ms = [p.ms for p in known]
        cells = [
            file, f"{len(some):,}", f"{tiers['A']:,}", tiers["B"], f"{asked:,}", f"{queries:,}",
            f"{sum(ms) / len(ms):.0f}", f"{max(ms):,.0f}", *(classes[c] for c in FLOAT_CLASSES),
        ]  # fmt: skip
        print(f"| {' | '.join(map(str, cells))} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="?", default="")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--mutants", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--new", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    if args.table:
        table()
        return 0
    begin = time.perf_counter()
    limits = Limits(seconds=args.seconds)
    if args.write:
        status = written(args.jobs, args.new)
    elif args.mutants:
        every = {r.name: n for n, r in enumerate(load_library())}
        numbers = [every[r.name] for r in rules(args.part)]
        status = mutated(numbers, args.jobs, args.mutants, args.seed)
    else:
        status = library(args.part, limits)
    print(f"{time.perf_counter() - begin:.1f} s")
    return status


if __name__ == "__main__":
    sys.exit(main())
