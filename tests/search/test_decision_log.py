"""The decision log: what a search did, repeated."""

from __future__ import annotations

import json

import pytest

from superopt.cost.graph_cost import GraphCosts, roofline_cost_model
from superopt.errors import UsageError
from superopt.ir import graph as ir_graph
from superopt.rules.lang.rule import Rule, parse_rules
from superopt.rules.library.load import load_library
from superopt.search.backtrack import Limits
from superopt.search.decision_log import decisions_json, match_changes, replay
from superopt.search.improve import improve
from superopt.search.move import PieceChange, Refusals, Step
from superopt.search.partition import (
    MAX_PIECE_NODES,
    Piece,
    assemble_rewrite,
    split_into_pieces,
)
from tests.support.ir.graphs import attention, layers


def roofline() -> GraphCosts:
    return GraphCosts({}, roofline_cost_model(1))


def piece_step(graph: ir_graph.Graph, parts: list[Piece], rule: Rule) -> Step:
    """The first rewrite of a rule in the first piece that it matches."""
    chosen = [p.graph for p in parts]
    i, change = next((i, c) for i, p in enumerate(chosen) for c in match_changes(rule, p))
    inside = PieceChange(graph, i, chosen[i], change)
    chosen[i] = ir_graph.replace(chosen[i], change)
    after, moved = assemble_rewrite(graph, parts, chosen, inside)
    return Step(rule.name, None, moved, 0.0, graph, after, inside)


def test_the_log_of_two_searches_in_pieces_repeats_both() -> None:
    rules = [r for r in load_library() if r.name == "relu-relu"]
    graph = layers(40)
    parts = split_into_pieces(graph, roofline(), MAX_PIECE_NODES)
    assert len(parts) > 1
    first = piece_step(graph, parts, rules[0])
    again = split_into_pieces(first.after, roofline(), MAX_PIECE_NODES)
    second = piece_step(first.after, again, rules[0])
    text = decisions_json([first, second], rules, "m")
    assert json.loads(text)["rounds"][1] == []
    assert replay(text, graph, rules, "m")[-1].after == second.after


SCALED = """
scaled(x: f[*s, n, k], y: f[*t, k, m], c: f[]):
    Mul(MatMul(x, y), c) <=> MatMul(x, Mul(y, c)) ; float=E2
"""


def test_the_log_of_a_piece_whose_order_is_not_the_graphs() -> None:
    graph = attention()
    rules = [*load_library(), *parse_rules(SCALED)]
    found = improve(graph, rules, roofline(), seconds=20, limits=Limits(), refusals=Refusals())
    for variant in found.variants:
        steps = replay(decisions_json(variant.steps, rules, "m"), graph, rules, "m")
        assert (steps[-1].after if steps else graph) == variant.graph
    assert any(s.piece_change for v in found.variants for s in v.steps)


@pytest.mark.parametrize("bad", [[["relu-relu", -1]], [["relu-relu", 9]], [["relu-relu", 0, 99]]])
def test_a_log_with_a_match_that_there_is_not(bad: object) -> None:
    text = json.dumps({"format": 2, "model": "m", "rounds": [bad]})
    with pytest.raises(UsageError, match="no match number"):
        replay(text, layers(1), load_library(), "m")


@pytest.mark.parametrize("bad", [[[]], [["relu-relu"]], [["relu-relu", 1, 2, 3]], [3], "x"])
def test_what_is_no_log(bad: object) -> None:
    text = json.dumps({"format": 2, "model": "m", "rounds": [bad]})
    with pytest.raises(UsageError, match="not a decision log"):
        replay(text, layers(1), load_library(), "m")


def test_a_log_of_another_model_is_refused() -> None:
    with pytest.raises(UsageError, match="another model"):
        replay(decisions_json([], [], "a"), layers(1), [], "b")
    with pytest.raises(UsageError, match="not a decision log"):
        replay("{}", layers(1), [], "b")
