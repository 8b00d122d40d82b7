"""Rules between quantized results, without their rounding."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from itertools import chain

from superopt.ir.op import Op
from superopt.ir.syntax import MalformedText
from superopt.ops import OPS
from superopt.rules.lang.printer import show
from superopt.rules.lang.rule import Rule
from superopt.rules.lang.syntax import Param
from superopt.rules.lang.term import (
    App,
    Call,
    Compare,
    Formula,
    Lit,
    Name,
    Term,
    free_names,
    walk,
)


def without_rounding(rule: Rule) -> Rule:
    """Return the rule between results in steps that are not rounded yet:

    QuantizeLinear(x, s, z) => QuantizeLinear(y, t, z)        Div(x, s) => Div(y, t)

    Raises MalformedText if a side is no such quantization, or if the zero points or types differ.
    """
    left, right = ([_match_quantization(t, rule) for t in side] for side in (rule.lhs, rule.rhs))
    zeros = [[t.operands[2:] or t.attrs for t in side] for side in (left, right)]
    if zeros[0] != zeros[1]:
        raise MalformedText(f"{rule.name}: both sides of a rule with steps= have one zero point")
    lhs, rhs = (tuple(App(OPS["Div"], t.operands[:2], ()) for t in side) for side in (left, right))
    used = frozenset[str]().union(*map(free_names, (*lhs, *rhs, *rule.where)))
    params = tuple(p for p in rule.params if p.name in used)
    return replace(rule, lhs=lhs, rhs=rhs, params=params, steps=0, text="")


def _match_quantization(t: Term, rule: Rule) -> App:
    op: Op | None = t.op if isinstance(t, App) else None
    if not isinstance(t, App) or op != OPS["QuantizeLinear"] or len(t.operands) < 2:
        raise MalformedText(f"{rule.name}: steps= is of QuantizeLinear, not of {show(t)}")
    return t


def without_bounds_of_values(rule: Rule) -> Rule:
    """Return a rule without the conditions that bound the numbers which float operands hold: they
    bound rounding errors, and equality over the reals needs only that a number is above 0."""
    floats = {p.name for p in rule.params if isinstance(p, Param) and p.kind == "f32"}
    where = [g for f in rule.where if (g := _without_bounds(f, floats)) is not None]
    return replace(rule, where=tuple(dict.fromkeys(where)))


def _without_bounds(f: Formula, floats: Iterable[str]) -> Formula | None:
    """Return what equality needs of a condition, None for nothing."""
    if not isinstance(f, Compare):
        return f
    inside = chain.from_iterable(map(walk, (f.first, *(g for _, g in f.rest))))
    if not any(
        isinstance(p, Call) and p.fn == "value" and Name(n) == p.args[0]
        for p in inside
        for n in free_names(p) & frozenset(floats)
    ):
        return f
    match f:
        case Compare(Call("value", _) as value, ((">" | ">=", Lit(int() | float() as v)),)) if (
            v > 0 or f.rest[0][0] == ">"
        ) and v >= 0:
            return Compare(value, ((">", Lit(0)),))
        case Compare(Call("value", _), (("==" | "!=", _),)):
            return f
        case _:
            return None


@lru_cache(maxsize=1 << 13)
def positive_operands(rule: Rule) -> frozenset[str]:
    """Return the operands whose number a condition value(s) > number says to be above 0."""
    found: set[str] = set()
    for f in rule.where:
        match f:
            case Compare(
                Call("value", (Name(n),)), (((">" | ">=") as op, Lit(int() | float() as v)),)
            ):
                if v > 0 or (v == 0 and op == ">"):
                    found.add(n)
            case _:
                pass
    return frozenset(found)
