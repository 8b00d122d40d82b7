"""The step chain under construction: what is bound so far, and what is deferred."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from superopt.ir.graph import Item, Node, results
from superopt.rules.checks import defined, when
from superopt.rules.condition import Scope, compiled
from superopt.rules.functions import Result, tell
from superopt.rules.rule import Rule
from superopt.rules.steps import CONTEXT, PART, Cells, Step
from superopt.rules.syntax import Param
from superopt.rules.term import App, Formula, Term, Var, names, show

END = Var("the end of the match")  # required by single_use


class Chain:
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
        self.done: set[Term] = set()
        self.kinds: set[str] = set()
        self.fixed: list[App] = []
        self.steps: list[Step] = []
        self.waiting: list[tuple[frozenset[str | Term], Callable[[], Step]]] = []

    def wait(self, need: frozenset[str | Term], make: Callable[[], Step]) -> None:
        self.waiting.append((need, make))

    def flush(self) -> None:
        """Add the deferred steps whose names are bound."""
        again = True
        while again:
            again = False
            for entry in list(self.waiting):
                need, make = entry
                if all(n in self.bound if isinstance(n, str) else n in self.done for n in need):
                    self.waiting.remove(entry)
                    self.steps.append(make())
                    again = True

    def formula(self, f: Formula) -> Callable[[Cells], Any]:
        run = compiled(f, self.scope, self.used_only)
        return lambda env: _plain(run(env))

    def used_only(self, env: Cells, r: Result) -> bool:
        """True if no user outside the match reads the value (single_use)."""
        own = [env[s] for s in self.nodes]
        if env[PART] is not None:
            own.append(env[PART][0])
        if not isinstance(r, (Node, Item)):
            return bool(env[CONTEXT].used_only_by(r, own))
        values = results(r) if isinstance(r, Node) else (r,)
        return all(env[CONTEXT].used_only_by(v, own) for v in values)

    def condition(self, c: Formula) -> Step:
        said_of = sorted(names(c) & set(self.scope.slots))
        slots = [(n, self.scope.slots[n]) for n in said_of]

        def shown(env: Cells) -> str:
            have = [f"{n} is {tell(env[s])}" for n, s in slots]
            return f" ({'; '.join(have)})" if have else ""

        return when(compiled(c, self.scope, self.used_only), show(c), shown)

    def define(self, name: str, f: Formula) -> Step:
        self.bound.add(name)
        return defined(self.scope.slots[name], self.formula(f), f"{name} == {show(f)}")


def _plain(r: Result) -> Result:
    return float(r) if isinstance(r, Fraction) else r
