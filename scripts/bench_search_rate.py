#!/usr/bin/env python3
"""How many graphs a second the search visits: on the first 60 nodes of a real model.

    scripts/bench_search_rate.py [MODEL.onnx ...] [--graphs 5000]

A graph counts when it was built, compared with all others and matched; rewrites only priced
do not. Costs are estimates (roofline), so nothing is measured in between. Without
arguments the two models that come with the package are used.
"""

from __future__ import annotations

import argparse
import time

from superopt.cost.graph_cost import GraphCosts, roofline_cost_model
from superopt.ir import graph
from superopt.loading.representative_sizes import representative_sizes
from superopt.onnx_io.export.exporter import is_expressible
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import ModelLike, read_model
from superopt.onnx_io.read.weightless import demo_models
from superopt.rules.lang.term import App, walk
from superopt.rules.library.load import load_library
from superopt.search.backtrack import Limits, SearchResult, search
from superopt.search.move import Refusals
from superopt.search.partition import split_into_pieces
from superopt.search.rule_set import rule_set

NODES = 60


def visit(model: ModelLike, graphs: int) -> tuple[int, SearchResult, float]:
    """(nodes of the piece, what the search found, seconds), after a warm-up of 200 graphs."""
    imported = import_model(read_model(model))
    costs = GraphCosts(representative_sizes(imported, {}), roofline_cost_model(1))
    rules = rule_set(
        r
        for r in load_library()
        if all(
            is_expressible(p.op, imported.opset)
            for t in r.rhs
            for p in walk(t)
            if isinstance(p, App)
        )
    )
    piece = split_into_pieces(imported.graph, costs, NODES)[0].graph
    limits = Limits(max_graphs=graphs, patience=graphs, seconds=600)
    search(piece, rules, costs, Limits(max_graphs=200, patience=200, seconds=60), Refusals())
    begin = time.perf_counter()
    found = search(piece, rules, costs, limits, Refusals())
    return len(graph.nodes(piece)), found, time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*")
    parser.add_argument("--graphs", type=int, default=5000)
    args = parser.parse_args()
    given: dict[str, ModelLike] = {m: m for m in args.models}
    if not given:
        given = {name: draw() for name, draw in demo_models().items()}
    for name, model in given.items():
        nodes, found, seconds = visit(model, args.graphs)
        rate = found.visited / seconds
        print(
            f"{name}: {nodes} nodes, {found.visited} graphs in {seconds:.1f} s, {rate:.0f} a second"
        )


if __name__ == "__main__":
    main()
