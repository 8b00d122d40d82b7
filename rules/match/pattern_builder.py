"""The step chain under construction: what is bound so far, and what is deferred."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from superopt.ir.graph import Item, Node, results
from superopt.rules.lang.functions import Result, show_result
from superopt.rules.lang.interpreter import Scope, compile_formula
from superopt.rules.lang.printer import show
from superopt.rules.lang.rule import Rule
from superopt.rules.lang.syntax import Param
from superopt.rules.lang.term import App, Formula, Term, Var, free_names
from superopt.rules.match.check_steps import condition_step, definition_step
from superopt.rules.match.operand_steps import CONTEXT_SLOT, PART_SLOT, Cells, Step

END = Var("the end of the match")  # required by single_use


class PatternBuilder:
    """A chain of steps under construction.

    scope: the slots of names and subterms. letters: of shared element types. nodes: of all matched
    nodes. bound, matched: names and subterms that have a value after the steps so far. bound_kinds:
    letters that have one. fixed_order: commutative applications tried in one order only.
    """

    def __init__(
        self, rule: Rule, scope: Scope, letters: Mapping[str, int], nodes: tuple[int, ...]
    ) -> None:
        self.rule, self.scope, self.letters, self.nodes = rule, scope, letters, nodes
        self.params = {p.name: p for p in rule.params if isinstance(p, Param)}
        self.bound: set[str] = set()
        self.matched: set[Term] = set()
        self.bound_kinds: set[str] = set()
        self.fixed_order: list[App] = []
        self.steps: list[Step] = []
        self.deferred: list[tuple[frozenset[str | Term], Callable[[], Step]]] = []

    def defer(self, need: frozenset[str | Term], make: Callable[[], Step]) -> None:
        self.deferred.append((need, make))

    def flush_ready(self) -> None:
        """Add the deferred steps whose names are bound."""
        again = True
        while again:
            again = False
            for entry in list(self.deferred):
                need, make = entry
                if all(n in self.bound if isinstance(n, str) else n in self.matched for n in need):
                    self.deferred.remove(entry)
                    self.steps.append(make())
                    again = True

    def formula(self, f: Formula) -> Callable[[Cells], Any]:
        run = compile_formula(f, self.scope, self.is_used_only_inside)
        return lambda env: _as_float(run(env))

    def is_used_only_inside(self, env: Cells, r: Result) -> bool:
        """True if no user outside the match reads the value (single_use)."""
        own = [env[s] for s in self.nodes]
        if env[PART_SLOT] is not None:
            own.append(env[PART_SLOT][0])
        if not isinstance(r, (Node, Item)):
            return bool(env[CONTEXT_SLOT].is_used_only_by(r, own))
        values = results(r) if isinstance(r, Node) else (r,)
        return all(env[CONTEXT_SLOT].is_used_only_by(v, own) for v in values)

    def condition_step(self, c: Formula) -> Step:
        said_of = sorted(free_names(c) & set(self.scope.slots))
        slots = [(n, self.scope.slots[n]) for n in said_of]

        def shown(env: Cells) -> str:
            have = [f"{n} is {show_result(env[s])}" for n, s in slots]
            return f" ({'; '.join(have)})" if have else ""

        return condition_step(
            compile_formula(c, self.scope, self.is_used_only_inside), show(c), shown
        )

    def definition_step(self, name: str, f: Formula) -> Step:
        self.bound.add(name)
        return definition_step(self.scope.slots[name], self.formula(f), f"{name} == {show(f)}")


def _as_float(r: Result) -> Result:
    return float(r) if isinstance(r, Fraction) else r
