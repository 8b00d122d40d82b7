"""What a rule is tried on: how many instances, and which."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from superopt.rules.instances import Instance, cramped, instances
from superopt.rules.rule import Rule, of_one_shape
from superopt.rules.syntax import Param

CRAMPED_TRIES = 30  # attempts at a cramped instance for each that is wanted
ELEMENTS = 1 << 17  # of all instances of a rule, by what its own numbers ask for
FEWEST = 3


@dataclass(frozen=True, slots=True)
class Cases:
    """Instances of a rule: `wanted` of them; and some in which all sizes are alike, or others that
    are about shapes, on which one draw over the reals will do, and an exceptional one for E0."""

    wanted: int
    plain: Iterable[Instance]
    cramped: Iterable[Instance]


def cases(
    rule: Rule, seed: int, count: int, elements: int = ELEMENTS, fewest: int = FEWEST
) -> Cases:
    """What a rule is tried on; found as they are asked for. Fewer than `count` where its own
    numbers make each of them large."""
    least = 1 if of_one_shape(rule) else fewest
    count = min(count, max(least, elements // said(rule)))
    crowded = cramped(rule, seed, CRAMPED_TRIES * count)
    return Cases(count, islice(instances(rule, seed), count), islice(crowded, count))


def said(rule: Rule) -> int:
    """Elements that an operand of a rule has at least, by the rule's own numbers."""
    return max((p.said for p in rule.params if isinstance(p, Param) and p.said), default=1)
