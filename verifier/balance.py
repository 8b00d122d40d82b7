"""Is a rule balanced: wherever its left side has a type, has its right side the same one?

An axiom has to be (VERIFICATION.md: axioms without shapes are unsound): then a chain of axioms
begins and ends with the same type, and every term on the way has it. A rule need not be: it is
applied only where the types agree.
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

DEEPEST = 3  # ranks above say nothing new of broadcasting
MOST = 2000  # instances that are looked at


def unbalanced(rule: Rule, seconds: float = 30.0) -> str:
    """Why the right side may have no type, or another, where the left one has one; "" if it has
    the same wherever that has one.

    Every instance of the left side alone is one of the whole rule, and nothing about sizes is left
    to decide. What is not known counts as unbalanced.
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
