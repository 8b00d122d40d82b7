"""Balanced rules: wherever the left side has a type, the right side has the same type.

An axiom must be balanced (VERIFICATION.md: axioms without shapes are unsound): then a chain of
axioms begins and ends with the same type, and every term of the chain has it. A rule need not be
balanced: it is applied only where the types agree.
"""

from __future__ import annotations

from dataclasses import replace

from superopt.rules.functions import NotKnown
from superopt.rules.rule import Rule
from superopt.verifier.attributes import Unsupported
from superopt.verifier.choices import NUMBERS, Ranks
from superopt.verifier.facts import OutOfTime, start
from superopt.verifier.instance import attempted, instances
from superopt.verifier.scope import scope_of
from superopt.verifier.sizes import Fork, Misfit

DEEPEST = 3  # higher ranks add nothing about broadcasting
MOST = 2000  # instances checked


def unbalanced(rule: Rule, seconds: float = 30.0) -> str:
    """Return why the right side may have no type, or another type, where the left side has one; ""
    if the rule is balanced.

    Every instance of the left side alone is an instance of the whole rule that leaves no decision
    about sizes. An undecided case counts as unbalanced.
    """
    widest = scope_of(rule)
    low = Ranks(widest.least, min(widest.most, DEEPEST))
    found = _unbalanced(rule, low, seconds)
    if found == NONE and widest.most > low.most:
        found = _unbalanced(rule, widest, seconds)
    return found


NONE = "no instance"


def _unbalanced(rule: Rule, ranks: Ranks, seconds: float) -> str:
    alone = replace(rule, rhs=rule.lhs)
    start(seconds, 1e9)
    count = 0
    try:
        for one in instances(alone, ranks, NUMBERS[:1], every=True):
            count += 1
            if count > MOST:
                return f"more than {MOST} ways for the left side to fit"
            try:
                whole = attempted(rule, one.state, ranks, NUMBERS[:1])
            except Fork:
                return f"the right side asks for more than the left, for {one}"
            except (Misfit, NotKnown):
                return f"the right side does not fit, for {one}"
            if len(whole.state.derived) > len(one.state.derived):
                return f"the right side needs {whole.state.derived[-1]}, for {one}"
    except OutOfTime:
        return f"not known: time is over after {count} ways to fit"
    except (Unsupported, NotKnown) as e:
        return f"not known: {e}"
    return "" if count else NONE
