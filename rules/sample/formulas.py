"""Formula values while an instance is built: some names and subterms have values already."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from superopt.ir.graph import Value
from superopt.rules.condition import Run, Scope, compiled, needs
from superopt.rules.functions import NotKnown, Result
from superopt.rules.rule import Rule
from superopt.rules.term import Call, Formula, Lit, Name, Part, Term, rebuild, walk
from superopt.rules.term import names as names_of

Names = Mapping[str, Result]
Terms = Mapping[Term, Value]


def value_of(f: Formula, names: Names, terms: Terms) -> Result:
    """Return the value of a formula; raises NotKnown if it has none. Every value counts as
    `single_use`."""
    known = prepared(f)
    env: list[Result] = [None] * known.slots
    for slot, need in enumerate(known.needs):
        if isinstance(need, str):
            if need not in names:
                raise NotKnown(f"{need} has no value yet")
            env[slot] = names[need]
        else:
            if need not in terms:
                raise NotKnown(f"{need} has not been made yet")
            env[slot] = terms[need]
    return known.run(env)


class Prepared(NamedTuple):
    """A formula, the names it requires and mentions, and its compiled form."""

    formula: Formula
    needs: tuple[str | Term, ...]
    names: frozenset[str]
    slots: int
    run: Run


# By identity, like `_USES` below: every instance evaluates the same few formulas.
_PREPARED: dict[int, Prepared] = {}


def prepared(f: Formula) -> Prepared:
    """Return the compiled form of `f`."""
    found = _PREPARED.get(id(f))
    if found is None:
        scope = Scope()
        every = tuple(needs(f))
        for need in every:
            if isinstance(need, str):
                scope.slot(need)
            else:
                scope.terms[need] = scope.fresh()
        run = compiled(f, scope, lambda env, v: True)
        if len(_PREPARED) >= MOST_KNOWN:
            _PREPARED.clear()
        found = _PREPARED[id(f)] = Prepared(f, every, names_of(f), len(scope.used), run)
    return found


class Asked(NamedTuple):
    """The parameters whose number a rule uses, and those that conditions require to be constant."""

    numbers: frozenset[str]
    constants: frozenset[str]


# By identity, since comparing rules is slow; rules are kept alive, so that their identity is not
# reused.
_KNOWN: dict[int, tuple[Rule, Asked]] = {}
MOST_KNOWN = 1 << 12


def asked(rule: Rule) -> Asked:
    """Return how a rule uses its parameters."""
    known = _KNOWN.get(id(rule))
    if known is None:
        found = Asked(_asked(rule, ("value", "all_equal", "items")), _asked(rule, ("const",)))
        if len(_KNOWN) >= MOST_KNOWN:
            _KNOWN.clear()
        known = _KNOWN[id(rule)] = (rule, found)
    return known[1]


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
    """Return the condition where inputs stand for constants."""

    def change(p: Part) -> Part | None:
        return Lit(True) if isinstance(p, Call) and p.fn == "const" else None

    return rebuild(f, change)
