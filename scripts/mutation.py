"""Mutants of the library's rules, put to the prover; see scripts/verify_rules.py --mutants.

Of each rule as many mutants as are wanted that differ numerically, as even over the kinds of
change as there are: each differs on an instance of a short trial, or the prover's own
counterexample says so; both are evaluations of the two sides. A mutant that is proved as a rule of
the library must be, and that differs on a longer trial than the first, is a survivor; unless it
only differs where a whole number is divided by 0, or quantized by a scale of 0, which has no value
(a proof says that it is about values where both sides are defined): such a mutant counts as one
that does not differ.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from multiprocessing import get_context
from random import Random

import numpy as np

from superopt.ir.graph import nodes
from superopt.rules.lang.rule import Rule
from superopt.rules.library.load import load_library
from superopt.rules.library.records import library_records, proof_key, write_records
from superopt.rules.trial.cases import Cases
from superopt.rules.trial.exact_quantization import uniform_number
from superopt.rules.trial.instances import Instance, instances
from superopt.rules.trial.try_rule import Refuted as Differs
from superopt.rules.trial.try_rule import (
    draw_feeds,
    draws_for,
    evaluate_sides,
    real_difference,
    try_on_instances,
    try_rule,
)
from superopt.te.eval.domain import Reals
from superopt.te.expr.dtype import F64
from superopt.verifier.prove import Limits, prove
from superopt.verifier.rounding.rule_steps import prove_within_steps
from superopt.verifier.verdict import Proved, Refuted
from tests.support.verifier.mutants import KINDS, by_kind

# A mutant is to be looked at, not to be proved: only a wrong proof matters.
LIMITS = Limits(seconds=20, work=4_000, work_beyond=4_000)
SHORT = 3  # instances of the trial before the proof
LONG = 12  # of the one after it
PATIENCE = 40
TRIES = 3  # mutants that are looked at, for each that is wanted
OUTCOMES = ("refuted", "not shown", "given up", "not read", "in part", "survivor")


@dataclass(frozen=True, slots=True)
class Tried:
    """A mutant: what was changed, what came of it (one of OUTCOMES, or `same` where no difference
    was seen, `alike` where it is proved besides, `by zero` where it only differs there), and its
    text where it is to be shown."""

    kind: str
    outcome: str
    shown: str = ""


def mutated(numbers: Sequence[int], jobs: int, each: int, seed: int) -> int:
    """Put `each` mutants of these rules of the library to the prover, print and write what came of
    it. 1 where one survived."""
    every = load_library()
    known = {proof_key(r) for r in every}
    found = {key: row for key, row in library_records().mutants.items() if key in known}
    count: Counter[tuple[str, str]] = Counter()
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        some = pool.map(partial(put, each=each, seed=seed), numbers, chunksize=4)
        for done, (n, tried) in enumerate(zip(numbers, some, strict=True), 1):
            if not done % 100:
                print(f"{done} of {len(numbers)} rules", file=sys.stderr, flush=True)
            count.update((t.kind, t.outcome) for t in tried)
            counted = [t for t in tried if t.outcome in OUTCOMES]
            refused = [t for t in counted if t.outcome != "survivor"]
            if counted:
                found[proof_key(every[n])] = [len(refused), len(counted)]
            for t in tried:
                if t.shown:
                    print(f"{t.outcome.upper()} {t.shown}", flush=True)
    write_records(mutants=found)
    print(table(count))
    return int(any(outcome == "survivor" for _, outcome in count))


def table(count: Counter[tuple[str, str]]) -> str:
    """How many mutants there are of each kind, and what came of them."""
    heads = ("changed", "differ", *OUTCOMES, "no difference seen", "of it proved", "by 0")
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for kind in (*KINDS, "all"):
        row = Counter({o: n for (k, o), n in count.items() if k == kind})
        if kind == "all":
            for (_, o), n in count.items():
                row[o] += n
        differ = sum(row[o] for o in OUTCOMES)
        alike = row["alike"] + row["by zero"]
        counts = (differ, *(row[o] for o in OUTCOMES), row["same"] + alike, alike, row["by zero"])
        cells = (kind, *counts)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def put(number: int, each: int, seed: int) -> list[Tried]:
    """What came of some mutants of a rule."""
    rule = load_library()[number]
    out: list[Tried] = []
    for kind, mutant in islice(mixed(rule, seed), TRIES * each):
        if sum(t.outcome in OUTCOMES for t in out) == each:
            break
        one = _put(kind, mutant, seed)
        if one is not None:
            out.append(one)
    return out


def mixed(rule: Rule, seed: int) -> Iterator[tuple[str, Rule]]:
    """The mutants of a rule, one of each kind after the other, else by chance."""
    rng = Random(f"{rule.name} {seed}")
    groups: dict[str, list[tuple[str, Rule]]] = {}
    for kind, mutant in by_kind(rule):
        groups.setdefault(kind, []).append((kind, mutant))
    kinds = list(groups)
    rng.shuffle(kinds)
    for group in groups.values():
        rng.shuffle(group)
    while kinds:
        for kind in list(kinds):
            yield groups[kind].pop()
            if not groups[kind]:
                kinds.remove(kind)


def _put(kind: str, mutant: Rule, seed: int) -> Tried | None:
    """None where no instance of it is found at once: its types do not fit."""
    try:
        some = list(islice(instances(mutant, seed, rounds=1, max_tries=PATIENCE), SHORT))
        trial = try_on_instances(mutant, Cases(0, some, ()), seed)
    except (ValueError, ArithmeticError, LookupError, AssertionError, MemoryError):
        return None  # a mutant may be no rule at all: an extent below 0
    if not some:
        return None
    differs = isinstance(trial, Differs)
    verdict = prove_within_steps(mutant, LIMITS) if mutant.steps else prove(mutant, LIMITS)
    if isinstance(verdict, Refuted):
        return Tried(kind, "refuted")
    if not isinstance(verdict, Proved):
        if not differs:
            return Tried(kind, "same")
        if verdict.reason.startswith("output"):
            return Tried(kind, "not shown")
        over = verdict.reason.endswith("cases")  # as `_over` says it
        return Tried(kind, "given up" if over else "not read")
    found = trial if differs else try_rule(mutant, seed=seed + 1, count=LONG)
    if not isinstance(found, Differs):
        return Tried(kind, "alike")
    if not _without_zeros(mutant, found.instance, seed):
        return Tried(kind, "by zero")
    shown = f"{mutant}\n    {verdict}\n    {found}"
    return Tried(kind, "survivor" if verdict.is_complete else "in part", shown)


def _without_zeros(mutant: Rule, one: Instance, seed: int) -> bool:
    """Do the sides differ on an instance where no whole number among the operands is 0, and no
    scale of a QuantizeLinear?"""
    made = [n for n in nodes((*one.lhs, *one.rhs)) if n.op.name == "QuantizeLinear"]
    if any(uniform_number(n.inputs[1]) == 0 for n in made):
        return False
    for draw in draws_for(mutant, one):
        feeds = draw_feeds(mutant, one, draw, seed)
        there = {n: np.where(x == 0, x.dtype.type(1), x) if x.dtype.kind in "iu" else x
                 for n, x in feeds.items()}  # fmt: skip
        if real_difference(mutant, one, draw, *evaluate_sides(one, there, Reals(F64))) is not None:
            return True
    return False
