"""Rules that follow from the other rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import TypeVar

from superopt.ir import graph as g
from superopt.rules.derive import Bounds, Derived, derive
from superopt.rules.index import Index
from superopt.rules.instances import instances
from superopt.rules.rule import Rule, parse_rules

T = TypeVar("T")
R = TypeVar("R")

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


Each = Callable[[Callable[[T], R], Sequence[T]], Iterable[R]]


def minimal(
    rules: Sequence[Rule], seed: int, each: Each[tuple[tuple[str, ...], int, int], bool] = map
) -> tuple[list[Rule], list[Follows]]:
    """The rules that do not follow from the rest, the last ones tried first; and those that do,
    each from what was left then. each: maps a function, may be in several processes.

    What does not follow from all the others does not follow from fewer.
    """
    texts = tuple(map(str, rules))
    doubtful = list(each(_redundant, [(texts, n, seed) for n in range(len(rules))]))
    left = list(rules)
    gone: list[Follows] = []
    for n in reversed(range(len(rules))):
        if not doubtful[n]:
            continue
        others = [r for r in left if r is not rules[n]]
        found = follows(rules[n], others, seed)
        if found is not None:
            left = others
            gone.append(found)
    return left, gone


def _redundant(what: tuple[tuple[str, ...], int, int]) -> bool:
    """Does the rule of this number follow from all the others? Rules travel as texts."""
    texts, n, seed = what
    rules = _parsed(texts)
    return follows(rules[n], [*rules[:n], *rules[n + 1 :]], seed) is not None


@lru_cache(maxsize=1)
def _parsed(texts: tuple[str, ...]) -> tuple[Rule, ...]:
    return tuple(r for text in texts for r in parse_rules(text))
