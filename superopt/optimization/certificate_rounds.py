"""From the steps of a search to the rounds of a certificate.

A search records what each step replaced. Here each step is matched again, in the graph that the
certificate's replay has reached, to find what the names of its rule were bound to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import groupby, product

from superopt.check.certificate.replay import apply_round, bind_rule, find_value
from superopt.check.graph_identity import CertificateRefused
from superopt.ir import graph as ir_graph
from superopt.ir.syntax import show_attr, show_type
from superopt.ir.value_numbers import ValueNumbering, number_values
from superopt.report.data.certificate import Application
from superopt.rules.lang.functions import NotKnown
from superopt.rules.lang.rule import Rule, bound_names
from superopt.rules.lang.syntax import Param
from superopt.rules.lang.term import AllResults, App, Fill, Number, Pick, Scalar, Term
from superopt.rules.match.graph_context import GraphContext, graph_context
from superopt.rules.match.matcher import Match, matches
from superopt.rules.match.rewrite import rewrite
from superopt.search.move import Step


class Untraceable(Exception):
    """Why a certificate cannot describe a search; names the step."""


def certificate_rounds(
    graph: ir_graph.Graph, steps: Sequence[Step], rules: Mapping[str, Rule]
) -> tuple[ValueNumbering, tuple[tuple[Application, ...], ...]]:
    """Return the steps from `graph` as rounds, and the state of the replay after them."""
    state = number_values(graph)
    out: list[tuple[Application, ...]] = []
    for _, group in groupby(steps, key=lambda s: (id(s.before), id(s.after))):
        some = list(group)
        if state.graph != some[0].before:
            raise Untraceable(f"the replay does not reach the graph before {some[0].rule}")
        ctx = graph_context(state.graph)
        made = tuple(rule_application(state, ctx, s, rules[s.rule]) for s in some)
        try:
            apply_round(state, made, rules)
        except CertificateRefused as e:
            raise Untraceable(f"the replay rejects a step: {e}") from None
        out.append(made)
    if steps and state.graph != steps[-1].after:
        raise Untraceable(f"the replay does not reach the graph after {steps[-1].rule}")
    return state, tuple(out)


def rule_application(
    state: ValueNumbering, ctx: GraphContext, step: Step, rule: Rule
) -> Application:
    """Return a step with the bindings of its rule's names."""
    near = {n for v in step.change if (n := ir_graph.producer(v)) is not None}
    for m in matches(rule, ctx, near):
        if rewrite(m, ctx) == step.change:
            return _match_application(state, m)
    raise Untraceable(f"no match of {rule.name} reproduces its step")


def _match_application(state: ValueNumbering, m: Match) -> Application:
    rule, held = m.rule, m.bindings
    operands = {p.name for p in rule.params if isinstance(p, Param)}
    bound: list[tuple[str, ...]] = []
    for name in sorted(bound_names(rule), key=lambda n: (n not in operands, n)):
        value = held[name]
        if name not in operands:
            bound.append((name, str(value) if isinstance(value, Fraction) else show_attr(value)))
            continue
        some = value if isinstance(value, tuple) else (value,)
        bound.append((name, *(_typed_reference(state, v) for v in some)))
    if m.part is None:
        at: tuple[str, ...] = tuple(_reference(state, v) for v in m.roots)
    else:
        n, i, j = m.part
        at = (f"{_reference(state, n)}[{i}:{j}]",)
    for chosen in product(*_literal_choices(m)):
        a = Application(
            rule.name, at, tuple(bound), tuple(_typed_reference(state, c) for c in chosen), ()
        )
        wanted = [find_value(state, t) for t in at]
        here = bind_rule(state, a, rule, wanted)
        try:
            if here.left_values() == wanted:
                return replace(a, where=tuple(here.condition_text(c) for c in rule.where))
        except NotKnown:
            continue
    raise Untraceable(f"{rule.name} at {', '.join(at)}: its left side cannot be built again")


def _literal_choices(m: Match) -> list[list[ir_graph.Constant]]:
    """Return, for each number or fill of the left side in build order, the constants that it may
    be."""
    out: list[list[ir_graph.Constant]] = []
    seen: set[Term] = set()

    def visit(t: Term) -> None:
        match t:
            case Pick(app, _) | AllResults(app):
                visit(app)
            case App(_, inner) if t not in seen:
                seen.add(t)
                for o in inner:
                    if isinstance(o, (Number, Scalar, Fill)):
                        read = m.terms[t].inputs
                        out.append([v for v in read if isinstance(v, ir_graph.Constant)])
                    visit(o)

    for t in m.rule.lhs:
        visit(t)
    return out


def _typed_reference(state: ValueNumbering, v: ir_graph.Value) -> str:
    return f"{_reference(state, v)}: {show_type(v.type)}"


def _reference(state: ValueNumbering, v: ir_graph.Value) -> str:
    """Return the certificate's name of `v`: a value of the graph, or a part of an n-ary node."""
    number = state.numbers.get(v)
    if number is not None:
        return f"v{number}"
    if isinstance(v, ir_graph.Node):
        for n, k in state.numbers.items():
            if isinstance(n, ir_graph.Node) and n.op is v.op and n.attrs == v.attrs:
                for i in range(len(n.inputs) - len(v.inputs) + 1):
                    if n.inputs[i : i + len(v.inputs)] == v.inputs:
                        return f"v{k}[{i}:{i + len(v.inputs)}]"
    raise Untraceable(f"an operand of type {show_type(v.type)} is not a value of the graph")
