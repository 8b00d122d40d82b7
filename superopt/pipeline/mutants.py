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
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from superopt import __version__
from superopt.cost.model import Costs
from superopt.errors import UsageError
from superopt.generate.enumerated import enumerated, read
from superopt.generate.journal import Journal
from superopt.generate.partial import Partial, instances
from superopt.onnx_io.atomic import new_files
from superopt.partial import claims
from superopt.partial.symbolic import Part, show
from superopt.pipeline.mutant_candidates import (
    FAMILIES,
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
Told = dict[str, Any] | list[float] | str  # what is said of a pair; its price; why it is dropped


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
        one = _Run(journal, rules, estimates(), progress)
        some = [_family(name, out, most, seed, one) for name in chosen]
    finally:
        journal.close()
    return Mutation(tuple(some), str(out))


@dataclass(slots=True)
class _Run:
    """What a run has found. rules: that are known, those of families that are done among them."""

    journal: Journal
    rules: list[Rule]
    costs: Costs
    progress: Callable[[Event], None]

    def kept(self, key: str, make: Callable[[], Told]) -> Told:
        """What the journal has, or what is made now and kept there."""
        if key not in self.journal.known:
            self.journal.add(key, json.dumps(make()))
        told: Told = json.loads(self.journal.known[key])
        return told


def _family(name: str, out: Path, most: int, seed: int, run: _Run) -> MutantCount:
    begin = time.monotonic()
    run.progress(Event("mutants", f"{name}: enumeration", 0.0))
    if name not in run.journal.known:
        run.journal.add(name, enumerated((FAMILIES[name].make(), most, seed)))
    found = read(run.journal.known[name]).partial
    dropped: Counter[str] = Counter()
    kept = _proofs(name, found, _worth(name, found, run, dropped), run, dropped)
    with new_files() as create:
        for suffix, content in (
            ("pairs", "".join(f"{x['pair']}\n" for x in kept)),
            ("corrected.rules", "".join(f"{x['corrected']}\n" for x in kept)),
            ("regions.json", json.dumps(kept, indent=1) + "\n"),
        ):
            create(out / f"{name}.{suffix}").file.write(content.encode())
    why = {k: n for k, n in dropped.most_common() if n}
    return MutantCount(name, len(found), len(kept), len(kept), why, time.monotonic() - begin, most)


def _worth(name: str, found: Sequence[Partial], run: _Run, dropped: Counter[str]) -> list[int]:
    """The places of pairs that are worth a proof: of the fewest operators first, then those that
    save most."""
    of_others = instances(found)
    dropped[INSTANCE] = len(of_others)
    own = [n for n in range(len(found)) if n not in of_others]
    out: list[list[float]] = []
    for done, n in enumerate(own):
        text = f"{name}: {done + 1} of {len(own)} pairs priced"
        run.progress(Event("mutants", text, done / len(own)))
        told = run.kept(f"{name} {n}", partial(_priced, found[n], FAMILIES[name], run.costs))
        if isinstance(told, list):
            out.append([*told, n])
        else:
            dropped[str(told)] += 1
    return [int(n) for _, _, n in sorted(out)]


def _proofs(
    name: str, found: Sequence[Partial], some: Sequence[int], run: _Run, dropped: Counter[str]
) -> list[dict[str, Any]]:
    """What is said of those that are proved, and that known rules do not do as well."""
    kept: list[dict[str, Any]] = []
    known = book(run.rules)
    for done, n in enumerate(some):
        text = f"{name}: proof {done + 1} of {len(some)}"
        run.progress(Event("mutants", text, done / len(some)))
        told = run.kept(
            f"{name} {n} proof", partial(_proved, f"{name}-{n}", found[n], known, run.costs)
        )
        if isinstance(told, dict):
            kept.append(told)
            run.rules += parse_rules(told["corrected"])
            known = book(run.rules)
        else:
            dropped[str(told)] += 1
    return kept


def _priced(p: Partial, sizes: Sizes, costs: Costs) -> list[float] | str:
    """How many operators the program has, and what its corrected mutant costs, of its price; or why
    the pair is dropped."""
    try:
        found = candidate("pair", p, sizes, costs)
        return [found.operators, found.ratio]
    except Dropped as e:
        return str(e)


def _proved(name: str, p: Partial, known: Book, costs: Costs) -> dict[str, Any] | str:
    """What is said of a pair, as plain data; or why it is dropped."""
    c = candidate(name, p, FAMILIES[name.rpartition("-")[0]], costs)
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
