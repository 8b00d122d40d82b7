"""Prove the rules of the library: how many, how long, and what is refuted or not known.

    python scripts/verify_rules.py [PART OF A SOURCE | hand] [--seconds 20] [--mutants 2]
    python scripts/verify_rules.py --write [--new] [--jobs 2]

With --write, what is proved at all ranks at which it applies goes to rules/library/proofs.json,
from which reports take a rule's tier: all rules are proved, by a count of work and not of seconds.
With --new those that are not in it only: for when rules changed, and the prover did not.

With --mutants N, N changed rules of each are proved instead; one that is proved and yet differs
numerically is a survivor, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from superopt.rules.rule import LIBRARY, Rule, load_library
from superopt.rules.stated import PROOFS, proof_key
from superopt.rules.trial import Refuted as Differs
from superopt.rules.trial import try_rule
from superopt.verifier.attributes import UNSEEN_ONES
from superopt.verifier.prove import Limits, prove
from superopt.verifier.verdict import Proved
from tests.verifier.mutants import mutants


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


WORK = Limits(seconds=120, work=60_000, beyond=100_000)


def written(jobs: int, known: Mapping[str, str]) -> int:
    """Prove all rules but those that are known, and write which are; print the others."""
    every = load_library()
    found = {key: known[key] for key in map(proof_key, every) if key in known}
    some = [n for n, r in enumerate(every) if proof_key(r) not in known]
    total = 0.0
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        verdicts = pool.map(judged, some, chunksize=8)
        for n, (scope, why, seconds) in zip(some, verdicts, strict=True):
            rule = every[n]
            total += seconds
            if scope:
                found[proof_key(rule)] = scope
            else:
                print(f"{rule.source} {rule.name} | {why[:300]}", flush=True)
    lines = [f"{json.dumps(k)}: {json.dumps(found[k])}" for k in sorted(found)]
    (LIBRARY / PROOFS).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    proved = sum(proof_key(r) in found for r in every)
    print(f"{proved} of {len(every)} rules proved, {len(some)} of them asked now, in {total:.1f} s")
    return 0


def judged(number: int) -> tuple[str, str, float]:
    """The scope of the proof of a rule of the library, empty where there is none for all ranks at
    which it applies; why there is none; seconds."""
    verdict = prove(load_library()[number], WORK)
    if not isinstance(verdict, Proved):
        return "", str(verdict), verdict.seconds
    if not verdict.whole or UNSEEN_ONES in verdict.scope.assumes:
        return "", f"proved in part: {verdict.scope}", verdict.seconds
    return verdict.said, "", verdict.seconds


def mutated(part: str, limits: Limits, each: int, seed: int) -> int:
    """Prove changed rules; print the survivors."""
    count: Counter[str] = Counter()
    for rule in rules(part):
        some = list(mutants(rule))
        Random(f"{rule.name} {seed}").shuffle(some)
        for mutant in some[:each]:
            verdict = prove(mutant, limits)
            count[type(verdict).__name__] += 1
            if isinstance(verdict, Proved):
                found = try_rule(mutant, seed=seed, count=6)
                count[f"proved and {type(found).__name__}"] += 1
                if isinstance(found, Differs):
                    count["survivors"] += 1
                    print(f"SURVIVOR {mutant}\n    {found}", flush=True)
    print(dict(count))
    return int(count["survivors"] > 0)


def rules(part: str) -> list[Rule]:
    """Those of sources with `part` in their names; "hand" are those that were not generated."""
    if part == "hand":
        return [r for r in load_library() if not r.source.startswith("generated")]
    return [r for r in load_library() if part in r.source]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="?", default="")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--mutants", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--new", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    begin = time.perf_counter()
    limits = Limits(seconds=args.seconds)
    if args.write:
        known = json.loads((LIBRARY / PROOFS).read_text(encoding="utf-8")) if args.new else {}
        status = written(args.jobs, known)
    elif args.mutants:
        status = mutated(args.part, limits, args.mutants, args.seed)
    else:
        status = library(args.part, limits)
    print(f"{time.perf_counter() - begin:.1f} s")
    return status


if __name__ == "__main__":
    sys.exit(main())
