#!/usr/bin/env python3
"""Random subgraphs that are rewritten by partial rules wherever these match, and checked.

    scripts/fuzz_partial.py [--count 1000] [--seed 0] [--compiled 10]

A subgraph is the program of a random pair at random sizes from 1 to 9, with something before and
after it. A partial rule is forced on it, then up to two others, of these or of all rules of the
library. Each result is compared with the original in float64, and a certificate of the steps is
made and replayed; every --compiled-th is compiled, too, and compared by the tolerance of models.
Exit 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import onnx_ir as oir

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import superopt
from scripts.walk_rules import ALLOWED, off, usable
from superopt.cost.graph_cost import GraphCosts, roofline_cost_model
from superopt.ir import graph as ir_graph
from superopt.ir.evaluate import evaluate
from superopt.ir.op import InferError
from superopt.onnx_io.export.exporter import ExportError, export_graph, export_model
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import read_model
from superopt.ops import OPS
from superopt.optimization.certificate import make_certificate
from superopt.partial.correct.generalize import graph_inputs
from superopt.partial.correct.partial_rules import load_pairs
from superopt.partial.correct.sized_pairs import pair_at, size_names
from superopt.rules.match.graph_context import graph_context
from superopt.search.move import Refusals, Step, find_moves
from superopt.search.rule_set import RuleSet, rule_set
from superopt.te.eval.domain import Reals
from superopt.te.expr.dtype import F64

OPSET, VERSION = 17, 8
BEFORE = AFTER = ("Relu", "Neg", "Tanh", "Identity")
RTOL, ATOL = 1e-4, 1e-5  # of an element, and of an output's root mean square


def subgraph(rng: random.Random) -> ir_graph.Graph | None:
    """The program of a pair with something before and after it; None where sizes do not fit."""
    pair = rng.choice(load_pairs())
    some = pair_at(pair, {n: rng.randint(1, 9) for n in size_names(pair)})
    if some is None:
        return None
    given = graph_inputs(some.program)
    change: dict[ir_graph.Value, ir_graph.Value] = {
        v: ir_graph.node(OPS[rng.choice(BEFORE)], [v]) for v in given if rng.random() < 0.4
    }
    whole = ir_graph.Graph(tuple(given), (some.program,))
    made = ir_graph.replace(whole, change).outputs[0] if change else some.program
    for _ in range(rng.randrange(3)):
        made = ir_graph.node(OPS[rng.choice(AFTER)], [made])
    return ir_graph.Graph(tuple(given), (made,))


def rewritten(
    graph: ir_graph.Graph, partial: RuleSet, every: RuleSet, rng: random.Random
) -> list[Step]:
    """A partial rule, and up to two more rewrites; no step where none matches."""
    costs, refusals = GraphCosts({}, roofline_cost_model(1)), Refusals()
    steps: list[Step] = []
    for rules in (partial, *rng.choices((partial, every), k=rng.randrange(3))):
        some = list(find_moves(graph_context(graph), rules, costs, refusals))
        if not some:
            break
        m = rng.choice(some)
        after = ir_graph.replace(graph, m.change)
        steps.append(Step(m.rule.name, None, m.change, m.effect.us, graph, after))
        graph = after
    return steps


def wrong(
    graph: ir_graph.Graph, partial: RuleSet, every: RuleSet, rng: random.Random, run: bool
) -> str | None:
    """What is wrong with a rewritten graph; "" where nothing is, None where no rule matched."""
    try:
        made = oir.to_proto(export_graph(graph, opset=OPSET, ir_version=VERSION))
    except ExportError:
        return None
    model = import_model(read_model(made))
    steps = rewritten(model.graph, partial, every, rng)
    if not steps:
        return None
    now = steps[-1].after
    values = np.random.default_rng(rng.randrange(2**32))
    given = {
        i.name: values.standard_normal([int(d) for d in i.type.shape or ()], np.float32)  # type: ignore[arg-type]
        for i in model.graph.inputs
    }
    base = evaluate(model.graph, given, Reals(F64))
    names = ", ".join(s.rule for s in steps)
    if (far := off(now, given, base)) > ALLOWED:
        return f"{names}: off by {far:.2g}"
    try:
        file = read_model(export_model(model, now))
        make_certificate(model, file, steps, every.rules)
    except ExportError:
        return None
    except superopt.SuperoptError as e:
        return f"{names}: {e}"
    if run:
        for got, want in zip(superopt.compile(file.model).run(given).values(), base, strict=True):
            rms = float(np.sqrt(np.mean(np.square(want)))) if want.size else 0.0
            if not np.allclose(got, want, RTOL, ATOL * rms + 1e-30):
                return f"{names}: compiled, off by {np.abs(got - want).max():.2g}"
    return ""


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--count", type=int, default=1000)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--compiled", type=int, default=10, help="every so many are compiled")
    given = options.parse_args()
    rules = usable()
    partial, every = rule_set(r for r in rules if r.is_from_pair), rule_set(rules)
    found: Counter[str] = Counter()
    done, begin, rng = 0, time.monotonic(), random.Random(given.seed)
    while done < given.count:
        graph = subgraph(rng)
        if graph is None:
            continue
        try:
            said = wrong(graph, partial, every, rng, done % given.compiled == 0)
        except InferError:
            continue
        if said is None:
            continue
        done += 1
        found["wrong" if said else "right"] += 1
        if said:
            print(said, flush=True)
    print(f"{dict(found)} of {done} subgraphs in {time.monotonic() - begin:.0f} s")
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
