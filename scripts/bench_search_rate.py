#!/usr/bin/env python3
"""How many graphs a second the search visits and prices: on the first piece of a real model.

    scripts/bench_search_rate.py [MODEL.onnx ...] [--graphs 5000] [--plans]

A graph is visited when it was built, compared with all others and matched. It is priced when its
cost is known. Costs are estimates (roofline), so nothing is measured in between: of nodes, or with
`--plans` of the kernels of plans for this processor. These are searched twice: cold, when nothing
was planned before, and warm, when all was. `--plans --climb` times the first round of hill climbing
over the whole model instead, which prices every rewrite. Without models the two that come with the
package are used.

Times are those of the processor in this process, without loading rules.
"""

from __future__ import annotations

import argparse
import time

from superopt.cost.graph_cost import GraphCosts, roofline_cost_model
from superopt.ir import graph as ir_graph
from superopt.kernels.runtime.cpu import host
from superopt.loading.representative_sizes import representative_sizes
from superopt.onnx_io.export.exporter import is_expressible
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.import_.model import Model
from superopt.onnx_io.read.source import ModelLike, read_model
from superopt.onnx_io.read.weightless import demo_models
from superopt.plan.program.plan import Settings
from superopt.plan.timing.kernel_times import CpuKernelTimes
from superopt.plan.timing.plan_kernels import PlanKernels
from superopt.plan.timing.turns import TurnTimer
from superopt.rules.lang.term import App, walk
from superopt.rules.library.load import load_library
from superopt.search.backtrack import Limits, search
from superopt.search.free_rules import apply_free_rules
from superopt.search.hill_climb import hill_climb
from superopt.search.move import Refusals
from superopt.search.partition import MAX_PIECE_NODES, split_into_pieces
from superopt.search.plan_costs import PlanCosts
from superopt.search.rule_set import RuleSet, rule_set

WARM_UP_GRAPHS = 200


def expressible_rules(model: Model) -> RuleSet:
    """Return the rules whose results the model's opset has."""
    return rule_set(
        r
        for r in load_library()
        if all(
            is_expressible(p.op, model.opset) for t in r.rhs for p in walk(t) if isinstance(p, App)
        )
    )


def plan_costs(model: Model) -> PlanCosts:
    """Return the predicted costs of plans for one thread of this processor."""
    machine = host()
    times = CpuKernelTimes(TurnTimer(machine, 1, 1e-5), can_measure=False)
    settings = Settings(machine.width, processor=machine.processor)
    sizes = representative_sizes(model, {})
    planner = PlanKernels(settings, times, sizes)
    return PlanCosts(sizes, roofline_cost_model(1), planner=planner)


def visit(piece: ir_graph.Graph, rules: RuleSet, costs: GraphCosts, graphs: int) -> str:
    """Return how many graphs a search visited, and priced, in how many seconds."""
    limits = Limits(max_graphs=graphs, patience=graphs, seconds=600)
    before = costs.priced_count if isinstance(costs, PlanCosts) else 0
    begin = time.process_time()
    found = search(piece, rules, costs, limits, Refusals())
    seconds = time.process_time() - begin
    line = f"{found.visited} graphs in {seconds:.1f} s, {found.visited / seconds:.0f} a second"
    if isinstance(costs, PlanCosts):
        priced = costs.priced_count - before
        line += f"; {priced} priced, {priced / seconds:.0f} a second; cost {found.cost:.1f}"
    return line


def measure(name: str, given: ModelLike, graphs: int, plans: bool, climbs: bool) -> None:
    """Print the rates of a model."""
    model = import_model(read_model(given))
    rules = expressible_rules(model)
    estimates = GraphCosts(representative_sizes(model, {}), roofline_cost_model(1))
    start = model.graph
    if plans:
        free = plan_costs(model).plans.free_rules
        start, _ = apply_free_rules(start, rules.select(lambda r: r.name in free))
        rules = rules.select(lambda r: r.name not in free)
    piece = split_into_pieces(start, estimates, MAX_PIECE_NODES)[0].graph
    nodes = sum(not estimates.is_constant(n) for n in ir_graph.nodes(piece))
    visit(piece, rules, estimates, WARM_UP_GRAPHS)
    if not plans:
        print(f"{name}: {nodes} nodes, {visit(piece, rules, estimates, graphs)}")
        return
    costs = plan_costs(model)
    if climbs:
        begin = time.process_time()
        _, _, priced = hill_climb(start, rules, costs, Refusals(), stop=lambda: False, max_rounds=1)
        seconds = time.process_time() - begin
        rate = f"{priced / seconds:.0f} a second"
        print(f"{name}: {priced} rewrites priced in {seconds:.1f} s, {rate}", flush=True)
        return
    for label in ("cold", "warm"):
        line = visit(piece, rules, costs, graphs)
        print(f"{name}, {label}: {nodes} nodes, {line}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*")
    parser.add_argument("--graphs", type=int, default=5000)
    parser.add_argument("--plans", action="store_true")
    parser.add_argument("--climb", action="store_true")
    args = parser.parse_args()
    given: dict[str, ModelLike] = {m: m for m in args.models}
    if not given:
        given = {name: draw() for name, draw in demo_models().items()}
    for name, model in given.items():
        measure(name, model, args.graphs, args.plans or args.climb, args.climb)


if __name__ == "__main__":
    main()
