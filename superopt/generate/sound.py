"""The trial of a rule, on more shapes than one looks at by chance; and does it do anything?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice

from superopt.ir import graph as g
from superopt.rules.build import Refusal, rewrite
from superopt.rules.context import context
from superopt.rules.instances import SPATIAL, Instance, cramped, instances, neighbours
from superopt.rules.match import matches
from superopt.rules.rule import Rule, parse_rules
from superopt.rules.term import App, walk
from superopt.rules.trial import Cases, Verdict, try_on

PATIENCE = 60  # attempts at an instance in one style


@dataclass(frozen=True, slots=True)
class Effort:
    """Shape assignments; more of them, for one draw each; neighbours of each of the first; cramped
    instances, and attempts at them."""

    count: int
    more: int
    near: int
    cramped: int
    tries: int


# An image has its rank, and is slowly convolved; what else there is may be broadcast in many ways.
OF_IMAGES = Effort(20, 10, 4, 40, 600)
OTHERWISE = Effort(20, 20, 3, 100, 1000)


def settled(rule: Rule, classes: Sequence[str], seed: int) -> Rule | None:
    """The rule in the first of these float classes in which it holds; None where it holds in none,
    on shapes of this seed, on their neighbours and on cramped ones."""
    images = any(isinstance(t, App) and t.op.name in SPATIAL for s in rule.lhs for t in walk(s))
    effort = OF_IMAGES if images else OTHERWISE
    every = instances(rule, seed, patience=PATIENCE)
    some = list(islice(every, effort.count))
    rest: list[Instance] = []
    for c in classes:
        tried = _as(rule, c)
        if not try_on(tried, Cases(effort.count, some, ()), seed):
            continue
        if not rest:
            near = (
                islice(neighbours(rule, one, seed + k), effort.near) for k, one in enumerate(some)
            )
            crowded = islice(cramped(rule, seed, effort.tries), effort.cramped)
            rest += chain(islice(every, effort.more), crowded, chain.from_iterable(near))
        if try_on(tried, Cases(0, (), rest), seed):
            return tried
    return None


def verdict(rule: Rule, seed: int) -> Verdict:
    """What another trial says: on twenty drawn assignments, six neighbours of each, and on cramped
    ones, all of a seed that may be of no run."""
    some = list(islice(instances(rule, seed), COUNT))
    near = (n for one in some for n in islice(neighbours(rule, one, seed), 6))
    crowded = islice(cramped(rule, seed, 60 * COUNT), COUNT)
    return try_on(rule, Cases(COUNT, some, [*near, *crowded]), seed)


COUNT = 20


def _as(rule: Rule, float_class: str) -> Rule:
    """The rule as one of this class."""
    text = str(rule).replace(f"; float={rule.float_class} ;", f"; float={float_class} ;")
    (made,) = parse_rules(text)
    return made


def fires(rule: Rule, one: Instance) -> bool:
    """Does the matcher find an instance's left side, and make its right side of it? A Concat in a
    Concat is one already."""
    ctx = context(g.Graph(one.inputs, one.lhs))
    wanted = list(zip(one.lhs, one.rhs, strict=True))
    changes = (rewrite(m, ctx) for m in matches(rule, ctx))
    return any(not isinstance(c, Refusal) and list(c.items()) == wanted for c in changes)
