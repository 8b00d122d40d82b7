"""`rules generate --partial`: enumerate programs and mutants, and their corrections.

A family is enumerated at small sizes. Each pair of terms that is equal in parts, and is not an
instance of another pair, is built again at larger sizes, from whose regions and attributes formulas
follow (`superopt.partial`), and is priced with its corrections (`family_candidates.py`). For pairs
that are not clearly more expensive than their program, the equality of boxes and the corrections,
which are rules, are proved. The folder's journal keeps rejected pairs; kept pairs are proved by the
run that writes them.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from superopt import __version__
from superopt.cost.model import Costs
from superopt.errors import UsageError
from superopt.generate.enumerated import enumerated, read
from superopt.generate.family import Family
from superopt.generate.journal import Journal
from superopt.generate.partial import Partial, instances
from superopt.onnx_io.export.atomic_files import atomic_files
from superopt.partial.correct.partial_rules import PartialRule, partial_rule_at
from superopt.partial.correct.symbolic_boxes import NoFormula, SymbolicBox, format_symbolic_box
from superopt.partial.regions.cells import TooManyCells
from superopt.pipeline.entries import own_contents
from superopt.pipeline.family_journal import readable
from superopt.pipeline.mutant_candidates import (
    FAMILIES,
    Candidate,
    Dropped,
    Sizes,
    alone,
    candidate,
    estimates,
    prices,
)
from superopt.report.data import Event
from superopt.report.mutation import MutantCount, Mutation
from superopt.verifier.prove import Limits
from superopt.verifier.verdict import Proved

JOURNAL = "mutants.jsonl"
LIMITS = Limits(seconds=10, work=3_000)  # all proved pairs take less
MOST = 200  # pairs of a family that are proved: those that save most with their corrections
# Bytes of a level: all terms of four operators fit; of five, every n-th is tried.
ROOM = 400 << 20
INSTANCE = "instances of others"
Known = Callable[[str, Callable[[], Any]], Any]  # returns the stored value of a key, or computes it


def mutants(
    out: Path, families: Sequence[str], most: int, seed: int, progress: Callable[[Event], None]
) -> Mutation:
    """Generate, and write NAME.pairs, NAME.corrected.rules and NAME.regions.json for each family.
    An interrupted run continues from the folder's journal."""
    for name in families:
        if name not in FAMILIES:
            raise UsageError(
                f"there is no family of mutants {name!r}",
                f"the families are {', '.join(FAMILIES)}",
                "name one of them, or omit it",
            )
    chosen = tuple(families) or tuple(FAMILIES)
    run = (
        f"mutants of {', '.join(chosen)}, {most} operators, seed {seed}, superopt {__version__},"
        f" files {own_contents()}"
    )
    made = {name: _made_for(name, most) for name in chosen}
    journal = readable(Journal.open(out / JOURNAL, run), made)
    try:
        some = [_family(made[name], out, most, seed, journal, progress) for name in chosen]
    finally:
        journal.close()
    at = str(out / JOURNAL)
    return Mutation(tuple(some), str(out), journal=at, lost=len(journal.lost))


def _made_for(name: str, most: int) -> Family:
    """Return a family of mutants that keeps the values of the last level."""
    family = FAMILIES[name].make()
    return replace(family, whole=max(family.whole, most))


def _family(
    family: Family,
    out: Path,
    most: int,
    seed: int,
    journal: Journal,
    progress: Callable[[Event], None],
) -> MutantCount:
    begin = time.monotonic()
    name = family.name

    def known(key: str, make: Callable[[], Any]) -> Any:
        key = f"{name} {key}"
        if key not in journal.known:
            journal.add(key, json.dumps(make()))
        return json.loads(journal.known[key])

    def told(text: str, done: int, of: int) -> None:
        progress(Event("mutants", f"{name}: {text} {done + 1} of {of}", done / of))

    sizes = FAMILIES[name]
    progress(Event("mutants", f"{name}: enumeration", 0.0))
    every = read(known("pairs", lambda: enumerated((family, most, seed), ROOM)))
    found = every.partial
    costs = estimates()

    @cache
    def made(n: int) -> Candidate:
        return candidate(f"{name}-{n}", found[n], sizes, costs)

    lines, chosen = _chosen(found, sizes, known, told, made)
    for done, n in enumerate(chosen):
        told("proof", done, len(chosen))
        key = f"{name} {n}"
        line = json.loads(journal.known.get(key, "null")) or _one(partial(made, n), costs)
        if "dropped" in line and key not in journal.known:
            journal.add(key, json.dumps(line))
        lines.append(line)
    kept = [line for line in lines if "dropped" not in line]
    pairs = {line["pair"]: line for line in kept}  # terms that are equal at the sizes count once
    fixed = [r for line in pairs.values() for r in line["corrected"]]
    with atomic_files() as create:
        for suffix, content in (
            ("pairs", "".join(f"{p}\n" for p in pairs)),
            ("corrected.rules", "".join(f"{r}\n" for r in fixed)),
            ("regions.json", json.dumps(list(pairs.values()), indent=1) + "\n"),
        ):
            create(out / f"{name}.{suffix}").file.write(content.encode())
    dropped = Counter(line["dropped"] for line in lines if "dropped" in line)
    same = len(kept) - len(pairs)
    fast = sum(line["corrected"] != [] and line["saves"] for line in pairs.values())
    dropped.update({"the same as another one": same} if same else {})
    return MutantCount(
        name, len(found), len(pairs), sum(bool(line["corrected"]) for line in pairs.values()),
        dict(dropped.most_common()), time.monotonic() - begin, most,
        fast, every.levels[-1].cut,
    )  # fmt: skip


def _made(key: str, make: Callable[[], Any]) -> Any:
    return make()


def _silent(text: str, done: int, of: int) -> None:
    pass


def _chosen(
    found: Sequence[Partial],
    sizes: Sizes,
    known: Known = _made,
    told: Callable[[str, int, int], None] = _silent,
    of: Callable[[int], Candidate] | None = None,
) -> tuple[list[dict[str, Any]], list[int]]:
    """Return the pairs rejected before any proof, and the numbers of the others, those that save
    most with their corrections first. make_candidate: returns the candidate of a pair, by number,
    so that callers can share it."""
    costs = estimates()
    of = of or (lambda n: candidate("pair", found[n], sizes, costs))
    of_others = instances(found)
    dropped: list[dict[str, Any]] = [{"dropped": INSTANCE} for _ in of_others]

    def priced(what: str, price: Callable[[int], Any], some: Sequence[int]) -> list[int]:
        """Return those that have a price, cheapest first."""
        out: list[tuple[Any, int]] = []
        for done, n in enumerate(some):
            told(what, done, len(some))
            made = known(f"{n} {what}", partial(_price, price, n))
            if isinstance(made, str):
                dropped.append({"dropped": made})
            else:
                out.append((made, n))
        return [n for _, n in sorted(out)]

    own = [n for n in range(len(found)) if n not in of_others]
    some = priced("price", lambda n: alone(found[n], sizes, costs), own)
    corrected = priced("corrected", lambda n: of(n).order, some)
    dropped += [{"dropped": f"beyond the {MOST:,} that save most"} for _ in corrected[MOST:]]
    return dropped, corrected[:MOST]


def _price(price: Callable[[int], Any], n: int) -> Any:
    """Return the price, or why there is none."""
    try:
        return price(n)
    except Dropped as e:
        return str(e)


def _one(make: Callable[[], Candidate], costs: Costs) -> dict[str, Any]:
    """Return the description of a pair as plain data, or why it is rejected."""
    try:
        found = make()
        made = partial_rule_at(found.pair, found.some, LIMITS)
    except Dropped as e:
        return {"dropped": str(e)}
    except NoFormula:
        return {"dropped": "no formula of the sizes"}
    except TooManyCells:
        return {"dropped": "too many break points"}
    if not made.is_proved:
        return {"dropped": "not all boxes are proved"}
    return _plain(made, found, costs)


def _plain(made: PartialRule, found: Candidate, costs: Costs) -> dict[str, Any]:
    def told(parts: tuple[SymbolicBox, ...]) -> list[str]:
        return [format_symbolic_box(p) for p in parts]

    fixed = [c.rule for c in made.corrections if c.is_proved]
    us = [prices(r, found.some[0].sizes, costs) for r in fixed]
    return {
        "pair": str(made.pair),
        "shape": list(made.parts.shape),
        "equal": told(made.parts.equal),
        "different": told(made.parts.different),
        "exact": all(r.is_exact for _, r in made.parts.sampled_regions),
        "proofs": [str(v) for _, v in made.claims if isinstance(v, Proved)],
        "corrected": [str(r) for r in fixed],
        "us": us,
        "saves": any(after < before for some in us for before, after in some),
    }
