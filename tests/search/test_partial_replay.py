"""Steps of a search repeated without some of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from superopt.cost.graph_cost import GraphCosts, roofline_cost_model
from superopt.ir import graph as ir_graph
from superopt.ir.evaluate import evaluate
from superopt.rules.lang.rule import Rule, parse_rules
from superopt.rules.library.load import load_library
from superopt.search.backtrack import Limits
from superopt.search.improve import improve
from superopt.search.move import Refusals, Step
from superopt.search.partial_replay import NotReplayable, StepReplay
from tests.support.ir.graphs import attention, layers, op, reusing, separable, siblings, value

RULES = {r.name: r for r in load_library()}
GRAPHS = {
    "attention": attention(), "layers": layers(2), "siblings": siblings(3),
    "separable": separable(4), "reusing": reusing(2),
}  # fmt: skip
CHAIN = """
relu-relu(x: f): Relu(Relu(x)) => Relu(x)
neg-neg(x: f): Neg(Neg(x)) => x
"""


def found_steps(graph: ir_graph.Graph) -> tuple[Step, ...]:
    costs = GraphCosts({}, roofline_cost_model(1))
    done = improve(
        graph, list(RULES.values()), costs, seconds=20.0, limits=Limits(1.05, seconds=2.0),
        refusals=Refusals(),
    )  # fmt: skip
    return max(done.variants, key=lambda v: len(v.steps)).steps


def results(graph: ir_graph.Graph) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    feeds = {}
    for i in graph.inputs:
        assert i.type.shape is not None
        feeds[i.name] = rng.standard_normal([int(str(d)) for d in i.type.shape]).astype(np.float32)
    return [np.asarray(v) for v in evaluate(graph, feeds)]


def check_equal(a: ir_graph.Graph, b: ir_graph.Graph) -> None:
    for x, y in zip(results(a), results(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_any_subset_of_the_steps_keeps_the_values(graph: ir_graph.Graph) -> None:
    steps = found_steps(graph)
    assert len(steps) > 2
    replay = StepReplay(steps, RULES)
    everything = frozenset(range(len(steps)))
    assert replay.leave_out(frozenset()).graph == steps[-1].after
    assert replay.leave_out(everything).graph == graph
    rng = np.random.default_rng(1)
    subsets = [frozenset(n for n in everything if rng.random() < 0.4) for _ in range(6)]
    by_rule = [
        frozenset(n for n, s in enumerate(steps) if s.rule == rule)
        for rule in dict.fromkeys(s.rule for s in steps)
    ]
    for left_out in filter(None, (*subsets, *by_rule)):
        found = replay.leave_out(left_out)
        assert left_out.isdisjoint(found.dependent)
        assert found.graph != steps[-1].after
        check_equal(found.graph, graph)


def chain() -> tuple[ir_graph.Graph, list[Step], Mapping[str, Rule]]:
    """Two steps that do not touch each other."""
    rules = {r.name: r for r in parse_rules(CHAIN, "chain.rules")}
    x, z = value("x", 4), value("z", 4)
    left, right = op("Relu", op("Relu", op("Neg", x))), op("Neg", op("Neg", z))
    graphs = [ir_graph.Graph((x, z), (left, right))]
    steps: list[Step] = []

    def apply(rule: str, old: ir_graph.Value, new: ir_graph.Value) -> None:
        before = graphs[-1]
        after = ir_graph.replace(before, {old: new})
        graphs.append(after)
        steps.append(Step(rule, None, {old: new}, -1.0, before, after))

    single = op("Relu", op("Neg", x))
    apply("relu-relu", left, single)
    apply("neg-neg", right, z)
    return graphs[0], steps, rules


def test_the_other_steps_stay() -> None:
    start, steps, rules = chain()
    replay = StepReplay(steps, rules)
    x, z = start.inputs
    assert replay.leave_out({0}).graph == ir_graph.Graph((x, z), (start.outputs[0], z))
    assert replay.leave_out({0}).dependent == ()
    assert replay.leave_out({1}).graph.outputs[1] == start.outputs[1]
    assert replay.leave_out({1}).graph.outputs[0] == steps[0].after.outputs[0]


def test_a_step_that_needs_one_that_is_left_out_is_left_out() -> None:
    x = value("x", 4)
    rules = {
        r.name: r
        for r in parse_rules(
            "abs-neg(x: f): Abs(Neg(x)) => Abs(x)\nabs-abs(x: f): Abs(Abs(x)) => Abs(x)", "m.rules"
        )
    }
    start = ir_graph.Graph((x,), (op("Abs", op("Neg", op("Abs", x))),))
    middle = ir_graph.Graph((x,), (op("Abs", op("Abs", x)),))
    end = ir_graph.Graph((x,), (op("Abs", x),))
    first = Step("abs-neg", None, {start.outputs[0]: middle.outputs[0]}, -1.0, start, middle)
    second = Step("abs-abs", None, {middle.outputs[0]: end.outputs[0]}, -1.0, middle, end)
    replay = StepReplay([first, second], rules)
    found = replay.leave_out({0})
    assert found.dependent == (1,)
    assert found.graph == start
    assert replay.leave_out({1}).graph == middle
    assert replay.leave_out({1}).dependent == ()


def test_steps_that_do_not_follow_from_each_other_are_refused() -> None:
    _, steps, rules = chain()
    wrong = replace(steps[1], after=steps[0].before)
    with pytest.raises(NotReplayable, match="step 2, neg-neg"):
        StepReplay([steps[0], wrong], rules)
