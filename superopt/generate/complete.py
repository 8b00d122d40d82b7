"""Check whether a rule library derives all equalities of a family."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from superopt.generate.build import derived
from superopt.generate.claims import stated
from superopt.generate.find import Found
from superopt.generate.pairs import equal_pairs
from superopt.generate.pattern import Equation
from superopt.rules.lang.rule import Rule
from superopt.rules.match.derive import DeriveLimits
from superopt.rules.match.rule_index import RuleIndex

# The same on every machine. By congruence chains may be combined to longer ones.
BOUNDS = DeriveLimits(max_steps=6, max_growth=2, max_graphs=1000, max_seconds=float("inf"))


@dataclass(frozen=True, slots=True)
class Completeness:
    """The number of different equal pairs, and those that no chain of rules derives."""

    pairs: int
    missed: tuple[Equation, ...]


def completeness(
    found: Found,
    rules: Sequence[Rule],
    bounds: DeriveLimits = BOUNDS,
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
        if derived(stated(e, family), family, index, bounds) is None:
            missed.append(e)
        progress(n + 1, len(pairs))
    return Completeness(len(pairs), tuple(missed))
