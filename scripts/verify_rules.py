"""Prove the rules of the library: how many, how long, and what is refuted or not known.

    python scripts/verify_rules.py [PART OF A SOURCE | hand] [--seconds 20] [--mutants 2]

With --mutants N, N changed rules of each are proved instead; one that is proved and yet differs
numerically is a survivor, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from superopt.rules.rule import Rule, load_library
from superopt.rules.trial import Refuted as Differs
from superopt.rules.trial import try_rule
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
    args = parser.parse_args()
    begin = time.perf_counter()
    limits = Limits(seconds=args.seconds)
    if args.mutants:
        status = mutated(args.part, limits, args.mutants, args.seed)
    else:
        status = library(args.part, limits)
    print(f"{time.perf_counter() - begin:.1f} s")
    return status


if __name__ == "__main__":
    sys.exit(main())
