"""Check whether a rule library derives all equalities of a family."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from superopt.generate.enumeration.equal_pairs import equal_pairs
from superopt.generate.enumeration.find_equations import FoundEquations
from superopt.generate.enumeration.pattern import Equation
from superopt.generate.generalize.candidates import as_candidate
from superopt.generate.generalize.term_graphs import derive_candidate
from superopt.rules.lang.rule import Rule
from superopt.rules.match.derive import DeriveLimits
from superopt.rules.match.rule_index import RuleIndex

# The same on every machine. By congruence chains may be combined to longer ones.
DERIVE_LIMITS = DeriveLimits(max_steps=6, max_growth=2, max_graphs=1000, max_seconds=float("inf"))


@dataclass(frozen=True, slots=True)
class Completeness:
    """The number of different equal pairs, and those that no chain of rules derives."""

    pairs: int
    underived: tuple[Equation, ...]


def check_completeness(
    found: FoundEquations,
    rules: Sequence[Rule],
    limits: DeriveLimits = DERIVE_LIMITS,
    pairs: Sequence[Equation] | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Completeness:
    """Derive each equal pair of a bank from `rules`, at the family's shapes. pairs: to use
    instead."""
    family = found.bank.family
    index = RuleIndex(rules)
    pairs = equal_pairs(found) if pairs is None else pairs
    missed: list[Equation] = []
    for n, e in enumerate(pairs):
        if derive_candidate(as_candidate(e, family), family, index, limits) is None:
            missed.append(e)
        progress(n + 1, len(pairs))
    return Completeness(len(pairs), tuple(missed))
