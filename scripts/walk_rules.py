#!/usr/bin/env python3
"""Random walks: models rewritten by rules of the library at random, and compared in float64.

    scripts/walk_rules.py MODEL.onnx ... [--steps 1000] [--seed 0] [--each 25] [--rules REGEX]

A search takes what is cheaper; a walk takes anything, those rules first that it took least. So most
of the library meets what others have made, on a real graph. After every --each steps the outputs
are compared with the original's, element by element; a walk that went wrong says which step did it,
and goes on from before. Exit 1 if any did.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from superopt.check.random_inputs import random_feeds
from superopt.cost.graph_cost import GraphCosts, roofline_cost_model
from superopt.ir import graph as ir_graph
from superopt.ir.evaluate import evaluate
from superopt.loading.representative_sizes import representative_sizes
from superopt.loading.value_names import ValueNames
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.import_.model import Model
from superopt.onnx_io.read.source import read_model
from superopt.rules.lang.rule import Rule
from superopt.rules.library.load import load_library
from superopt.rules.match.graph_context import graph_context
from superopt.rules.trial.new_divisors import new_divisors
from superopt.search.move import Move, Refusals, find_moves
from superopt.search.rule_set import RuleSet, rule_set
from superopt.te.eval.domain import Reals
from superopt.te.expr.dtype import F64

# Of an element and a typical one. Constants are stored in float32: half a root of 2 is off by 1e-8.
ALLOWED = 1e-7
START = 12  # nodes that a place to go on is looked for at
STAY = 0.8  # how often a step is beside the one before

Arrays = Mapping[str, np.ndarray]


@dataclass(slots=True)
class Walk:
    """used: how often each rule was taken; farthest: of all that was compared and not wrong; wrong:
    what each wrong step was, and how far off."""

    used: Counter[str] = field(default_factory=Counter)
    farthest: float = 0.0
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0


def walk(model: Model, rules: RuleSet, steps: int, each: int, seed: int) -> Walk:
    """A random walk from a model."""
    rng, begin, out = random.Random(seed), time.monotonic(), Walk()
    costs, refusals = GraphCosts({}, roofline_cost_model(1)), Refusals()
    (feed,) = random_feeds(model.graph, representative_sizes(model, {}), seed, ("normal",))
    base = evaluate(model.graph, feed.arrays, Reals(F64))
    sure = now = model.graph
    path: list[tuple[Move, ir_graph.Graph]] = []
    near: list[ir_graph.Node] = []
    for k in range(steps):
        nodes = ir_graph.nodes(now)
        ctx, there = graph_context(now), set(nodes)
        some = list(
            find_moves(ctx, rules, costs, refusals, [n for n in near if n in there] or None)
        )
        if not near or not some:
            few = rng.sample(nodes, min(START, len(nodes)))
            some = list(find_moves(ctx, rules, costs, refusals, few))
        if some:
            move = _choice(some, out.used, rng)
            now = ir_graph.replace(now, move.change)
            path.append((move, now))
            made = [n for n in move.effect.added if not costs.is_constant(n)]
            near = made if rng.random() < STAY else []
        if (k + 1) % each and k + 1 < steps:
            continue
        far = off(now, feed.arrays, base)
        if far <= ALLOWED:
            sure, out.farthest = now, max(out.farthest, far)
        else:
            out.wrong.append(_blame(model, path, feed.arrays, base))
            now = sure
        path, near = [], []
    out.seconds = time.monotonic() - begin
    return out


def _choice(some: Sequence[Move], used: Counter[str], rng: random.Random) -> Move:
    """One of the rules that were taken least, anywhere."""
    by: dict[str, list[Move]] = defaultdict(list)
    for m in some:
        by[m.rule.name].append(m)
    name = min(by, key=lambda n: (used[n], rng.random()))
    used[name] += 1
    return rng.choice(by[name])


def off(graph: ir_graph.Graph, given: Arrays, base: Sequence[np.ndarray]) -> float:
    """How far the outputs are from `base` at most, in parts of an element and a typical one."""
    most = 0.0
    for a, b in zip(evaluate(graph, given, Reals(F64)), base, strict=True):
        if a.dtype.kind != "f":
            most = max(most, float((a != b).any()))
        elif not np.array_equal(np.isfinite(a), np.isfinite(b)):
            return float("inf")
        else:
            fine = np.isfinite(b)
            typical = np.sqrt(np.mean(np.square(b[fine]))) if fine.any() else 0.0
            scale = np.abs(b[fine]) + typical + np.finfo(np.float64).tiny
            most = max(most, float(np.max(np.abs(a[fine] - b[fine]) / scale, initial=0.0)))
    return most


def _blame(
    model: Model,
    path: Sequence[tuple[Move, ir_graph.Graph]],
    given: Arrays,
    base: Sequence[np.ndarray],
) -> str:
    """The first wrong step of a path, which ends wrong."""
    names = ValueNames(model.names)
    for move, after in path:
        far = off(after, given, base)
        if far > ALLOWED:
            before = "; ".join(names.term_text(v, 3) for v in move.change)
            made = "; ".join(names.term_text(v, 3) for v in move.change.values())
            return f"{move.rule.name} ({move.rule.source}), off by {far:.2g}: {before} => {made}"
    return "a step that cannot be seen again"


def usable() -> list[Rule]:
    """The rules of the library that `optimize` rewrites by."""
    return [r for r in load_library() if not new_divisors(r)]


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("models", nargs="+")
    p.add_argument("--steps", type=int, default=1000)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--each", type=int, default=25)
    p.add_argument("--rules", default="", help="only rules whose names match")
    args = p.parse_args()
    rules = rule_set(r for r in usable() if re.search(args.rules, r.name))
    every: Counter[str] = Counter()
    wrong = 0
    for path in args.models:
        found = walk(import_model(read_model(path)), rules, args.steps, args.each, args.seed)
        every += found.used
        wrong += len(found.wrong)
        steps = f"{found.used.total()} steps by {len(found.used)} rules in {found.seconds:.0f} s"
        off = f"at most {found.farthest:.1e} off; {len(found.wrong)} wrong"
        print(f"{path}: {steps}, {off}", flush=True)
        for line in found.wrong:
            print(f"  {line}")
    print(f"{every.total()} steps by {len(every)} of {len(rules.rules)} rules; {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
