"""How many true equations `superopt verify` proves: by definition, and by proved rules.

    python scripts/bench_verify.py [--limit 10] [--theme pools] [--pairs] [--rules]

Equations: those of tests/equations, which were not made from what the prover knows; the false ones
must not be proved. --pairs: the pairs X and X_expanded of ONNX's own backend suite instead (the
package `onnx` holds them): an operator, and the function body that its specification gives. Prints
what is not proved and why, and a table; the exit status is 1 where something false is proved.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from bench_equations import equations, holds

from superopt.check.opaque_regions import opaque_nodes
from superopt.errors import SuperoptError
from superopt.ir.graph import Graph
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import read_model
from superopt.verification.model_interface import graph_on_inputs_of, interface_mismatch
from superopt.verification.rule_chains import find_rule_chain
from superopt.verifier.compare.regions import compare_graphs
from superopt.verifier.prove import Limits
from superopt.verifier.verdict import Unknown


def verdict(a: Graph, b: Graph, limit: float) -> str:
    """Why an output is not proved; empty where all are."""
    found = compare_graphs(a, b, Limits(seconds=limit), limit)
    return next((v.reason for v in found.outputs if isinstance(v, Unknown)), "")


def chained(a: Graph, b: Graph, limit: float) -> str:
    """Why an output does not follow by proved rules; empty where all do."""
    found = (find_rule_chain(a, b, n, limit, lambda: False) for n in range(len(a.outputs)))
    return next((f for f in found if isinstance(f, str)), "")


def pairs() -> Iterator[tuple[str, Graph, Graph]]:
    """The pairs of the backend suite that can be read, and whose operators have tensor expressions;
    prints how many there are of others."""
    from onnx.backend.test.loader import load_model_tests

    cases = {c.name: c.model for c in load_model_tests(kind="node")}
    skipped: Counter[str] = Counter()
    for name, expanded in cases.items():
        plain, found, version = name.partition("_expanded")
        if not found or plain not in cases:
            continue
        try:
            one, two = (import_model(read_model(m)) for m in (cases[plain], expanded))
        except SuperoptError as e:
            skipped[str(e)[:80]] += 1
            continue
        if opaque_nodes(one.graph) or opaque_nodes(two.graph):
            skipped["an operator has no tensor expression"] += 1
            continue
        graph = graph_on_inputs_of(one, two)
        if interface_mismatch(one, two) or graph is None:
            skipped["inputs or outputs differ"] += 1
            continue
        yield plain.removeprefix("test_") + version, one.graph, graph
    print(f"not among them: {dict(skipped)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", type=float, default=10.0, help="seconds for a pair")
    parser.add_argument("--theme", default="")
    parser.add_argument("--pairs", action="store_true")
    parser.add_argument(
        "--rules", action="store_true", help="where there is no proof by definition"
    )
    args = parser.parse_args()
    count: dict[str, list[int]] = {}
    wrong = False
    begin = time.perf_counter()
    if args.pairs:
        every = ((n, "pairs", a, b, True) for n, a, b in pairs())
    else:
        every = (
            (e.name, e.theme, e.left, e.right, e.true)
            for e in equations(args.theme)
            if holds(e) == e.true and not e.positive
        )
    for name, theme, a, b, true in every:
        why = verdict(a, b, args.limit)
        row = count.setdefault(theme, [0, 0, 0])
        row[0] += 1
        row[1] += not why
        if why and args.rules:
            why = chained(a, b, args.limit)
        row[2] += not why
        if not why and not true:
            print(f"PROVED, though false: {name}")
            wrong = True
        elif why and true:
            print(f"not proved: {theme}: {name} ({why[:200]})", flush=True)
    print("\n| theme | pairs | proved by definition | or by rules |\n|---|---|---|---|")
    for theme, (of, direct, yes) in count.items():
        print(f"| {theme} | {of} | {direct} | {yes} |")
    true_ones = [row for theme, row in count.items() if theme != "false"]
    of, direct, yes = (sum(row[k] for row in true_ones) for k in range(3))
    if of:
        print(f"\nof {of} true pairs {direct} proved by definition ({direct / of:.1%}),", end=" ")
        print(f"{yes} in either way ({yes / of:.1%}),", end=" ")
    print(f"{time.perf_counter() - begin:.0f} s")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
