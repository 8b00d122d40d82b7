"""Formulas while an instance is being made: some names and subterms have values already."""

from __future__ import annotations

from collections.abc import Mapping

from superopt.ir.graph import Value
from superopt.rules.condition import Scope, compiled, needs
from superopt.rules.functions import NotKnown, Result
from superopt.rules.rule import Rule
from superopt.rules.term import Call, Formula, Lit, Name, Part, Term, rebuild, walk

Names = Mapping[str, Result]
Terms = Mapping[Term, Value]


def value_of(f: Formula, names: Names, terms: Terms) -> Result:
    """The value of a formula; NotKnown where it has none. Every value counts as `single_use`."""
    scope = Scope()
    env: list[Result] = []
    for need in needs(f):
        if isinstance(need, str):
            if need not in names:
                raise NotKnown(f"{need} has no value yet")
            scope.slot(need)
            env.append(names[need])
        else:
            if need not in terms:
                raise NotKnown(f"{need} has not been made yet")
            scope.terms[need] = scope.fresh()
            env.append(terms[need])
    run = compiled(f, scope, lambda env, v: True)
    return run(env + [None] * (len(scope.used) - len(env)))


def numbers_asked(rule: Rule) -> frozenset[str]:
    """The parameters whose number the conditions or attributes use."""
    return _asked(rule, ("value", "all_equal"))


def constants_asked(rule: Rule) -> frozenset[str]:
    """The parameters that conditions want to be constants."""
    return _asked(rule, ("const",))


def _asked(rule: Rule, functions: tuple[str, ...]) -> frozenset[str]:
    found: set[str] = set()
    for part in (*rule.lhs, *rule.rhs, *rule.where):
        for p in walk(part):
            match p:
                case Call(fn, (Name(n),)) if fn in functions:
                    found.add(n)
                case _:
                    pass
    return frozenset(found)


def without_const(f: Formula) -> Formula:
    """The condition where inputs stand for constants."""

    def change(p: Part) -> Part | None:
        return Lit(True) if isinstance(p, Call) and p.fn == "const" else None

    return rebuild(f, change)
