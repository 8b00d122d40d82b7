"""Prove the library a second time, from axioms: how many, how long, from which.

    python scripts/prove_axioms.py [PART OF A SOURCE] [--write] [--jobs 2]

First each axiom is proved at the level of indices, and shown to be balanced: none is trusted. Then
the rules, the smallest first; what does not follow from the axioms is one itself, from then on. A
rule that is not balanced is a guarded one, used only where the types of both sides are known to be
the same. With --write the proofs go to rules/library/records.json.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from superopt.rules.axioms.load import load_axioms
from superopt.rules.lang.rule import Rule
from superopt.rules.lang.term import App, walk
from superopt.rules.library.load import load_library
from superopt.rules.library.records import find_proof, proof_key, write_records
from superopt.verifier.axiom.balance import imbalance_reason
from superopt.verifier.axiom.prove import AxiomProof, Axioms, as_axiom, converse_name, explain
from superopt.verifier.prove import Limits, prove
from superopt.verifier.verdict import Proved

WORK = Limits(seconds=120, work=60_000, work_beyond=100_000)
AXIOM = "axiom "  # before the name of one, which a rule of the library may have, too
ITSELF = "itself"  # of a rule that is an axiom


def checked(number: int) -> str:
    """Why an axiom is not to be used; "" if it is."""
    rule = load_axioms()[number]
    verdict = prove(rule, WORK)
    if not isinstance(verdict, Proved) or not verdict.is_complete:
        return str(verdict)
    return imbalance_reason(rule)


def balanced(number: int) -> bool:
    rule = load_library()[number]
    found = find_proof(rule)
    return found is not None and not found.conditions and not imbalance_reason(rule)


@cache
def by_name() -> dict[str, Rule]:
    named = {AXIOM + r.name: replace(r, name=AXIOM + r.name) for r in load_axioms()}
    return named | {r.name: r for r in load_library()}


def told(task: tuple[int, tuple[tuple[str, bool], ...], float]) -> AxiomProof:
    """The proof of a rule of the library from the axioms of these names, some of them guarded,
    which took so many milliseconds to find."""
    number, names, search = task
    used = [as_axiom(by_name()[name], guarded) for name, guarded in names]
    back = {converse_name(name) for name, _ in names if name.startswith(AXIOM)} & set(by_name())
    also = [as_axiom(by_name()[name]) for name in sorted(back)]
    rule = load_library()[number]
    return explain(rule, [a for a in used if a], search, [a for a in also if a])


def size(rule: Rule) -> int:
    """How many operators it has."""
    return sum(isinstance(p, App) for s in (*rule.lhs, *rule.rhs) for p in walk(s))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="?", default="")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    begin = time.perf_counter()
    library = load_library()
    order = sorted(range(len(library)), key=lambda n: (size(library[n]), library[n].name))
    known = [n for n in order if find_proof(library[n]) and args.part in library[n].source]
    axioms = Axioms()
    status = 0
    with ProcessPoolExecutor(args.jobs, get_context("spawn")) as pool:
        for rule, why in zip(
            load_axioms(), pool.map(checked, range(len(load_axioms())), chunksize=8), strict=True
        ):
            one = as_axiom(replace(rule, name=AXIOM + rule.name))
            if why or one is None:
                print(f"NOT AN AXIOM {rule} | {why or 'not said in clauses'}", flush=True)
                status = 1
            else:
                axioms.add(one)
        print(
            f"{len(axioms.axioms)} axioms proved, {time.perf_counter() - begin:.0f} s", flush=True
        )
        plain = dict(zip(known, pool.map(balanced, known, chunksize=8), strict=True))
    print(
        f"{sum(plain.values())} rules are balanced, {time.perf_counter() - begin:.0f} s", flush=True
    )
    count: Counter[str] = Counter()
    times: list[float] = []
    searches: list[float] = []
    used: Counter[str] = Counter()
    entries: dict[str, object] = {}
    tasks: list[tuple[int, tuple[tuple[str, bool], ...], float]] = []
    for n in known:
        rule = library[n]
        found = axioms.find_core(rule)
        if found is not None:
            names = tuple((a.clause.name, a.guarded) for a in found[0])
            tasks.append((n, names, found[1]))
            continue
        one = as_axiom(rule, guarded=not plain[n])
        if one is None:
            count["not said in clauses"] += 1
            print(f"NOT SAID {rule.source} {rule.name}", flush=True)
            continue
        axioms.add(one)
        count["axiom" if plain[n] else "guarded axiom"] += 1
        entries[proof_key(rule)] = {"names": [ITSELF]}
    print(f"{len(tasks)} rules follow, {time.perf_counter() - begin:.0f} s", flush=True)
    with ProcessPoolExecutor(args.jobs, get_context("spawn")) as pool:
        for n, made in zip(
            (n for n, _, _ in tasks), pool.map(told, tasks, chunksize=8), strict=True
        ):
            count["derived"] += 1
            count["with a chain"] += bool(made.steps)
            times.append(made.ms)
            searches.append(made.search_ms)
            used.update(made.names)
            entry = {"names": made.names, "steps": made.chain_text(), "ms": round(made.ms, 1)}
            entries[proof_key(library[n])] = {k: v for k, v in entry.items() if v}
    print(dict(count), f"of {len(library)}")
    for what, some in (("to prove from the axioms named", times), ("to find these", searches)):
        if some:
            print(
                f"Z3 {what}: {statistics.fmean(some):.1f} ms on average, median"
                f" {statistics.median(some):.1f}, longest {max(some):.0f}"
            )
    print("most used:", ", ".join(f"{a} {n}" for a, n in used.most_common(12)))
    if args.write:
        write_records(axioms=entries)
    print(f"{time.perf_counter() - begin:.0f} s")
    return status


if __name__ == "__main__":
    sys.exit(main())
