"""`rules generate --partial`: programs and mutants found by enumeration, with what corrects them.

A family is enumerated at small sizes. Each pair of terms that is equal in parts, and no instance of
another one, is generalised, corrected and priced (`mutant_candidates.py`). Those that save
something go to the prover, those of the fewest operators first, since they may be what others
follow from: a corrected mutant is a rule, and where it is proved its boxes are, too.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from superopt import __version__
from superopt.cost.model import Costs
from superopt.errors import UsageError
from superopt.generate.enumerated import enumerated, read
from superopt.generate.journal import Journal
from superopt.generate.partial import Partial, instances
from superopt.generate.pattern import size
from superopt.onnx_io.atomic import new_files
from superopt.partial import claims
from superopt.partial.symbolic import Part, show
from superopt.pipeline.mutant_candidates import (
    FAMILIES,
    Candidate,
    Dropped,
    Sizes,
    candidate,
    estimates,
    otherwise,
)
from superopt.report.data import Event, MutantCount, Mutation
from superopt.rules.rule import Rule, load_library, parse_rules
from superopt.rules.stated import tier
from superopt.search.book import Book, book
from superopt.verifier.prove import Limits, prove
from superopt.verifier.verdict import Proved

JOURNAL = "mutants.jsonl"
LIMITS = Limits(seconds=10, work=3_000)  # what is proved takes less
INSTANCE = "instances of others"
OTHERS = "no cheaper than what other rules make of the program"
UNPROVED = "the correction is not proved"


def mutants(
    out: Path, families: Sequence[str], most: int, seed: int, progress: Callable[[Event], None]
) -> Mutation:
    """Generate, and write NAME.pairs, NAME.corrected.rules and NAME.regions.json for each family.
    What was done before a kill is taken from the folder's journal."""
    for name in families:
        if name not in FAMILIES:
            raise UsageError(
                f"there is no family of mutants {name!r}",
                f"there are {', '.join(FAMILIES)}",
                "name one of them, or leave it out",
            )
    chosen = tuple(families) or tuple(FAMILIES)
    run = f"mutants of {', '.join(chosen)}, {most} operators, seed {seed}, superopt {__version__}"
    journal = Journal.open(out / JOURNAL, run)
    try:
        rules = [r for r in load_library() if tier(r) == "A"]
        some = [_family(name, out, most, seed, rules, journal, progress) for name in chosen]
    finally:
        journal.close()
    return Mutation(tuple(some), str(out))


def _family(
    name: str,
    out: Path,
    most: int,
    seed: int,
    rules: list[Rule],
    journal: Journal,
    progress: Callable[[Event], None],
) -> MutantCount:
    """rules: what is known, to which those of the family are added."""
    begin = time.monotonic()
    sizes, costs = FAMILIES[name], estimates()

    progress(Event("mutants", f"{name}: enumeration", 0.0))
    if name not in journal.known:
        journal.add(name, enumerated((sizes.make(), most, seed)))
    found = read(journal.known[name]).partial
    of_others = instances(found)
    dropped = Counter({INSTANCE: len(of_others)})
    priced: list[tuple[int, float, int]] = []  # operators, of the program's price, place
    own = [n for n in range(len(found)) if n not in of_others]
    for done, n in enumerate(own):
        progress(Event("mutants", f"{name}: {done + 1} of {len(own)} pairs", done / len(own)))
        key = f"{name} {n}"
        if key not in journal.known:
            journal.add(key, json.dumps(_priced(found[n], sizes, costs)))
        told = json.loads(journal.known[key])
        if isinstance(told, str):
            dropped[told] += 1
        else:
            priced.append((size(found[n].sides.left), told, n))
    kept: list[dict[str, Any]] = []
    known = book(rules)
    for done, (_, _, n) in enumerate(sorted(priced)):
        at = f"{name}: proof {done + 1} of {len(priced)}"
        progress(Event("mutants", at, done / len(priced)))
        key = f"{name} {n} proof"
        if key not in journal.known:
            one = candidate(f"{name}-{n}", found[n], sizes, costs)
            journal.add(key, json.dumps(_proved(one, known, costs)))
        told = json.loads(journal.known[key])
        if isinstance(told, str):
            dropped[told] += 1
        else:
            kept.append(told)
            rules += parse_rules(told["corrected"])
            known = book(rules)
    with new_files() as create:
        for suffix, content in (
            ("pairs", "".join(f"{x['pair']}\n" for x in kept)),
            ("corrected.rules", "".join(f"{x['corrected']}\n" for x in kept)),
            ("regions.json", json.dumps(kept, indent=1) + "\n"),
        ):
            create(out / f"{name}.{suffix}").file.write(content.encode())
    seconds = time.monotonic() - begin
    return MutantCount(
        name, len(found), len(kept), len(kept), dict(dropped.most_common()), seconds, most
    )


def _priced(p: Partial, sizes: Sizes, costs: Costs) -> float | str:
    """What a corrected mutant costs, of its program's price; or why it is dropped."""
    try:
        return candidate("pair", p, sizes, costs).ratio
    except Dropped as e:
        return str(e)


def _proved(c: Candidate, known: Book, costs: Costs) -> dict[str, Any] | str:
    """What is said of a pair, as plain data; or why it is dropped."""
    if otherwise(c, known, costs):
        return OTHERS
    verdict = prove(c.rule, LIMITS)
    boxes = claims.claims(c.pair, c.found) if c.how == "widened" else []  # of another mutant
    every = [verdict, *(prove(b, LIMITS) for b in boxes if isinstance(verdict, Proved))]
    if not all(isinstance(v, Proved) for v in every):
        return UNPROVED

    def told(parts: tuple[Part, ...]) -> list[str]:
        return [show(p) for p in parts]

    return {
        "pair": str(c.pair),
        "shape": list(c.found.shape),
        "equal": told(c.found.equal),
        "different": told(c.found.different),
        "how": c.how,
        "corrected": str(c.rule),
        "proofs": [str(v) for v in every],
        "us": c.us,
    }
