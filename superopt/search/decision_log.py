"""The decision log of a search: the applied matches, so that a run can be repeated unmeasured.

A round is a list of [rule, number]: the number-th match of the rule in the graph before the round;
or, if the graph was searched in pieces, a single [rule, number, piece]. An empty round stands where
the graph was split into pieces once more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from superopt.cost.graph_cost import GraphCosts, roofline_cost_model
from superopt.errors import UsageError
from superopt.ir import graph as ir_graph
from superopt.rules.lang.rule import Rule
from superopt.rules.match.graph_context import graph_context
from superopt.rules.match.matcher import matches
from superopt.rules.match.rewrite import Refusal, rewrite
from superopt.search.cost_delta import apply_together
from superopt.search.move import PieceChange, Step
from superopt.search.partition import MAX_PIECE_NODES, Piece, assemble_rewrite, split_into_pieces

FORMAT = 2
Change = Mapping[ir_graph.Value, ir_graph.Value]


def match_changes(rule: Rule, graph: ir_graph.Graph) -> list[Change]:
    """Return the replacements of each match of `rule`, in the matcher's order."""
    ctx = graph_context(graph)
    built = (rewrite(m, ctx) for m in matches(rule, ctx))
    return [c for c in built if not isinstance(c, Refusal)]


def decisions_json(steps: Sequence[Step], rules: Sequence[Rule], model: str) -> str:
    """Return the decisions of `steps` as JSON; `model` is the digest of the model file."""
    book = {r.name: r for r in rules}
    rounds: list[list[tuple[str, int] | tuple[str, int, int]]] = []
    split: ir_graph.Graph | None = None
    for _, grouped in groupby(steps, key=lambda s: id(s.before)):
        group = list(grouped)
        place = group[0].piece_change
        if place is not None and split is not None and place.split is not split:
            rounds.append([])
        split = None if place is None else place.split
        row: list[tuple[str, int] | tuple[str, int, int]] = []
        known: dict[str, list[Change]] = {}
        for s in group:
            if s.piece_change is not None:
                there = match_changes(book[s.rule], s.piece_change.before)
                row.append(
                    (
                        s.rule,
                        _match_number(there, s.rule, s.piece_change.change),
                        s.piece_change.piece,
                    )
                )
                continue
            if s.rule not in known:
                known[s.rule] = match_changes(book[s.rule], s.before)
            row.append((s.rule, _match_number(known[s.rule], s.rule, s.change)))
        rounds.append(row)
    return json.dumps({"format": FORMAT, "model": model, "rounds": rounds}, indent=1) + "\n"


def _match_number(known_changes: Sequence[Change], rule: str, wanted: Change) -> int:
    for n, change in enumerate(known_changes):
        if dict(change) == dict(wanted):
            return n
    raise AssertionError(f"the step {rule} is not a match of its rule")


def replay(text: str, graph: ir_graph.Graph, rules: Sequence[Rule], model: str) -> list[Step]:
    """Return the steps of a log, repeated from `graph`.

    Raises UsageError if the log is malformed, or belongs to another model or other rules.
    """
    book = {r.name: r for r in rules}
    try:
        data = json.loads(text)
        rounds = [[(str(r), [int(n) for n in ns]) for r, *ns in row] for row in data["rounds"]]
        if any(len(ns) not in (1, 2) for row in rounds for _, ns in row):
            raise ValueError("a decision is a rule and one or two numbers")
        if data["format"] != FORMAT:
            raise ValueError(f"its format is {data['format']}, this version writes {FORMAT}")
        same = data["model"] == model
    except (ValueError, KeyError, TypeError, RecursionError) as e:
        raise UsageError(
            "--replay: this is not a decision log",
            f"it lacks {e}" if isinstance(e, KeyError) else str(e),
            "pass a file that --decisions wrote",
        ) from None
    if not same:
        raise UsageError(
            "--replay: the log belongs to another model",
            f"it names {data['model']}, this is {model}",
            "optimize this model anew",
        )  # fmt: skip
    steps: list[Step] = []
    pieced: _PiecedGraph | None = None
    for row in rounds:
        if row and len(row[0][1]) == 2:
            name, (n, i) = row[0]
            pieced = pieced or _PiecedGraph.cut(graph)
            if not 0 <= i < len(pieced.parts):
                raise _rules_changed_error(name, n)
            step = pieced.step(graph, i, name, _recorded_change(book, name, n, pieced.chosen[i]))
            steps.append(step)
            graph = step.after
            continue
        pieced = None
        taken = [(name, _recorded_change(book, name, ns[0], graph)) for name, ns in row]
        after = apply_together(graph, [c for _, c in taken])
        steps += [Step(name, None, c, 0.0, graph, after) for name, c in taken]
        graph = after
    return steps


@dataclass(frozen=True, slots=True)
class _PiecedGraph:
    """A graph in pieces, as in the search, and the current graph of each piece."""

    start: ir_graph.Graph
    parts: list[Piece]
    chosen: list[ir_graph.Graph]

    @staticmethod
    def cut(graph: ir_graph.Graph) -> _PiecedGraph:
        parts = split_into_pieces(graph, GraphCosts({}, roofline_cost_model(1)), MAX_PIECE_NODES)
        return _PiecedGraph(graph, parts, [p.graph for p in parts])

    def step(self, before: ir_graph.Graph, i: int, rule: str, change: Change) -> Step:
        inside = PieceChange(self.start, i, self.chosen[i], change)
        self.chosen[i] = ir_graph.replace(self.chosen[i], change)
        after, moved = assemble_rewrite(self.start, self.parts, self.chosen, inside)
        return Step(rule, None, moved, 0.0, before, after, inside)


def _recorded_change(book: Mapping[str, Rule], name: str, n: int, graph: ir_graph.Graph) -> Change:
    known = match_changes(book[name], graph) if name in book else []
    if not 0 <= n < len(known):
        raise _rules_changed_error(name, n)
    return known[n]


def _rules_changed_error(name: str, n: int) -> UsageError:
    return UsageError(
        f"--replay: rule {name} has no match number {n}", "the rules have changed",
        "optimize the model anew",
    )  # fmt: skip
