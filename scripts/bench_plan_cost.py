#!/usr/bin/env python3
"""Are plans priced as the clock has it? The table of docs/benchmarks/plan_cost.md.

    scripts/bench_plan_cost.py --models ../shared/models [--graphs 40] [--only squeezenet1_1,...]

For each model so many graphs are made by 1 to 6 rewrites of the library at random places, of those
that change a kernel. Each is compiled and timed in turns with the original in one process, by the
time of the thread. Predicted is the ratio of the costs of the plans (`PlanCosts.graph_cost`), with
kernels measured one by one; *unmeasured*: with the kernels that only the new graph has predicted
from those of the original.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from json_rows import json_rows

from superopt.compilation.cpu.load_compiler import compile_model
from superopt.compilation.model.executable import Executable
from superopt.compilation.node_timing import make_planner, random_inputs
from superopt.cost.graph_cost import roofline_cost_model
from superopt.cost.machine import this_machine
from superopt.cost.store import Store
from superopt.ir import graph as ir_graph
from superopt.ir.constant_folding import fold_constants
from superopt.ir.substitute import ReplacementCycle
from superopt.loading.model import load_model
from superopt.loading.rule_library import load_library
from superopt.onnx_io.export.exporter import ExportError, export_model
from superopt.onnx_io.import_.model import Model
from superopt.onnx_io.read.source import read_model
from superopt.onnx_io.read.weightless import draw_weights
from superopt.rules.match.graph_context import graph_context
from superopt.search.cost_delta import apply_together
from superopt.search.move import Refusals, find_moves
from superopt.search.plan_costs import PlanCosts
from superopt.search.rule_set import RuleSet, rule_set

MAX_REWRITES = 6
ROUNDS = 24
CLEAR = 0.03  # difference of ratios from 1, from which on the sign counts
HEAD = """# Costs of plans and the clock

By `scripts/bench_plan_cost.py --graphs {graphs}`, on {machine},
one thread, {date}. Graphs are made by 1 to {most} rewrites of the library at random places, of
those that change a kernel. *measured*: costs of the plans with all kernels measured one by one.
*predicted*: with kernels that only the new graph has predicted. *rank*: correlation of ranks
(Spearman) with the ratios of whole models, timed in turns. *signs*: of the graphs that differ by
more than {clear:.0%}, those whose cost says so, too.

| model | graphs | clear | rank, measured | signs, measured | rank, predicted | signs, predicted |
|---|---|---|---|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class Row:
    """Costs of a rewritten graph over those of the original: with measured and with predicted
    kernels, and by the clock."""

    model: str
    rules: list[str]
    measured: float
    predicted: float
    clock: float


def rewritten_graphs(
    graph: ir_graph.Graph, rules: RuleSet, costs: PlanCosts, count: int, seed: int
) -> Iterator[tuple[ir_graph.Graph, list[str]]]:
    """Yield graphs after rewrites at random places."""
    rng = random.Random(seed)
    moves = [
        m
        for m in find_moves(graph_context(graph), rules, costs, Refusals())
        if m.effect.cost.added_us or m.effect.cost.removed_us
    ]
    seen = {graph}
    for _ in range(20 * count):
        taken: set[ir_graph.Node] = set()
        chosen = []
        for m in rng.sample(moves, min(len(moves), 4 * MAX_REWRITES)):
            if not taken & set(m.effect.removed) and not taken & set(m.match.nodes):
                chosen.append(m)
                taken |= {*m.effect.removed, *m.match.nodes}
        chosen = chosen[: rng.randint(1, MAX_REWRITES)]
        if not chosen:
            return
        try:
            after = apply_together(graph, [m.change for m in chosen])
        except ReplacementCycle:
            continue
        if after not in seen:
            seen.add(after)
            yield after, [m.rule.name for m in chosen]
        if len(seen) > count:
            return


def time_ratio(exe: Executable, other: Executable) -> float:
    """Return the time of `other` over that of `exe`, in turns."""
    ratios = []
    pairs = [(e, random_inputs(e)) for e in (exe, other)]
    for e, feeds in pairs:
        e.run(feeds)
    for _ in range(ROUNDS):
        times = []
        for e, feeds in pairs:
            begin = time.thread_time()
            e.run(feeds)
            times.append(time.thread_time() - begin)
        ratios.append(times[1] / times[0])
    return statistics.median(ratios)


def compile_graph(model: Model, graph: ir_graph.Graph) -> Executable:
    return compile_model(read_model(export_model(model, fold_constants(graph).graph)))


def measure(path: Path, count: int, rules: RuleSet, seed: int) -> Iterator[Row]:
    """Yield a row for each rewritten graph of a model."""
    model = load_model(read_model(draw_weights(path))).model
    with Store.in_memory() as store:
        planner = make_planner(
            threads=1, sizes={}, float_class="E2", store=store, is_over=lambda: False
        )
        costs = PlanCosts({}, roofline_cost_model(1), planner=planner)
        before = costs.graph_cost(model.graph)
        original = compile_graph(model, model.graph)
        for graph, names in rewritten_graphs(model.graph, rules, costs, count, seed):
            predicted = costs.operator_cost(graph) / before
            try:
                other = compile_graph(model, graph)
            except ExportError:
                continue
            measured = costs.graph_cost(graph) / before
            yield Row(path.stem, names, measured, predicted, time_ratio(original, other))


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Return Spearman's rank correlation."""
    if len(a) < 3:
        return float("nan")
    ranks = np.array([np.argsort(np.argsort(x)) for x in (a, b)])
    return float(np.corrcoef(ranks)[0, 1])


def table(rows: Sequence[Row], graphs: int) -> str:
    """Return the page."""

    def line(name: str, some: Sequence[Row]) -> str:
        clear = [r for r in some if abs(r.clock - 1) > CLEAR]
        cells = [name, str(len(some)), str(len(clear))]
        for kind in ("measured", "predicted"):
            costs = [getattr(r, kind) for r in some]
            right = sum((getattr(r, kind) > 1) == (r.clock > 1) for r in clear)
            cells.append(f"{rank_correlation(costs, [r.clock for r in some]):.2f}")
            cells.append(f"{right / len(clear):.0%}" if clear else "-")
        return f"| {' | '.join(cells)} |"

    names = dict.fromkeys(r.model for r in rows)
    lines = [line(name, [r for r in rows if r.model == name]) for name in names]
    head = HEAD.format(
        graphs=graphs, machine=this_machine().text, date=time.strftime("%Y-%m-%d"),
        most=MAX_REWRITES, clear=CLEAR,
    )  # fmt: skip
    return head + "\n".join([*lines, line("all", rows)]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--graphs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="the .json file; the page is beside it")
    given = parser.parse_args()
    rules = rule_set(load_library())
    wanted = [x for x in given.only.split(",") if x]
    rows: list[Row] = []
    for path in sorted(given.models.glob("*.onnx")):
        if wanted and path.stem not in wanted:
            continue
        for row in measure(path, given.graphs, rules, given.seed):
            rows.append(row)
            print(row, flush=True)
        if given.out:
            given.out.write_text(json_rows([asdict(r) for r in rows], 2))
            given.out.with_suffix(".md").write_text(table(rows, given.graphs))
    print(table(rows, given.graphs))


if __name__ == "__main__":
    main()
