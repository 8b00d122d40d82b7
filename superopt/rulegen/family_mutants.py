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
from superopt.compilation.cache.entries import package_content_digest
from superopt.cost.graph_cost import GraphCosts
from superopt.errors import UsageError
from superopt.generate.engine.journal import Journal
from superopt.generate.enumeration.partial_equality import PartialEquality, instance_positions
from superopt.generate.enumeration.serialize import enumerate_family, read_enumeration
from superopt.generate.families.family import Family
from superopt.onnx_io.export.atomic_files import atomic_files
from superopt.partial.correct.partial_rules import PartialRule, partial_rule_at
from superopt.partial.correct.symbolic_boxes import NoFormula, SymbolicBox, format_symbolic_box
from superopt.partial.regions.cells import TooManyCells
from superopt.report.data.mutation import MutantCount, Mutation
from superopt.report.data.report import Event
from superopt.rulegen.family_candidates import (
    MUTANT_FAMILIES,
    Candidate,
    FamilySizes,
    RejectedPair,
    cheapest_candidate,
    estimate_prices,
    estimated_costs,
    uncorrected_price_ratio,
)
from superopt.rulegen.family_journal import drop_unreadable_entries
from superopt.verifier.prove import Limits
from superopt.verifier.verdict import Proved

JOURNAL_FILE = "mutants.jsonl"
PROOF_LIMITS = Limits(seconds=10, work=3_000)  # all proved pairs take less
MAX_PROVED_PAIRS = (
    200  # pairs of a family that are proved: those that save most with their corrections
)
# Bytes of a level: all terms of four operators fit; of five, every n-th is tried.
MAX_LEVEL_BYTES = 400 << 20
INSTANCE_REASON = "instances of others"
Memoize = Callable[
    [str, Callable[[], Any]], Any
]  # returns the stored value of a key, or computes it


def generate_family_mutants(
    out: Path,
    families: Sequence[str],
    max_operators: int,
    seed: int,
    progress: Callable[[Event], None],
) -> Mutation:
    """Generate, and write NAME.pairs, NAME.corrected.rules and NAME.regions.json for each family.
    An interrupted run continues from the folder's journal."""
    for name in families:
        if name not in MUTANT_FAMILIES:
            raise UsageError(
                f"there is no family of mutants {name!r}",
                f"the families are {', '.join(MUTANT_FAMILIES)}",
                "name one of them, or omit it",
            )
    chosen = tuple(families) or tuple(MUTANT_FAMILIES)
    run = (
        f"mutants of {', '.join(chosen)}, {max_operators} operators, seed {seed},"
        f" superopt {__version__}, files {package_content_digest()}"
    )
    made = {name: _make_family(name, max_operators) for name in chosen}
    journal = drop_unreadable_entries(Journal.open(out / JOURNAL_FILE, run), made)
    try:
        some = [
            _generate_family(made[name], out, max_operators, seed, journal, progress)
            for name in chosen
        ]
    finally:
        journal.close()
    at = str(out / JOURNAL_FILE)
    return Mutation(tuple(some), str(out), journal=at, lost=len(journal.lost))


def _make_family(name: str, max_operators: int) -> Family:
    """Return a family of mutants that keeps the values of the last level."""
    family = MUTANT_FAMILIES[name].make_family()
    return replace(family, complete_ops=max(family.complete_ops, max_operators))


def _generate_family(
    family: Family,
    out: Path,
    max_operators: int,
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

    sizes = MUTANT_FAMILIES[name]
    progress(Event("mutants", f"{name}: enumeration", 0.0))
    every = read_enumeration(
        known("pairs", lambda: enumerate_family((family, max_operators, seed), MAX_LEVEL_BYTES))
    )
    found = every.partial
    costs = estimated_costs()

    @cache
    def made(n: int) -> Candidate:
        return cheapest_candidate(f"{name}-{n}", found[n], sizes, costs)

    lines, chosen = _choose_pairs(found, sizes, known, told, made)
    for done, n in enumerate(chosen):
        told("proof", done, len(chosen))
        key = f"{name} {n}"
        line = json.loads(journal.known.get(key, "null")) or _prove_candidate(
            partial(made, n), costs
        )
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
        dict(dropped.most_common()), time.monotonic() - begin, max_operators,
        fast, every.levels[-1].cut,
    )  # fmt: skip


def _compute(key: str, make: Callable[[], Any]) -> Any:
    return make()


def _ignore_progress(text: str, done: int, of: int) -> None:
    pass


def _choose_pairs(
    pairs: Sequence[PartialEquality],
    sizes: FamilySizes,
    memoize: Memoize = _compute,
    on_progress: Callable[[str, int, int], None] = _ignore_progress,
    make_candidate: Callable[[int], Candidate] | None = None,
) -> tuple[list[dict[str, Any]], list[int]]:
    """Return the pairs rejected before any proof, and the numbers of the others, those that save
    most with their corrections first. make_candidate: returns the candidate of a pair, by number,
    so that callers can share it."""
    costs = estimated_costs()
    make_candidate = make_candidate or (
        lambda n: cheapest_candidate("pair", pairs[n], sizes, costs)
    )
    of_others = instance_positions(pairs)
    dropped: list[dict[str, Any]] = [{"dropped": INSTANCE_REASON} for _ in of_others]

    def priced(what: str, price: Callable[[int], Any], some: Sequence[int]) -> list[int]:
        """Return those that have a price, cheapest first."""
        out: list[tuple[Any, int]] = []
        for done, n in enumerate(some):
            on_progress(what, done, len(some))
            made = memoize(f"{n} {what}", partial(_price_or_reason, price, n))
            if isinstance(made, str):
                dropped.append({"dropped": made})
            else:
                out.append((made, n))
        return [n for _, n in sorted(out)]

    own = [n for n in range(len(pairs)) if n not in of_others]
    some = priced("price", lambda n: uncorrected_price_ratio(pairs[n], sizes, costs), own)
    corrected = priced("corrected", lambda n: make_candidate(n).sort_key, some)
    dropped += [
        {"dropped": f"beyond the {MAX_PROVED_PAIRS:,} that save most"}
        for _ in corrected[MAX_PROVED_PAIRS:]
    ]
    return dropped, corrected[:MAX_PROVED_PAIRS]


def _price_or_reason(price: Callable[[int], Any], n: int) -> Any:
    """Return the price, or why there is none."""
    try:
        return price(n)
    except RejectedPair as e:
        return str(e)


def _prove_candidate(make: Callable[[], Candidate], costs: GraphCosts) -> dict[str, Any]:
    """Return the description of a pair as plain data, or why it is rejected."""
    try:
        found = make()
        made = partial_rule_at(found.pair, found.sized_pairs, PROOF_LIMITS)
    except RejectedPair as e:
        return {"dropped": str(e)}
    except NoFormula:
        return {"dropped": "no formula fits the sizes"}
    except TooManyCells:
        return {"dropped": "too many break points"}
    if not made.is_proved:
        return {"dropped": "not all boxes are proved"}
    return _candidate_data(made, found, costs)


def _candidate_data(
    partial_rule_data: PartialRule, candidate_found: Candidate, costs: GraphCosts
) -> dict[str, Any]:
    def told(parts: tuple[SymbolicBox, ...]) -> list[str]:
        return [format_symbolic_box(p) for p in parts]

    fixed = [c.rule for c in partial_rule_data.corrections if c.is_proved]
    us = [estimate_prices(r, candidate_found.sized_pairs[0].sizes, costs) for r in fixed]
    return {
        "pair": str(partial_rule_data.pair),
        "shape": list(partial_rule_data.parts.shape),
        "equal": told(partial_rule_data.parts.equal),
        "different": told(partial_rule_data.parts.different),
        "exact": all(r.is_exact for _, r in partial_rule_data.parts.sampled_regions),
        "proofs": [str(v) for _, v in partial_rule_data.claims if isinstance(v, Proved)],
        "corrected": [str(r) for r in fixed],
        "us": us,
        "saves": any(after < before for some in us for before, after in some),
    }
