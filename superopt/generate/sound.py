"""A rule's last trial, on shapes that did not choose its reading; and does it do anything?"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, islice

from superopt.ir import graph as g
from superopt.rules.build import Refusal, rewrite
from superopt.rules.context import context
from superopt.rules.instances import SPATIAL, Instance, cramped, instances, neighbours
from superopt.rules.match import matches
from superopt.rules.rule import Rule, parse_rules
from superopt.rules.term import App, walk
from superopt.rules.trial import Cases, Passed, try_on

PATIENCE = 60  # attempts at an instance in one style


@dataclass(frozen=True, slots=True)
class Effort:
    """Shape assignments; neighbours of each; cramped instances, and attempts at them."""

    count: int
    near: int
    cramped: int
    tries: int


# An image has its rank, and is slowly convolved; what else there is may be broadcast in many ways.
OF_IMAGES = Effort(20, 2, 30, 400)
OTHERWISE = Effort(30, 4, 120, 1200)
CLASSES = ("E0", "E1", "E2", "E3")


def settled(rule: Rule, seed: int) -> Rule | None:
    """The rule in the lowest float class, from its own on, in which it holds on shapes of this
    seed, on their neighbours and on cramped ones; None where it holds in none."""
    images = any(isinstance(t, App) and t.op.name in SPATIAL for s in rule.lhs for t in walk(s))
    effort = OF_IMAGES if images else OTHERWISE
    some = list(islice(instances(rule, seed, patience=PATIENCE), effort.count))
    near = (islice(neighbours(rule, one, seed + k), effort.near) for k, one in enumerate(some))
    crowded = islice(cramped(rule, seed, effort.tries), effort.cramped)
    every = Cases(effort.count, some, [*crowded, *chain.from_iterable(near)])
    for c in CLASSES[CLASSES.index(rule.float_class) :]:
        (tried,) = parse_rules(str(rule).replace(f"; float={rule.float_class} ;", f"; float={c} ;"))
        if isinstance(try_on(tried, every, seed), Passed):
            return tried
    return None


def fires(rule: Rule, one: Instance) -> bool:
    """Does the matcher find an instance's left side, and make its right side of it? A Concat in a
    Concat is one already."""
    ctx = context(g.Graph(one.inputs, one.lhs))
    wanted = list(zip(one.lhs, one.rhs, strict=True))
    changes = (rewrite(m, ctx) for m in matches(rule, ctx))
    return any(not isinstance(c, Refusal) and list(c.items()) == wanted for c in changes)
