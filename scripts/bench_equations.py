"""How many equations that the library was not made from follow from it: tests/equations.

    python scripts/bench_equations.py [--limit 5] [--theme pools] [--generated]

Each pair is evaluated first, on random inputs in float64: a true equation must hold, a false one
must not. Then `derive` has so many seconds for it. Prints what is missed, and a table; the exit
status is 1 where a false one is derived, or a text is not what it says.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from superopt.ir.evaluate import evaluate
from superopt.ir.graph import Graph
from superopt.ir.substitute import replace_all
from superopt.ir.text import parse_graph
from superopt.ops import OPS
from superopt.rules.library.load import load_library
from superopt.rules.match.derive import Derived, DeriveLimits, derive
from superopt.rules.match.rule_index import RuleIndex
from superopt.te.eval.domain import Reals
from superopt.te.expr.dtype import BOOL, F64
from superopt.verification.derivation import MAX_GRAPHS, MAX_STEPS, without_const_conditions

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "equations"
DRAWS = 3
NEAR = 1e-4  # constants are float32, of which roots and thirds are rounded


@dataclass(frozen=True, slots=True)
class Equation:
    """Two graphs over the same inputs; are they equal, or equal on positive inputs?"""

    name: str
    theme: str
    left: Graph
    right: Graph
    true: bool
    positive: bool


def equations(theme: str = "") -> Iterator[Equation]:
    """Those of a theme, or all."""
    for path in sorted(FOLDER.glob("*.txt")):
        if theme in ("", path.stem):
            for block in path.read_text(encoding="utf-8").split("== ")[1:]:
                head, inputs, body = block.split("\n", 2)
                yield _equation(head, path.stem, inputs.replace("; ", "\n"), *body.split("--\n"))


def _equation(head: str, theme: str, inputs: str, left: str, right: str) -> Equation:
    a, b = (parse_graph(f"graph {{\n{inputs}\n{text}}}\n", OPS) for text in (left, right))
    same = dict(zip(b.inputs, a.inputs, strict=True))
    b = Graph(a.inputs, replace_all(b, same).outputs)
    name, _, said = head.partition(" (")
    return Equation(name, theme, a, b, theme != "false", "positive inputs" in said)


def holds(e: Equation) -> bool:
    """Are both sides equal on random inputs?"""
    for seed in range(DRAWS):
        rng = np.random.default_rng(seed)
        feeds = {}
        for i in e.left.inputs:
            shape = tuple(int(d) for d in i.type.shape or () if isinstance(d, int))
            sign = 1 if e.positive else rng.choice([-1, 1], shape)
            if i.type.dtype is not None and i.type.dtype.is_float:
                feeds[i.name] = (rng.uniform(0.3, 1.7, shape) * sign).astype(np.float32)
            elif i.type.dtype is BOOL:
                feeds[i.name] = rng.integers(0, 2, shape).astype(np.bool_)
            else:
                feeds[i.name] = np.asarray(rng.integers(1, 8, shape) * sign, np.int64)
        sides = [evaluate(graph, feeds, Reals(F64)) for graph in (e.left, e.right)]
        for x, y in zip(*sides, strict=True):
            if x.shape != y.shape or not np.allclose(x, y, NEAR, NEAR, equal_nan=True):
                return False
    return True


def library(generated: bool) -> RuleIndex:
    """All rules, or the generated ones alone."""
    return RuleIndex(
        without_const_conditions(
            r for r in load_library() if not generated or r.origin == "generated"
        )
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", type=float, default=5.0)
    parser.add_argument("--theme", default="")
    parser.add_argument("--generated", action="store_true", help="generated rules only")
    args = parser.parse_args()
    index = library(args.generated)
    bounds = DeriveLimits(MAX_STEPS, max_graphs=MAX_GRAPHS, max_seconds=args.limit)
    count: dict[str, list[int]] = {}
    wrong = False
    begin = time.perf_counter()
    for e in equations(args.theme):
        if holds(e) != e.true:
            print(f"{e.theme}: {e.name} is said to be {e.true}, and is not")
            wrong = True
            continue
        found = derive(e.left, e.right, index, bounds)
        yes = isinstance(found, Derived)
        row = count.setdefault(e.theme, [0, 0])
        row[0] += yes
        row[1] += 1
        if yes and not e.true:
            by = ", ".join(k.rule for k in (*found.forward, *found.backward))
            print(f"DERIVED, though false: {e.name} by {by}")
            wrong = True
        elif e.true and not yes:
            why = f"{found.reason}, {found.visited:,} graphs"
            print(f"missed: {e.theme}: {e.name} ({why})", flush=True)
    print("\n| theme | equations | derived |\n|---|---|---|")
    for theme, (yes, every) in count.items():
        print(f"| {theme} | {every} | {yes} |")
    true = [row for theme, row in count.items() if theme != "false"]
    derived, every = (sum(row[k] for row in true) for k in (0, 1))
    if every:
        print(f"\n{derived} of {every} true equations derived: {derived / every:.1%},", end=" ")
    print(f"{time.perf_counter() - begin:.0f} s")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
