"""Rules at work on graphs written as text: what matches, and what becomes of it."""

from __future__ import annotations

from superopt.ir.graph import Graph
from superopt.ir.text import parse_graph, show_graph
from superopt.ops import OPS
from superopt.rules.lang.rule import Rule, parse_rules
from superopt.rules.match.graph_context import graph_context
from superopt.rules.match.matcher import Match, matches
from superopt.rules.match.rewrite import Applied, Refusal, apply, rewrite


def rule(text: str) -> Rule:
    """The one rule of a text."""
    (found,) = parse_rules(text)
    return found


def graph(*lines: str) -> Graph:
    """`x: f32[2, 3]`, `%0 = Relu(x)`, ..., the outputs last: `%0`."""
    *body, outputs = lines
    return parse_graph("\n".join(["graph {", *body, f"return {outputs}", "}"]), OPS)


def found(r: Rule | str, g: Graph) -> list[Match]:
    return list(matches(rule(r) if isinstance(r, str) else r, graph_context(g)))


def named(m: Match) -> dict[str, object]:
    """The bindings of a match, inputs by their names."""
    return {k: _shown(v) for k, v in m.bindings.items() if v is not None}


def _shown(v: object) -> object:
    if isinstance(v, tuple):
        return tuple(_shown(i) for i in v)
    return getattr(v, "name", v)


def results_of(r: Rule | str, g: Graph) -> list[str]:
    """What the graph becomes by each match, as the lines between its inputs and its end."""
    ctx = graph_context(g)
    out = []
    for m in found(r, g):
        done = apply(m, ctx)
        out.append(lines(done.graph) if isinstance(done, Applied) else f"{done.reason}")
    return out


def refusals(r: Rule | str, g: Graph) -> list[Refusal]:
    ctx = graph_context(g)
    return [c for m in found(r, g) if isinstance(c := rewrite(m, ctx), Refusal)]


def lines(g: Graph) -> str:
    """The applications of a graph and what it returns, on one line."""
    text = [line.strip() for line in show_graph(g).splitlines()]
    return "; ".join(line for line in text if line.startswith(("%", "return")))
