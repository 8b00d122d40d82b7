"""Compute the float class of each rule of the library from what its sides compute.

    python scripts/float_classes.py [PART OF A SOURCE] [--jobs 2]
    python scripts/float_classes.py --write [--new] [--jobs 2]

Prints the rules whose text says less than is so, with which the exit status is 1, and those whose
text says more (an author may know of an overflow that no class computes). With --write, the classes
go to rules/library/records.json, for reports; those of E2 with how much the error grows. With --new
only those are computed that are not in it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from superopt.rules.lang.rule import Rule
from superopt.rules.library.load import library_files, parse_file
from superopt.rules.library.records import library_records, proof_key, write_records
from superopt.rules.trial.float_class import error_growth, float_class

COUNT, SEEDS = 16, (0, 1)  # instances of each seed


@cache
def library() -> tuple[Rule, ...]:
    """The rules of the library in the classes that their texts say."""
    return tuple(rule for file in library_files() for rule in parse_file(file))


def judged(number: int) -> tuple[str | None, float | None]:
    """The class of a rule of the library; of E2, how much the error grows."""
    rule = library()[number]
    found = max((float_class(rule, seed, COUNT) or "" for seed in SEEDS), default="") or None
    grown = error_growth(rule) if found == "E2" else None
    return found, None if grown is None else float(f"{grown:.3g}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="?", default="")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--new", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    if args.write and args.part:
        parser.error("--write is of all rules")
    start = time.monotonic()
    every = library()
    keys = list(map(proof_key, every))
    known = library_records()
    classes = {k: known.float_class[k] for k in keys if args.new and k in known.float_class}
    growth = {k: known.error_growth[k] for k in classes if k in known.error_growth}
    of_part = [n for n, r in enumerate(every) if args.part in r.source]
    some = [n for n in of_part if keys[n] not in classes]
    count: Counter[str] = Counter()
    low = 0
    with ProcessPoolExecutor(args.jobs, get_context("spawn")) as pool:
        for n, found in zip(some, pool.map(judged, some, chunksize=8), strict=True):
            rule, (own, grown) = every[n], found
            count[own or "none"] += 1
            classes[keys[n]] = own
            if grown is not None:
                growth[keys[n]] = grown
            if own != rule.float_class:
                print(f"{rule.source} {rule.name} | says {rule.float_class}, computed {own}")
                low += own is None or own > rule.float_class
    seconds = time.monotonic() - start
    print(f"{dict(sorted(count.items()))} in {seconds:.0f} s; {low} say too little")
    if args.write:
        write_records(float_class=classes, error_growth=growth)
    return int(low > 0)


if __name__ == "__main__":
    sys.exit(main())
