"""The instances of a trial: how many, and which."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from superopt.rules.lang.rule import Rule, has_one_shape
from superopt.rules.lang.syntax import Param
from superopt.rules.trial.cramped_instances import cramped_instances
from superopt.rules.trial.instances import Instance, instances

TRIES_PER_CRAMPED = 30  # attempts for each wanted cramped instance
MAX_ELEMENTS = 1 << 17  # over all instances of a rule, by its literal sizes
MIN_INSTANCES = 3


@dataclass(frozen=True, slots=True)
class Cases:
    """`count` plain instances of a rule; and cramped ones, with equal sizes or few shapes. A
    cramped instance gets one draw over the reals, and an exceptional one for E0."""

    count: int
    plain: Iterable[Instance]
    cramped: Iterable[Instance]


def cases(
    rule: Rule,
    seed: int,
    count: int,
    max_elements: int = MAX_ELEMENTS,
    min_count: int = MIN_INSTANCES,
) -> Cases:
    """Return the instances of a trial, generated on demand. Fewer than `count` if the literal sizes
    of the rule make each of them large."""
    least = 1 if has_one_shape(rule) else min_count
    count = min(count, max(least, max_elements // literal_elements(rule)))
    crowded = cramped_instances(rule, seed, TRIES_PER_CRAMPED * count)
    return Cases(count, islice(instances(rule, seed), count), islice(crowded, count))


def literal_elements(rule: Rule) -> int:
    """Return the least number of elements of an operand, by the rule's literal sizes."""
    return max(
        (p.literal_elements for p in rule.params if isinstance(p, Param) and p.literal_elements),
        default=1,
    )
