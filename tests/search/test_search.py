"""The search: deltas, climbing, backtracking, pieces."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from superopt.cost.graph_cost import GraphCosts, roofline_cost_model, table_cost_model
from superopt.cost.signature import Signature
from superopt.ir import graph as ir_graph
from superopt.ir.evaluate import evaluate
from superopt.ir.substitute import ReplacementCycle, replace_all
from superopt.rules.lang.rule import parse_rules
from superopt.rules.library.load import load_library
from superopt.rules.match.graph_context import graph_context
from superopt.search.backtrack import MAX_EXTRA_AXES, Limits, StopReason, search
from superopt.search.cost_delta import apply_together, cost_delta
from superopt.search.decision_log import decisions_json, replay
from superopt.search.hill_climb import hill_climb
from superopt.search.improve import improve
from superopt.search.move import Refusals, find_moves
from superopt.search.novelty import node_views, novelty
from superopt.search.partition import (
    assemble,
    split_into_pieces,
)
from superopt.search.rule_set import rule_set
from superopt.search.tactic import TACTICS, play_tactic
from tests.support.ir.graphs import (
    layers,
    masked,
    op,
    reusing,
    separable,
    siblings,
    value,
    weight,
)

LIBRARY = rule_set(load_library())


def roofline() -> GraphCosts:
    return GraphCosts({}, roofline_cost_model(1))


def never() -> bool:
    return False


GRAPHS = {
    "layers": layers(2), "siblings": siblings(3), "separable": separable(6), "reusing": reusing(2)
}  # fmt: skip


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_the_delta_is_what_building_the_graph_says(graph: ir_graph.Graph) -> None:
    costs = roofline()
    before = costs.graph_cost(graph)
    tried = 0
    for m in find_moves(graph_context(graph), LIBRARY, costs, Refusals()):
        after = costs.graph_cost(ir_graph.replace(graph, m.change))
        assert m.effect.us == pytest.approx(after - before, abs=1e-6), m.rule.name
        tried += 1
    assert tried >= 5


def test_every_rewrite_keeps_the_values() -> None:
    graph = layers(1)
    feeds = {"x": np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)}
    want = evaluate(graph, feeds)
    tried = 0
    for m in find_moves(graph_context(graph), LIBRARY, roofline(), Refusals()):
        got = evaluate(ir_graph.replace(graph, m.change), feeds)
        np.testing.assert_allclose(got[0], want[0], rtol=1e-4, atol=1e-4, err_msg=m.rule.name)
        tried += 1
    assert tried >= 5


def test_climbing_removes_a_double_relu_everywhere_at_once() -> None:
    graph, steps, _ = hill_climb(layers(5), LIBRARY, roofline(), Refusals(), stop=never)
    names = [n.op.name for n in ir_graph.nodes(graph)]
    assert names.count("Relu") == 5
    assert [s.rule for s in steps].count("relu-relu") == 5
    assert len({id(s.before) for s in steps if s.rule == "relu-relu"}) == 1, "one round"


def test_backtracking_goes_over_a_hill_that_alpha_allows() -> None:
    rules = rule_set(
        parse_rules(
            "up(x: f): Tanh(x) => Neg(Tanh(Neg(x))) ; float=E0\n"
            "down(x: f): Neg(Tanh(Neg(x))) => Sin(x) ; float=E0\n"  # false, but cheap
        )
    )
    prices = {"Tanh": 100.0, "Neg": 4.0, "Sin": 1.0}
    x = value("x", 3)
    graph = ir_graph.Graph((x,), (op("Tanh", x),))
    over = search(
        graph, rules, GraphCosts({}, table_cost_model(prices)), Limits(alpha=1.1), Refusals()
    )
    assert [n.op.name for n in ir_graph.nodes(over.graph)] == ["Sin"]
    assert [s.rule for s in over.steps] == ["up", "down"]
    assert over.cost == 1.0
    under = search(
        graph, rules, GraphCosts({}, table_cost_model(prices)), Limits(alpha=1.05), Refusals()
    )
    assert under.graph == graph
    assert under.stop is StopReason.EXHAUSTED


def test_what_is_known_ahead_of_time_is_not_computed_in_another_way() -> None:
    rules = rule_set(
        parse_rules(
            "turn(x: f, y: f): Mul(x, y) => Neg(Mul(x, Neg(y))) ; float=E0\n"
            "undo(x: f): Neg(Neg(x)) => x ; float=E0\n"
        )
    )
    a, b = weight(0, 3), weight(1, 3)
    x = value("x", 3)
    known = op("Mul", op("Neg", op("Neg", a)), b)
    graph = ir_graph.Graph((x,), (op("Mul", x, known),))
    found = list(find_moves(graph_context(graph), rules, roofline(), Refusals()))
    changed = {(m.rule.name, v) for m in found for v in m.change}
    assert changed == {("turn", graph.outputs[0]), ("undo", known.inputs[0])}


def test_what_is_made_from_what_goes_is_no_move() -> None:
    """Negating twice gives the first value again: in its place it would stay, and more."""
    x = value("x", 3)
    once = op("Tanh", x)
    twice = op("Neg", op("Neg", once))
    graph = ir_graph.Graph((x,), (op("Sin", once), twice))
    assert cost_delta(graph_context(graph), {once: twice}, roofline()) is None
    (rule,) = parse_rules("double(x: f): Tanh(x) => Neg(Neg(Tanh(x))) ; float=E0")
    assert not list(find_moves(graph_context(graph), rule_set([rule]), roofline(), Refusals()))
    other = cost_delta(graph_context(graph), {twice: once}, roofline())
    assert other is not None
    assert set(other.removed) == {twice, twice.inputs[0]}


def test_what_is_new_is_visited_before_what_costs_as_little() -> None:
    """A chain of negations can be moved about in many ways for nothing; behind them lies a gain."""
    rules = rule_set(
        parse_rules(
            "forth(x: f, y: f): Add(Neg(x), y) => Sub(y, x) ; float=E0\n"
            "swap(x: f, y: f): Add(x, y) => Add(y, x) ; float=E0\n"
            "group(x: f, y: f, z: f): Add(x, Add(y, z)) <=> Add(Add(x, y), z) ; float=E1\n"
            "up(x: f): Tanh(x) => Neg(Tanh(Neg(x))) ; float=E0\n"
            "down(x: f): Neg(Tanh(Neg(x))) => Sin(x) ; float=E0\n"  # false, but cheap
        )
    )
    prices = {"Add": 10.0, "Sub": 10.0, "Tanh": 20.0, "Neg": 1.0, "Sin": 1.0}
    inputs = tuple(value(f"x{n}", 3) for n in range(7))
    total: ir_graph.Value = op("Tanh", inputs[0])
    for x in inputs[1:]:
        total = op("Add", total, x)
    limits = Limits(alpha=1.2, patience=100, seconds=60)
    found = search(
        ir_graph.Graph(inputs, (total,)),
        rules,
        GraphCosts({}, table_cost_model(prices)),
        limits,
        Refusals(),
    )
    assert "Sin" in [n.op.name for n in ir_graph.nodes(found.graph)]


def test_axes_of_length_one_are_not_new_for_ever() -> None:
    """Each graph has a node of one axis more, which no graph before it had."""
    rules = rule_set(
        parse_rules(
            "wrap(x: f): Neg(x) => Squeeze(Neg(Unsqueeze(x, axes=(0,))), axes=(0,)) ; float=E0\n"
            "merge(x: f): Unsqueeze(Unsqueeze(x, axes=(0,)), axes=(0,))"
            " => Unsqueeze(x, axes=(0, 1)) ; float=E0"
        )
    )
    x = value("x", 3)
    costs = GraphCosts({}, table_cost_model({"Neg": 1.0, "Squeeze": 0.0, "Unsqueeze": 0.0}))
    found = search(
        ir_graph.Graph((x,), (op("Neg", x),)), rules, costs, Limits(seconds=60), Refusals()
    )
    assert found.stop is StopReason.EXHAUSTED
    assert found.visited >= 1 + MAX_EXTRA_AXES


def test_novelty_is_of_the_rarest_of_what_is_made() -> None:
    costs = roofline()
    graph = layers(1)
    some = [
        node_views(m.effect, costs)
        for m in find_moves(graph_context(graph), LIBRARY, costs, Refusals())
    ]
    made = next(v for v in some if len(v) > 1)
    times = Counter(made)
    assert novelty((), times) == 0
    assert novelty(made, times) == 1
    times[made[0]] = 0
    assert novelty(made, times) == 0


def test_the_search_is_deterministic_and_says_why_it_stopped() -> None:
    limits = Limits(max_graphs=5, seconds=60)
    a = search(layers(3), LIBRARY, roofline(), limits, Refusals())
    b = search(layers(3), LIBRARY, roofline(), limits, Refusals())
    assert a.cost == b.cost
    assert [s.rule for s in a.steps] == [s.rule for s in b.steps]
    assert a.stop is StopReason.GRAPHS
    assert a.visited == 5
    wide = Limits(alpha=5.0)
    stopped = search(layers(3), LIBRARY, roofline(), wide, Refusals(), stop=lambda: True)
    assert stopped.stop is StopReason.STOPPED


def test_the_cost_that_the_search_reports_is_the_cost_of_its_graph() -> None:
    costs = roofline()
    found = search(layers(2), LIBRARY, costs, Limits(max_graphs=300), Refusals())
    assert found.cost == pytest.approx(costs.graph_cost(found.graph))
    assert found.cost < costs.graph_cost(layers(2))


def test_merging_siblings_is_one_move_of_a_tactic() -> None:
    def price(s: Signature) -> float:
        return {"MatMul": 10.0, "Slice": 1.0, "Split": 1.0}.get(s.op.name, 1.0)

    costs = GraphCosts({}, lambda signatures: [price(s) for s in signatures])
    graph = siblings(5)
    tactic = next(t for t in TACTICS if t.name == "merge-columns")
    merged, steps, _ = play_tactic(tactic, graph, LIBRARY, costs, Refusals(), stop=never)
    live = [n.op.name for n in ir_graph.nodes(merged) if not costs.is_constant(n)]
    assert live.count("MatMul") == 1
    assert {s.tactic for s in steps} == {"merge-columns"}
    feeds = {"x": np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)}
    for a, b in zip(evaluate(graph, feeds), evaluate(merged, feeds), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_channels_are_padded_in_all_convolutions_or_in_none() -> None:
    def price(s: Signature) -> float:
        # onnxruntime's blocked convolutions: ten times faster on multiples of 16
        (out,) = s.outputs
        assert out.shape is not None
        return 10.0 if s.op.name == "Conv" and out.shape[1] % 16 else 1.0

    graph = separable(6)
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 6, 5, 5)).astype(np.float32)}
    tactic = next(t for t in TACTICS if t.name == "pad-channels")
    costs = GraphCosts({}, lambda signatures: [price(s) for s in signatures])
    padded, steps, _ = play_tactic(tactic, graph, LIBRARY, costs, Refusals(), stop=never)
    assert costs.graph_cost(padded) < 0.4 * costs.graph_cost(graph)
    assert {s.tactic for s in steps} == {"pad-channels"}
    (a,), (b,) = evaluate(graph, feeds), evaluate(padded, feeds)
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    flat = GraphCosts({}, lambda signatures: [1.0 for _ in signatures])
    same, none, _ = play_tactic(tactic, graph, LIBRARY, flat, Refusals(), stop=never)
    assert same == graph
    assert not none


def test_a_copy_of_a_shared_weight_has_a_price() -> None:
    graph = reusing(4)
    costs = GraphCosts({}, lambda signatures: [1.0 for _ in signatures])
    whole = costs.graph_cost(graph)
    assert whole == pytest.approx(16 + 2 * 256 * 256 * 4 / 50e3)
    merged = [m for m in find_moves(graph_context(graph), LIBRARY, costs, Refusals())
              if m.rule.name.startswith("matmul-merge-slices")]  # fmt: skip
    assert merged
    for m in merged:  # one step of four: the two weights stay, and a third comes
        assert m.effect.us == pytest.approx(
            costs.graph_cost(ir_graph.replace(graph, m.change)) - whole, abs=1e-6
        )
        assert m.effect.us > 2 * 256 * 256 * 4 / 50e3 - 3


def test_pieces_put_together_are_the_graph() -> None:
    graph = layers(30)
    parts = split_into_pieces(graph, roofline(), 20)
    assert len(parts) > 3
    again, _ = assemble(graph, parts, [p.graph for p in parts])
    assert again == graph


def test_equal_layers_are_one_piece() -> None:
    parts = split_into_pieces(layers(40), roofline(), 20)
    assert len({p.graph.outputs for p in parts}) < len(parts) / 2


def test_the_whole_search_keeps_the_values_and_its_log_repeats_it() -> None:
    graph = layers(6)
    rules = load_library()
    outcome = improve(
        graph, rules, roofline(), seconds=20, limits=Limits(max_graphs=60), refusals=Refusals()
    )
    best = outcome.variants[0]
    assert best.cost < roofline().graph_cost(graph)
    feeds = {"x": np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32)}
    np.testing.assert_allclose(
        evaluate(best.graph, feeds)[0], evaluate(graph, feeds)[0], rtol=1e-3, atol=1e-3
    )
    steps = replay(decisions_json(best.steps, rules, "m"), graph, rules, "m")
    assert steps[-1].after == best.graph
    assert [s.rule for s in steps] == [s.rule for s in best.steps]


def test_a_mask_from_an_earlier_piece_is_not_regrouped() -> None:
    (rule,) = (r for r in load_library() if r.name == "add-add--add-add")
    parts = split_into_pieces(masked(65), roofline(), 60)
    assert len(parts) == 2
    last = parts[-1].graph
    assert not list(find_moves(graph_context(last), rule_set([rule]), roofline(), Refusals()))
    refusals = Refusals()
    list(find_moves(graph_context(last), rule_set([rule]), roofline(), refusals))
    assert {reason for _, reason, _ in refusals.table} == {"rounding"}


def test_rewrites_that_need_each_others_results_are_not_applied_together() -> None:
    x = value("x", 2)
    a, b = op("Relu", x), op("Tanh", x)
    graph = ir_graph.Graph((x,), (a, b))
    with pytest.raises(ReplacementCycle):
        apply_together(graph, [{a: op("Neg", b)}, {b: op("Abs", a)}])


def test_replacing_everywhere_does_not_recurse() -> None:
    x = value("x", 2)
    v: ir_graph.Value = op("Neg", x)
    first = v
    for _ in range(20_000):
        v = op("Relu", v)
    changed = replace_all(ir_graph.Graph((x,), (v,)), {first: op("Abs", x)})
    assert [n.op.name for n in ir_graph.nodes(changed)][:2] == ["Abs", "Relu"]
    assert len(ir_graph.nodes(changed)) == 20_001


def test_a_weight_is_free_when_it_is_computed_from_constants() -> None:
    w = op("Transpose", weight(0, 4, 4), perm=(1, 0))
    x = value("x", 4, 4)
    costs = GraphCosts({}, table_cost_model({"MatMul": 5.0, "Transpose": 7.0}))
    assert costs.graph_cost(ir_graph.Graph((x,), (op("MatMul", x, w),))) == 5.0
