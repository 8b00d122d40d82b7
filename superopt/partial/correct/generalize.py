"""Generalize programs at several sizes to one term whose attributes are formulas of the sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from superopt.ir import graph
from superopt.ir.text import explicit_attrs
from superopt.partial.correct.formulas import parse_formula
from superopt.partial.correct.sized_pairs import SizedPair
from superopt.partial.correct.symbolic_boxes import NoFormula, Sizes, fit_formula
from superopt.rules.lang.rule import Rule
from superopt.rules.lang.syntax import Param
from superopt.rules.lang.term import Absent, App, Formula, Lit, Number, Pick, Seq, Term, Var


def generalize(values: Sequence[graph.Value], sizes: Sequence[Sizes]) -> Term:
    """Return the term that equals each of the values at its sizes. Raises NoFormula."""
    return _Generalizer(sizes).term(tuple(values))


RuleSide = tuple[graph.Value, ...]


@dataclass(slots=True)
class _Generalizer:
    sizes: Sequence[Sizes]
    memo: dict[tuple[graph.Value, ...], Term] = field(default_factory=dict)

    def term(self, values_by_size: tuple[graph.Value, ...]) -> Term:
        if values_by_size not in self.memo:
            self.memo[values_by_size] = self._term(values_by_size)
        return self.memo[values_by_size]

    def _term(self, values_by_size: tuple[graph.Value, ...]) -> Term:
        first = values_by_size[0]
        if isinstance(first, graph.Input):
            if any(not isinstance(v, graph.Input) or v.name != first.name for v in values_by_size):
                raise NoFormula(f"{first.name} is something else at other sizes")
            return Var(first.name)
        if isinstance(first, graph.Constant):
            return Number(_common_number(values_by_size))
        nodes = [graph.producer(v) for v in values_by_size]
        n = nodes[0]
        if n is None or any(m is None or m.op != n.op for m in nodes):
            raise NoFormula("other operators at other sizes")
        if any(len(m.inputs) != len(n.inputs) for m in nodes if m is not None):
            raise NoFormula(f"{n.op.name} has other operands at other sizes")
        columns = zip(*(m.inputs for m in nodes if m is not None), strict=True)
        operands = tuple(self.operand(n, c) for c in columns)
        app = App(n.op, operands, self.attrs([m for m in nodes if m is not None]))
        return app if len(n.types) == 1 else Pick(app, getattr(first, "index", 0))

    def operand(self, n: graph.Node, values_by_size: Sequence[graph.Value | None]) -> Term:
        present = tuple(v for v in values_by_size if v is not None)
        if not present:
            return Absent()
        if len(present) < len(values_by_size):
            raise NoFormula(f"an operand of {n.op.name} is absent at some sizes")
        return self.term(present)

    def attrs(self, nodes: Sequence[graph.Node]) -> tuple[tuple[str, Formula], ...]:
        names = sorted({k for n in nodes for k, _ in explicit_attrs(n)})
        return tuple((k, self.attr([n.attr(k) for n in nodes])) for k in names)

    def attr(self, values: Sequence[Any]) -> Formula:
        if all(isinstance(v, tuple) for v in values):
            if len({len(v) for v in values}) > 1:
                raise NoFormula(f"no formula gives the attributes {values}")
            return Seq(tuple(self.attr(column) for column in zip(*values, strict=True)))
        if all(isinstance(v, int) for v in values):
            return parse_formula(fit_formula(self.sizes, values))
        if len(set(values)) > 1:
            raise NoFormula(f"no formula gives the attributes {values}")
        return Lit(values[0])


def _common_number(values_by_size: Sequence[graph.Value]) -> int | float:
    """Return the number that all of these constants are. Raises NoFormula."""
    numbers = {
        v.load().item()
        for v in values_by_size
        if isinstance(v, graph.Constant) and v.type.shape == ()
    }
    if len(numbers) != 1 or any(
        not isinstance(v, graph.Constant) or v.type.shape for v in values_by_size
    ):
        raise NoFormula("a constant that is not one number")
    (x,) = numbers
    return int(x) if x == x and abs(x) != inf and int(x) == x else float(x)


def pair_from_sizes(name: str, pairs: Sequence[SizedPair], where: tuple[Formula, ...] = ()) -> Rule:
    """Return the rule `program => mutant` that these pairs instantiate. Raises NoFormula."""
    sides = [((s.program,), (s.mutant,)) for s in pairs]
    return rule_from_sizes(name, [s.sizes for s in pairs], sides, where)


def rule_from_sizes(
    name: str,
    at: Sequence[Sizes],
    sides: Sequence[tuple[RuleSide, RuleSide]],
    where: tuple[Formula, ...] = (),
) -> Rule:
    """Return the rule whose sides are these values at these sizes, of one or several results.
    Raises NoFormula."""
    lhs, rhs = (
        tuple(generalize(column, at) for column in zip(*(s[k] for s in sides), strict=True))
        for k in (0, 1)
    )
    inputs_by_size = [graph_inputs(*left, *right) for left, right in sides]
    params = []
    for column in zip(*inputs_by_size, strict=True):
        shapes = zip(*(v.type.shape or () for v in column), strict=True)
        dims = tuple(parse_formula(fit_formula(at, [int(d) for d in dim])) for dim in shapes)
        params.append(Param(column[0].name, "f", dims))
    return Rule(name, tuple(params), lhs, rhs, where, "E2", "generated")


def graph_inputs(*values: graph.Value) -> list[graph.Input]:
    """Return the inputs that these values depend on, by name."""
    read = [v for n in graph.nodes(values) for v in n.inputs]
    found = {v.name: v for v in (*values, *read) if isinstance(v, graph.Input)}
    return [found[n] for n in sorted(found)]
