"""The instances of a trial: how many, and which."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from superopt.rules.instances import Instance, cramped, instances
from superopt.rules.rule import Rule, of_one_shape
from superopt.rules.syntax import Param

CRAMPED_TRIES = 30  # attempts for each wanted cramped instance
ELEMENTS = 1 << 17  # over all instances of a rule, by its literal sizes
FEWEST = 3


@dataclass(frozen=True, slots=True)
class Cases:
    """`count` plain instances of a rule; and cramped ones, with equal sizes or few shapes. A
    cramped instance gets one draw over the reals, and an exceptional one for E0."""

    wanted: int
    plain: Iterable[Instance]
    cramped: Iterable[Instance]


def cases(
    rule: Rule, seed: int, count: int, elements: int = ELEMENTS, fewest: int = FEWEST
) -> Cases:
    """Return the instances of a trial, generated on demand. Fewer than `count` if the literal sizes
    of the rule make each of them large."""
    least = 1 if of_one_shape(rule) else fewest
    count = min(count, max(least, elements // said(rule)))
    crowded = cramped(rule, seed, CRAMPED_TRIES * count)
    return Cases(count, islice(instances(rule, seed), count), islice(crowded, count))


def said(rule: Rule) -> int:
    """Return the least number of elements of an operand, by the rule's literal sizes."""
    return max((p.said for p in rule.params if isinstance(p, Param) and p.said), default=1)
