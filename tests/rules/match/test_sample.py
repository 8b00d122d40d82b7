"""What the matcher makes of a sample of rules: rewritten graphs, and why a rule does not match."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pytest

from superopt.ir.graph import Graph
from superopt.ir.text import show_graph
from superopt.rules.lang.rule import Rule
from superopt.rules.match.explain import explain
from superopt.rules.match.graph_context import graph_context
from superopt.rules.match.matcher import matches
from superopt.rules.match.rewrite import Applied, apply
from superopt.rules.match.rule_index import RuleIndex
from superopt.rules.trial.instances import instances
from tests.support.rules.sample import GROUPS, check_golden, sample

SEED = 7
COUNT = 2  # graphs for each rule


def show(graph: Graph) -> str:
    return "; ".join(line.strip() for line in show_graph(graph).splitlines()[1:-1])


def graphs_of(rule: Rule) -> list[Graph]:
    """Left sides of instances, with constants where the rule requires them."""
    made = instances(rule, SEED, constants=True, rounds=2)
    return [Graph(one.inputs, one.lhs) for one in islice(made, COUNT)]


def rewrites_of(rule: Rule) -> Iterator[str]:
    for graph in graphs_of(rule):
        yield f"  {show(graph)}"
        context = graph_context(graph)
        for match in matches(rule, context):
            done = apply(match, context)
            text = show(done.graph) if isinstance(done, Applied) else f"refused: {done.reason}"
            yield f"    => {text}"


@pytest.mark.parametrize("group", GROUPS)
def test_rewrites(group: str) -> None:
    check_golden("rewrites", group, (t for r in sample(group) for t in (r.name, *rewrites_of(r))))


@pytest.mark.parametrize("group", GROUPS)
def test_explanations(group: str) -> None:
    """Each rule at the graphs of the rule after it."""
    rules = sample(group)
    graphs = [graphs_of(rule)[-1:] for rule in (*rules[1:], rules[0])]
    pairs = zip(rules, graphs, strict=True)
    check_golden(
        "attempts", group, (str(a) for r, g in pairs for one in g for a in explain(r, one))
    )


@pytest.mark.parametrize("group", GROUPS)
def test_matches_of_all_rules(group: str) -> None:
    """An index finds at each graph what each rule by itself finds."""
    rules = sample(group)
    index = RuleIndex(rules)
    lines = []
    for rule in rules:
        for graph in graphs_of(rule)[:1]:
            context = graph_context(graph)
            found = [str(m) for m in index.matches(context)]
            alone = [str(m) for r in rules for m in matches(r, context)]
            assert set(found) <= set(alone)
            lines += [rule.name, *(f"  {m}" for m in found)]
    check_golden("matches", group, lines)
