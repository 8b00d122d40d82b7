"""Costs by plans: planning around a rewrite gives what planning both graphs gives."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import pytest

from superopt.cost.graph_cost import ChangeCost, Replacement, roofline_cost_model
from superopt.cost.planner import KernelCounts
from superopt.ir import graph as ir_graph
from superopt.kernels.runtime.cpu import host
from superopt.plan.program.plan import Settings
from superopt.plan.timing.kernel_times import CpuKernelTimes
from superopt.plan.timing.plan_kernels import PlanKernels
from superopt.plan.timing.turns import TurnTimer
from superopt.rules.lang.rule import parse_rules
from superopt.rules.library.load import load_library
from superopt.rules.match.graph_context import graph_context
from superopt.search.backtrack import Limits
from superopt.search.cost_delta import apply_together
from superopt.search.free_rules import apply_free_rules
from superopt.search.hill_climb import hill_climb
from superopt.search.improve import improve
from superopt.search.move import Refusals, find_moves
from superopt.search.plan_costs import PART_NODES, PlanCosts
from superopt.search.rule_set import rule_set
from tests.support.ir.graphs import attention, layers, op, separable, siblings, value

LIBRARY = rule_set(load_library())
GRAPHS = {
    "layers": layers(2), "siblings": siblings(3), "separable": separable(6),
    "attention": attention(),
}  # fmt: skip


def planner() -> PlanKernels:
    machine = host()
    settings = Settings(machine.width, processor=machine.processor)
    return PlanKernels(settings, CpuKernelTimes(TurnTimer(machine, 1, 1e-5)), is_over=lambda: True)


def plan_costs() -> PlanCosts:
    return PlanCosts({}, roofline_cost_model(1), planner=planner())


class TablePlanner:
    """Counts the operators of a graph as its kernels; their times are in a table."""

    def __init__(self, us: dict[str, float], measured: dict[str, float]) -> None:
        self.predicted, self.real, self.known = us, measured, dict[str, float]()
        self.measured_count = self.store_hits = self.estimated_count = 0
        self.free_rules, self.has_streams = (), False
        self.pairs: list[tuple[KernelCounts, KernelCounts]] = []

    def kernels_of(self, graph: ir_graph.Graph) -> KernelCounts | None:
        names = [n.op.name for n in ir_graph.nodes(graph)]
        return None if "Sin" in names else {n: names.count(n) for n in names}

    def plan_us(self, graph: ir_graph.Graph) -> float:
        return sum(n * self.us(k) for k, n in (self.kernels_of(graph) or {}).items())

    def us(self, key: str) -> float:
        return self.known.get(key, self.predicted.get(key, 1.0))

    def measure(self, keys: Iterable[str]) -> bool:
        self.known |= {k: self.real.get(k, self.us(k)) for k in keys}
        return True

    def compare(self, old: KernelCounts, new: KernelCounts) -> None:
        self.pairs.append((old, new))

    def known_ratio(self, old: KernelCounts, new: KernelCounts) -> float | None:
        return None


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_planning_around_a_rewrite_gives_what_planning_both_graphs_gives(
    graph: ir_graph.Graph,
) -> None:
    costs = plan_costs()
    ctx = graph_context(graph)
    before = costs.operator_cost(graph)
    some = 0
    for move in islice(find_moves(ctx, LIBRARY, costs, Refusals()), 40):
        wanted = costs.operator_cost(apply_together(graph, [move.change])) - before
        assert move.effect.us == pytest.approx(wanted, abs=1e-6), move.rule.name
        some += 1
    assert some > 5


@pytest.mark.parametrize(("real", "gains"), [(60.0, True), (400.0, False)])
def test_a_predicted_gain_is_measured_before_it_counts(real: float, gains: bool) -> None:
    rules = parse_rules("wrong(x: f): Neg(Abs(x)) => Relu(x)")
    x = value("x", 8, 16)
    graph = ir_graph.Graph((x,), (op("Neg", op("Abs", x)),))
    table = TablePlanner({"Neg": 50.0, "Abs": 50.0, "Relu": 60.0}, {"Relu": real})
    costs = PlanCosts({}, roofline_cost_model(1), planner=table)
    done = improve(graph, rules, costs, seconds=20.0, limits=Limits(), refusals=Refusals())
    assert (done.variants[0].graph != graph) == gains
    assert "Relu" in table.known
    assert bool(table.pairs) == gains  # a gain is timed in turns, too


def test_a_rewrite_to_an_operator_without_a_kernel_is_no_move() -> None:
    x = value("x", 8, 16)
    graph = ir_graph.Graph((x,), (op("Sin", op("Neg", op("Neg", x))),))
    costs = PlanCosts({}, roofline_cost_model(1), planner=TablePlanner({}, {}))
    assert not list(find_moves(graph_context(graph), LIBRARY, costs, Refusals()))
    assert costs.graph_cost(graph) == 0.0


class StreamsPlanner(TablePlanner):
    """Each kernel has a launch of 1 us, but a run takes `run_us` for each Relu instead."""

    def __init__(self, run_us: float) -> None:
        super().__init__({}, {})
        self.has_streams, self.run_us = True, run_us

    def plan_us(self, graph: ir_graph.Graph) -> float:
        return 10.0 + self.run_us * (self.kernels_of(graph) or {}).get("Relu", 0)


@pytest.mark.parametrize(("run_us", "gains"), [(-1.0, True), (1.0, False), (0.0, False)])
def test_with_streams_the_time_of_a_run_must_fall(run_us: float, gains: bool) -> None:
    """Fewer kernels are not enough: they may wait for each other."""
    rules = parse_rules("wrong(x: f): Neg(Abs(x)) => Relu(x)")
    x = value("x", 8, 16)
    graph = ir_graph.Graph((x,), (op("Neg", op("Abs", op("Exp", x))),))
    costs = PlanCosts({}, roofline_cost_model(1), has_streams=True, planner=StreamsPlanner(run_us))
    done = improve(graph, rules, costs, seconds=20.0, limits=Limits(), refusals=Refusals())
    best = done.variants[0]
    assert (best.graph != graph) == gains
    assert best.cost == (9.0 if gains else 10.0)
    climbed, _, _ = hill_climb(graph, rule_set(rules), costs, Refusals(), stop=lambda: False)
    assert (climbed != graph) == gains


def test_rules_that_the_compiler_applies_anyway_come_first() -> None:
    rules = parse_rules("fold(x: f): Neg(Neg(x)) => Abs(x)\nmerge(x: f): Exp(Abs(x)) => Relu(x)")
    x = value("x", 8, 16)
    graph = ir_graph.Graph((x,), (op("Exp", op("Neg", op("Neg", x))),))
    table = TablePlanner({"Abs": 2.0}, {"Abs": 2.0})  # costs as much as what it replaces
    outcomes = []
    for free in ((), ("fold",)):
        costs = PlanCosts({}, roofline_cost_model(1), free_rules=free, planner=table)
        done = improve(
            graph, rules, costs, seconds=20.0, limits=Limits(alpha=1.0), refusals=Refusals()
        )
        outcomes.append([s.rule for s in done.variants[0].steps])
    assert outcomes == [[], ["fold", "merge"]]
    made, steps = apply_free_rules(graph, rule_set(rules[:1]))
    assert [s.rule for s in steps] == ["fold"]
    assert made == steps[0].after


def test_rewrites_that_gain_by_the_sum_are_priced_first() -> None:
    x = value("x", 64, 64)
    graph = ir_graph.Graph((x,), (op("Abs", op("Neg", op("Neg", x))),))
    rules = rule_set(
        parse_rules(
            "longer(x: f): Abs(x) => Sqrt(Mul(x, x))\nshorter(x: f): Neg(Neg(x)) => x\n", "test"
        )
    )
    priced: list[str] = []

    class Costs(PlanCosts):
        def change_cost(self, r: Replacement) -> ChangeCost | None:
            priced.append("more" if r.added else "less")
            return super().change_cost(r)

    costs = Costs({}, roofline_cost_model(1), planner=TablePlanner({}, {}))
    moves = [m.rule.name for m in find_moves(graph_context(graph), rules, costs, Refusals())]
    assert moves == ["shorter", "longer"]
    assert priced == ["less", "more"]


def test_a_graph_without_a_plan_is_priced_in_parts() -> None:
    x = value("x", 4)
    v: ir_graph.Value = op("Sin", x)
    for _ in range(PART_NODES + 9):
        v = op("Neg", v)
    graph = ir_graph.Graph((x,), (v,))
    costs = PlanCosts({}, roofline_cost_model(1), planner=TablePlanner({"Neg": 2.0}, {}))
    assert costs.kernels_of(graph) == {"Neg": 10}  # those behind the part with the sine
    assert costs.run_cost(graph) == 20.0


def test_equal_layers_are_planned_once_where_a_graph_has_no_plan_as_a_whole() -> None:
    costs = plan_costs()
    parts = costs._parts(layers(24, 512), PART_NODES)
    assert len(parts) > 1
    sizes = {len(ir_graph.nodes(p)) for p in parts[:-1]}
    assert max(sizes) <= PART_NODES
    assert len({p.outputs for p in parts[:-1]}) == 1
