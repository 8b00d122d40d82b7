"""What enumeration of programs of four operators and their mutants finds, and for which models."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from superopt.api.functions import generate_mutants
from superopt.cost.graph_cost import GraphCosts
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import read_model
from superopt.onnx_io.read.weightless import draw_weights
from superopt.partial.correct import sized_pairs
from superopt.rulegen.family_candidates import PRICED_SIZES, estimated_costs
from superopt.rulegen.subprogram_mutants import graph_with_constant_weights
from superopt.rules.lang.rule import Rule, parse_rules
from superopt.rules.library.load import load_library
from superopt.rules.library.records import tier
from superopt.rules.match.graph_context import graph_context
from superopt.rules.match.matcher import matches
from superopt.search.backtrack import Limits, search
from superopt.search.move import Refusals
from superopt.search.rule_set import RuleSet, rule_set

OPERATORS = 4
# Counted, so that it hangs on no clock.
SEARCH = Limits(max_graphs=40, patience=20, seconds=60, max_queue=2_000)


def otherwise(rule: Rule, known: RuleSet, costs: GraphCosts) -> bool:
    """Do known rules make the program as cheap, at each size at which the rule saves?"""
    for at in PRICED_SIZES:
        both = sized_pairs.sides_at(rule, {n: at[n] for n in sized_pairs.size_names(rule)})
        if both is None:
            continue
        before, after = map(graph_with_constant_weights, both)
        price = costs.graph_cost(after)
        if price >= costs.graph_cost(before):
            continue
        if price < search(before, known, costs, SEARCH, Refusals()).cost:
            return False
    return True


def saving(folder: Path, family: str) -> Iterator[tuple[Rule, float]]:
    """The proved rules of a family that should cost less than their programs, and of what part."""
    for line in json.loads((folder / f"{family}.regions.json").read_text(encoding="utf-8")):
        for text, us in zip(line["corrected"], line["us"], strict=True):
            part = min((after / before for before, after in us), default=1.0)
            if part < 1:
                yield parse_rules(text)[0], part


def found_in(rule: Rule, folder: Path) -> list[str]:
    """The models in which a rule matches."""
    out = []
    for path in sorted(folder.glob("*.onnx")):
        graph = import_model(read_model(draw_weights(path))).graph
        if next(iter(matches(rule, graph_context(graph))), None) is not None:
            out.append(path.stem)
    return out


def enumeration(folder: Path | None, models: Path | None) -> Iterator[str]:
    """What is said of a run in this folder, and of the models in the other one."""
    folder = folder or Path(tempfile.mkdtemp())
    begin = time.process_time()
    made = generate_mutants(folder, max_ops=OPERATORS)
    own = time.process_time() - begin
    yield (
        f"`superopt rules generate --partial --max-ops {OPERATORS}`: {own:.0f} s of this process "
        "(what an earlier run left in the folder is not done again)."
    )
    head = ["family", "pairs", "boxes proved", "corrections proved", "of these saving"]
    rows = [[f.family, f.enumerated, f.proved, f.corrected, f.saving] for f in made.families]
    yield table(head, [list(map(str, r)) for r in rows])
    yield table(
        ["family", "dropped", "pairs"],
        [[f.family, why, str(n)] for f in made.families for why, n in f.dropped.items()],
    )
    known, costs = rule_set(r for r in load_library() if tier(r) == "A"), estimated_costs()
    rules = [x for f in made.families for x in saving(folder, f.family)]
    fresh = [(r, part) for r, part in rules if not otherwise(r, known, costs)]
    yield (
        f"Of {len(rules)} rules that should save something the library's own rules do as well for "
        f"{len(rules) - len(fresh)}. The others, and the part of its program's price that each has:"
    )
    head = ["rule", "part", "matches in"]
    told = ((r, p, found_in(r, models) if models else []) for r, p in fresh)
    yield table(head, [[f"`{r}`", f"{p:.2f}", ", ".join(m) or "none"] for r, p, m in told])


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
