"""A rule's last trial, on shapes that did not choose its reading; and does it do anything?"""

from __future__ import annotations

from itertools import islice

from superopt.ir import graph as g
from superopt.rules.build import Refusal, rewrite
from superopt.rules.context import context
from superopt.rules.instances import Instance, cramped, instances, neighbours
from superopt.rules.match import matches
from superopt.rules.rule import Rule, parse_rules
from superopt.rules.trial import Cases, Passed, try_on

COUNT = 20  # shape assignments
NEAR = 4  # neighbours of each
PATIENCE = 60  # attempts at one
CLASSES = ("E0", "E1", "E2", "E3")


def settled(rule: Rule, seed: int) -> Rule | None:
    """The rule in the lowest float class, from its own on, in which it holds on shapes of this
    seed, on their neighbours and on cramped ones; None where it holds in none."""
    some = list(islice(instances(rule, seed, patience=PATIENCE), COUNT))
    near = [n for k, one in enumerate(some) for n in islice(neighbours(rule, one, seed + k), NEAR)]
    crowded = list(islice(cramped(rule, seed, 30 * COUNT), COUNT))
    every = Cases(COUNT, some, [*near, *crowded])
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
