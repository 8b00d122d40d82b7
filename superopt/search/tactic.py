"""Tactics: scripted sequences of rewrites as one move of the search.

A merge of n siblings is n - 1 merges of two, and only then do the splits and concatenations between
them vanish: costs rise on the way beyond any alpha. A tactic repeats its rules around one place
until none applies, cleans up, and is kept if the whole graph got cheaper. Its trace consists of
ordinary steps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

from superopt.cost.graph_cost import GraphCosts
from superopt.ir import graph as ir_graph
from superopt.rules.match.graph_context import GraphContext, graph_context
from superopt.search.hill_climb import hill_climb
from superopt.search.move import Move, Refusals, Step, find_moves
from superopt.search.rule_set import RuleSet


@dataclass(frozen=True, slots=True)
class Tactic:
    """Repeat rules that share a node with the first rewrite (or everywhere), then clean up by hill
    climbing.

    `repeat` are prefixes of names: `matmul-merge` stands for all rules that begin so.
    """

    name: str
    repeat: tuple[str, ...]
    max_steps: int = 64
    everywhere: bool = False  # in the whole graph, since no single place gains


_MERGING = re.compile("merge|slices-split")  # rules that start other tactics or hide their matches
FLATTENING_RULES = frozenset(
    {"slice-slice"}
)  # with several readers of the inner slice only the last gains
MAX_FLATTENED = 1000
COST_LEEWAY = 1.03  # merged products stream weights better than the sum of their parts

TACTICS: tuple[Tactic, ...] = (
    Tactic(
        "pad-channels",
        (
            "pad-out-channels",
            "slice-into-conv",
            "slice-through-depthwise",
            "relu-slice",
            "add-slice",
            "mul-slice",
            "pool-slice",
            "max-pool-slice",
            "concat-slice-into-conv",
        ),
        everywhere=True,
    ),
    Tactic(
        "merge-columns",
        ("matmul-merge-slices", "matmul-add-merge-slices", "gemm-merge-trans-slices"),
    ),
    Tactic("merge-rows", ("matmul-merge-rows-slices", "gemm-merge-rows")),
    Tactic("merge-convolutions", ("conv-merge", "conv-bias-merge-slices")),
    Tactic("stack-rows", ("stack-rows",)),
    Tactic("merge-gathers", ("gather-merge", "gather-tables")),
    Tactic("merge-activations", ("sigmoid-merge", "tanh-merge", "relu-merge")),
)


def play_tactic(
    tactic: Tactic,
    graph: ir_graph.Graph,
    rules: RuleSet,
    costs: GraphCosts,
    refusals: Refusals,
    *,
    stop: Callable[[], bool],
) -> tuple[ir_graph.Graph, list[Step], int]:
    """Apply `tactic` at every place where it starts, and keep what lowers the cost.

    Returns the graph, the steps to it, and how many rewrites were priced.
    """
    own = rules.select(lambda r: r.name.startswith(tactic.repeat))
    if tactic.everywhere:
        # forward only: each rule moves the result of the previous one, and both directions never
        # end
        own = own.select(lambda r: not r.name.endswith("~"))
    # bit-exact rules only: they move elements, and leave products in the form that the next merge
    # needs
    calm = rules.select(lambda r: r.float_class == "E0" and not _MERGING.search(r.name))
    tried: set[ir_graph.Value] = set()
    steps: list[Step] = []
    priced = 0
    # Without weights: shared weights vanish only with the last merge.
    price, leeway = costs.operator_cost, COST_LEEWAY
    if costs.has_streams:
        price, leeway = costs.run_cost, 1.0
    cost = price(graph)
    while own.rules and not stop():
        ctx = graph_context(graph)
        fresh = [m for m in find_moves(ctx, own, costs, refusals) if not (set(m.change) & tried)]
        start = _first_merge(ctx, fresh)
        if start is None:
            break
        tried |= set(start.change)
        if tactic.everywhere:
            after, path, seen = _play_everywhere(tactic, graph, own, calm, costs, refusals, stop)
        else:
            after, path, seen = _play_at(tactic, graph, start, own, calm, costs, refusals, stop)
        priced += seen
        new = price(after)
        if new < leeway * cost and after != graph:
            graph, cost = after, new
            steps += path
        if tactic.everywhere:
            break
    return graph, steps, priced


def _apply_all(
    graph: ir_graph.Graph,
    rules: RuleSet,
    costs: GraphCosts,
    refusals: Refusals,
    stop: Callable[[], bool],
) -> tuple[ir_graph.Graph, list[Step]]:
    """Apply `rules` wherever they match, whatever the gain: each rewrite leaves fewer matches."""
    steps: list[Step] = []
    while len(steps) < MAX_FLATTENED and not stop():
        m = next(find_moves(graph_context(graph), rules, costs, refusals), None)
        if m is None:
            break
        after = ir_graph.replace(graph, m.change)
        steps.append(Step(m.rule.name, None, m.change, m.effect.us, graph, after))
        graph = after
    return graph, steps


def _play_everywhere(
    tactic: Tactic,
    graph: ir_graph.Graph,
    tactic_rules: RuleSet,
    exact_rules: RuleSet,
    costs: GraphCosts,
    refusals: Refusals,
    stop: Callable[[], bool],
) -> tuple[ir_graph.Graph, list[Step], int]:
    """Apply the tactic's rules wherever they match, then clean up."""
    after, path = _apply_all(graph, tactic_rules, costs, refusals, stop)
    tidy, more, priced = hill_climb(after, exact_rules, costs, refusals, stop=stop)
    return tidy, _label_steps(tactic, path + more), len(path) + priced


def _label_steps(tactic: Tactic, steps: Sequence[Step]) -> list[Step]:
    return [Step(s.rule, tactic.name, s.change, s.us, s.before, s.after) for s in steps]


def _reader_ops(
    ctx: GraphContext, move: Move, made: Container[ir_graph.Node] = ()
) -> list[tuple[str, ...]]:
    """Return for each replaced result that no node in `made` produces the operators that read it,
    and the operators that read these."""
    out: list[tuple[str, ...]] = []
    for old in move.change:
        if ir_graph.producer(old) in made:
            continue
        near = ctx.users.get(old, ())
        far = [u for n in near for v in ir_graph.results(n) for u in ctx.users.get(v, ())]
        out.append((*sorted({n.op.name for n in near}), *sorted({n.op.name for n in far})))
    return out or [()]


def _first_merge(ctx: GraphContext, candidates: Sequence[Move]) -> Move | None:
    """Return the first merge: siblings whose results have the same readers, if possible."""
    return min(candidates, key=lambda m: len(set(_reader_ops(ctx, m))), default=None)


def _next_merge(
    ctx: GraphContext,
    candidates: list[Move],
    made: Container[ir_graph.Node],
    reader_ops: tuple[str, ...],
) -> tuple[Move | None, tuple[str, ...]]:
    """Return the next merge and the readers of its operands: siblings with equal readers first, so
    that they are adjacent and their readers can be merged, too."""
    keyed = [(_reader_ops(ctx, m, made)[-1], n, m) for n, m in enumerate(candidates)]
    if not keyed:
        return None, reader_ops
    chosen = min(keyed, key=lambda k: (k[0] != reader_ops, k[0], k[1]))
    return chosen[2], chosen[0]


def _siblings(ctx: GraphContext, made: Sequence[ir_graph.Node]) -> set[ir_graph.Node]:
    """Return the nodes that a rewrite made, and those that share an operand with them."""
    there = [n for n in made if n in ctx.position]
    read = {v for n in there for v in n.inputs if v is not None}
    return {*there, *(u for v in read for u in ctx.users.get(v, ()))}


def _play_at(
    tactic: Tactic,
    graph: ir_graph.Graph,
    start: Move,
    tactic_rules: RuleSet,
    exact_rules: RuleSet,
    costs: GraphCosts,
    refusals: Refusals,
    stop: Callable[[], bool],
) -> tuple[ir_graph.Graph, list[Step], int]:
    path: list[Step] = []
    move: Move | None = start
    fate = _reader_ops(graph_context(graph), start)[-1]
    seen = 1
    while move is not None and len(path) < tactic.max_steps and not stop():
        after = ir_graph.replace(graph, move.change)
        path.append(Step(move.rule.name, tactic.name, move.change, move.effect.us, graph, after))
        graph = after
        ctx = graph_context(graph)
        made = [n for n in move.effect.added if not costs.is_constant(n)]
        some = list(find_moves(ctx, tactic_rules, costs, refusals, _siblings(ctx, made)))
        move, fate = _next_merge(ctx, some, made, fate)
        seen += 1
    flattening = exact_rules.select(lambda r: r.name in FLATTENING_RULES)
    flat, path_flat = _apply_all(graph, flattening, costs, refusals, stop)
    tidy, more, priced = hill_climb(flat, exact_rules, costs, refusals, stop=stop)
    return tidy, path + _label_steps(tactic, path_flat + more), seen + priced
