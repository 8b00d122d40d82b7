"""Make rules of the library's pairs: programs as their mutants and what corrects these.

    python scripts/correct_pairs.py [--write] [--seconds 20]

Of each pair whose corrections are proved in one piece, the cheapest of them by the roofline, at
some sizes (of two that cost the same the first); of one that is equal
everywhere, the pair itself. With --write they go to rules/library/partial/corrected.rules, of which
`verify_rules.py --write --new` and `float_classes.py --write` then say what they say of all rules.
What is known already, as a rule of the library, is left out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from superopt.cost.fusion import is_fused_when_compiled
from superopt.cost.graph_cost import GraphCosts, roofline_cost_model
from superopt.ir import graph
from superopt.onnx_io.export.atomic_files import atomic_files
from superopt.partial.correct.partial_rules import PAIRS_FOLDER, load_pairs, partial_rule
from superopt.partial.correct.sized_pairs import pair_at
from superopt.partial.correct.split import SPLIT
from superopt.partial.correct.symbolic_boxes import NoFormula
from superopt.rules.lang.rule import Rule
from superopt.rules.library.load import load_library
from superopt.rules.library.records import proof_key
from superopt.verifier.prove import Limits
from superopt.verifier.verdict import Proved

FILE = PAIRS_FOLDER / "corrected.rules"
HEAD = """\
# Programs as mutants of theirs, and what corrects these: made of families.pairs by
# scripts/correct_pairs.py, which proved each. `superopt rules show` of a pair says where its mutant
# is right.
"""


def corrected(limits: Limits) -> list[Rule]:
    known = {proof_key(r) for r in load_library() if not r.source.startswith("partial/")}
    out = []
    for pair in load_pairs():
        try:
            made = partial_rule(pair, limits)
        except NoFormula as e:
            print(f"{pair.name}: {e}", file=sys.stderr)
            continue
        fine = (c for c in made.corrections if isinstance(c.verdict, Proved))
        whole = [c.rule for c in fine if c.kind != SPLIT]  # those are made for a model's own sizes
        if not whole:
            print(f"{pair.name}: no correction is proved in one piece", file=sys.stderr)
            continue
        best = min(whole, key=lambda r: price(r, [dict(s) for s, _ in made.parts.sampled_regions]))
        if proof_key(best) in known:
            print(f"{pair.name}: is a rule of the library", file=sys.stderr)
        else:
            out.append(best)
    return out


def price(rule: Rule, some: Sequence[Mapping[str, int]]) -> float:
    """Microseconds of its right side at these sizes, together."""
    costs = GraphCosts({}, roofline_cost_model(1), is_fused_when_compiled)
    found = (pair_at(rule, sizes) for sizes in some)
    return sum(costs.graph_cost(graph.Graph((), (x.mutant,))) for x in found if x is not None)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--write", action="store_true")
    options.add_argument("--seconds", type=float, default=20.0, help="for a proof")
    given = options.parse_args()
    text = HEAD + "".join(f"{r}\n" for r in corrected(Limits(seconds=given.seconds)))
    if not given.write:
        print(text, end="")
        return 0
    with atomic_files() as create:
        create(FILE).file.write(text.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
