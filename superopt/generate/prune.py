"""Rules that follow from the other rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from superopt.ir import graph as g
from superopt.rules.derive import Bounds, Derived, derive
from superopt.rules.index import Index
from superopt.rules.instances import instances
from superopt.rules.rule import Rule

INSTANCES = 3  # on which a rule must follow
# The same on every machine; forward, since a search could not go the other way.
BOUNDS = Bounds(steps=4, grow=2, graphs=600, seconds=float("inf"), forward=True)


@dataclass(frozen=True, slots=True)
class Follows:
    """A rule that went away, and the rules of the chain that stands for it."""

    rule: Rule
    chain: tuple[str, ...]


def follows(
    rule: Rule, others: Sequence[Rule], seed: int, bounds: Bounds = BOUNDS
) -> Follows | None:
    """The chain of `others` that does what `rule` does, on instances of unequal shapes; None where
    there is none within `bounds`."""
    index = Index(others)
    chain: tuple[str, ...] = ()
    some = list(islice(instances(rule, seed), INSTANCES))
    for one in some:
        left, right = g.Graph(one.inputs, one.lhs), g.Graph(one.inputs, one.rhs)
        found = derive(left, right, index, bounds)
        if not isinstance(found, Derived):
            return None
        chain = chain or tuple(link.rule for link in (*found.forth, *reversed(found.back)))
    return Follows(rule, chain) if some else None


def minimal(
    rules: Sequence[Rule], seed: int, progress: Callable[[int], None] = lambda left: None
) -> tuple[list[Rule], list[Follows]]:
    """The rules that do not follow from the rest, the last ones tried first; and those that do,
    each from what was left then."""
    left = list(rules)
    gone: list[Follows] = []
    for n, rule in enumerate(reversed(rules)):
        others = [r for r in left if r is not rule]
        found = follows(rule, others, seed)
        if found is not None:
            left = others
            gone.append(found)
        progress(len(rules) - n - 1)
    return left, gone
