"""Balanced rules: wherever the left side has a type, the right side has the same type.

An axiom must be balanced (VERIFICATION.md: axioms without shapes are unsound): then a chain of
axioms begins and ends with the same type, and every term of the chain has it. A rule need not be
balanced: it is applied only where the types agree.
"""

from __future__ import annotations

from dataclasses import replace

from superopt.rules.lang.functions import NotKnown
from superopt.rules.lang.rule import Rule
from superopt.verifier.context import OutOfTime, ProofContext
from superopt.verifier.instances.attributes import Unsupported
from superopt.verifier.instances.choices import NUMBER_TYPES, Ranks
from superopt.verifier.instances.instance import instance_of_state, instances
from superopt.verifier.instances.scope import rank_scope
from superopt.verifier.instances.sizes import Fork, RejectedChoice

FIRST_MAX_RANK = 3  # higher ranks add nothing about broadcasting
MAX_INSTANCES = 2000  # instances checked


def imbalance_reason(rule: Rule, seconds: float = 30.0) -> str:
    """Return why the right side may have no type, or another type, where the left side has one; ""
    if the rule is balanced.

    Every instance of the left side alone is an instance of the whole rule that leaves no decision
    about sizes. An undecided case counts as unbalanced.
    """
    widest = rank_scope(rule)
    low = Ranks(widest.min_rank, min(widest.max_rank, FIRST_MAX_RANK))
    found = _imbalance_reason(rule, low, seconds)
    if found == NO_INSTANCE and widest.max_rank > low.max_rank:
        found = _imbalance_reason(rule, widest, seconds)
    return found


NO_INSTANCE = "no instance"


def _imbalance_reason(rule: Rule, ranks: Ranks, seconds: float) -> str:
    alone = replace(rule, rhs=rule.lhs)
    context = ProofContext.with_limits(seconds, 1e9)
    count = 0
    try:
        for one in instances(context, alone, ranks, NUMBER_TYPES[:1], include_covered=True):
            count += 1
            if count > MAX_INSTANCES:
                return f"more than {MAX_INSTANCES} ways for the left side to fit"
            try:
                whole = instance_of_state(context, rule, one.state, ranks, NUMBER_TYPES[:1])
            except Fork:
                return f"the right side asks for more than the left, for {one}"
            except (RejectedChoice, NotKnown):
                return f"the right side does not fit, for {one}"
            if len(whole.state.derived) > len(one.state.derived):
                return f"the right side needs {whole.state.derived[-1]}, for {one}"
    except OutOfTime:
        return f"not known: time is over after {count} ways to fit"
    except (Unsupported, NotKnown) as e:
        return f"not known: {e}"
    return "" if count else NO_INSTANCE
