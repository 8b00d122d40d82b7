"""Formula values while an instance is built: some names and subterms have values already."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from superopt.ir.graph import Value
from superopt.rules.lang.functions import NotKnown, Result
from superopt.rules.lang.interpreter import Compiled, Scope, compile_formula, required_names
from superopt.rules.lang.rule import Rule
from superopt.rules.lang.term import Call, Formula, Lit, Name, Part, Term, rebuild, walk
from superopt.rules.lang.term import free_names as names_of

Names = Mapping[str, Result]
Terms = Mapping[Term, Value]


def formula_value(f: Formula, names: Names, terms: Terms) -> Result:
    """Return the value of a formula; raises NotKnown if it has none. Every value counts as
    `single_use`."""
    known = prepare(f)
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


def missing_names(f: Formula, names: Names) -> bool:
    """True if the value of a formula needs a name that has none."""
    return any(isinstance(need, str) and need not in names for need in prepare(f).needs)


class Prepared(NamedTuple):
    """A formula, the names it requires and mentions, and its compiled form."""

    formula: Formula
    needs: tuple[str | Term, ...]
    names: frozenset[str]
    slots: int
    run: Compiled


# By identity, like `_USES` below: every instance evaluates the same few formulas.
_PREPARED: dict[int, Prepared] = {}


def prepare(f: Formula) -> Prepared:
    """Return the compiled form of `f`."""
    found = _PREPARED.get(id(f))
    if found is None:
        scope = Scope()
        every = tuple(required_names(f))
        for need in every:
            if isinstance(need, str):
                scope.slot(need)
            else:
                scope.terms[need] = scope.new_slot()
        run = compile_formula(f, scope, lambda env, v: True)
        if len(_PREPARED) >= MAX_CACHED:
            _PREPARED.clear()
        found = _PREPARED[id(f)] = Prepared(f, every, names_of(f), len(scope.cells), run)
    return found


class ParameterUses(NamedTuple):
    """The parameters whose number a rule uses, and those that conditions require to be constant."""

    numbers: frozenset[str]
    constants: frozenset[str]


# By identity, since comparing rules is slow; rules are kept alive, so that their identity is not
# reused.
_USES: dict[int, tuple[Rule, ParameterUses]] = {}
MAX_CACHED = 1 << 12


def parameter_uses(rule: Rule) -> ParameterUses:
    """Return how a rule uses its parameters."""
    known = _USES.get(id(rule))
    if known is None:
        found = ParameterUses(
            _called_names(rule, ("value", "all_equal", "items")), _called_names(rule, ("const",))
        )
        if len(_USES) >= MAX_CACHED:
            _USES.clear()
        known = _USES[id(rule)] = (rule, found)
    return known[1]


def _called_names(rule: Rule, functions: tuple[str, ...]) -> frozenset[str]:
    found: set[str] = set()
    for part in (*rule.lhs, *rule.rhs, *rule.where):
        for p in walk(part):
            match p:
                case Call(fn, (Name(n),)) if fn in functions:
                    found.add(n)
                case _:
                    pass
    return frozenset(found)


def drop_const_conditions(f: Formula) -> Formula:
    """Return the condition where inputs stand for constants."""

    def change(p: Part) -> Part | None:
        return Lit(True) if isinstance(p, Call) and p.fn == "const" else None

    return rebuild(f, change)
