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

from superopt.cost.model import Costs
from superopt.ir import graph as g
from superopt.rules.context import GraphContext, context
from superopt.search.book import Book
from superopt.search.climb import climb
from superopt.search.move import Move, Refusals, Step, moves


@dataclass(frozen=True, slots=True)
class Tactic:
    """Repeat rules that share a node with the first rewrite (or everywhere), then clean up by hill
    climbing.

    `repeat` are prefixes of names: `matmul-merge` stands for all rules that begin so.
    """

    name: str
    repeat: tuple[str, ...]
    longest: int = 64
    everywhere: bool = False  # in the whole graph, since no single place gains


_LOUD = re.compile("merge|slices-split")  # rules that start other tactics or hide their matches
FLATTEN = frozenset({"slice-slice"})  # with several readers of the inner slice only the last gains
MOST_FLATTENED = 1000
LEEWAY = 1.03  # merged products stream weights better than the sum of their parts

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
    Tactic("merge-gathers", ("gather-merge", "gather-tables")),
    Tactic("merge-activations", ("sigmoid-merge", "tanh-merge", "relu-merge")),
)


def play(
    tactic: Tactic,
    graph: g.Graph,
    rules: Book,
    costs: Costs,
    refusals: Refusals,
    *,
    stop: Callable[[], bool],
) -> tuple[g.Graph, list[Step], int]:
    """Apply `tactic` at every place where it starts, and keep what lowers the cost.

    Returns the graph, the steps to it, and how many rewrites were priced.
    """
    own = rules.where(lambda r: r.name.startswith(tactic.repeat))
    if tactic.everywhere:
        # forward only: each rule moves the result of the previous one, and both directions never
        # end
        own = own.where(lambda r: not r.name.endswith("~"))
    # bit-exact rules only: they move elements, and leave products in the form that the next merge
    # needs
    calm = rules.where(lambda r: r.float_class == "E0" and not _LOUD.search(r.name))
    tried: set[g.Value] = set()
    steps: list[Step] = []
    priced = 0
    # Without weights: shared weights vanish only with the last merge.
    cost = costs.of_operators(graph)
    while own.rules and not stop():
        ctx = context(graph)
        fresh = [m for m in moves(ctx, own, costs, refusals) if not (set(m.change) & tried)]
        start = _start(ctx, fresh)
        if start is None:
            break
        tried |= set(start.change)
        if tactic.everywhere:
            after, path, seen = _everywhere(tactic, graph, own, calm, costs, refusals, stop)
        else:
            after, path, seen = _run(tactic, graph, start, own, calm, costs, refusals, stop)
        priced += seen
        new = costs.of_operators(after)
        if new < LEEWAY * cost and after != graph:
            graph, cost = after, new
            steps += path
        if tactic.everywhere:
            break
    return graph, steps, priced


def _flattened(
    graph: g.Graph, rules: Book, costs: Costs, refusals: Refusals, stop: Callable[[], bool]
) -> tuple[g.Graph, list[Step]]:
    """Apply `rules` wherever they match, whatever the gain: each rewrite leaves fewer matches."""
    steps: list[Step] = []
    while len(steps) < MOST_FLATTENED and not stop():
        m = next(moves(context(graph), rules, costs, refusals), None)
        if m is None:
            break
        after = g.replace(graph, m.change)
        steps.append(Step(m.rule.name, None, m.change, m.effect.us, graph, after))
        graph = after
    return graph, steps


def _everywhere(
    tactic: Tactic,
    graph: g.Graph,
    own: Book,
    calm: Book,
    costs: Costs,
    refusals: Refusals,
    stop: Callable[[], bool],
) -> tuple[g.Graph, list[Step], int]:
    """Apply the tactic's rules wherever they match, then clean up."""
    after, path = _flattened(graph, own, costs, refusals, stop)
    tidy, more, priced = climb(after, calm, costs, refusals, stop=stop)
    return tidy, _of(tactic, path + more), len(path) + priced


def _of(tactic: Tactic, steps: Sequence[Step]) -> list[Step]:
    return [Step(s.rule, tactic.name, s.change, s.us, s.before, s.after) for s in steps]


def _fates(ctx: GraphContext, move: Move, made: Container[g.Node] = ()) -> list[tuple[str, ...]]:
    """Return for each replaced result that no node in `made` produces the operators that read it,
    and the operators that read these."""
    out: list[tuple[str, ...]] = []
    for old in move.change:
        if g.producer(old) in made:
            continue
        near = ctx.users.get(old, ())
        far = [u for n in near for v in g.results(n) for u in ctx.users.get(v, ())]
        out.append((*sorted({n.op.name for n in near}), *sorted({n.op.name for n in far})))
    return out or [()]


def _start(ctx: GraphContext, some: Sequence[Move]) -> Move | None:
    """Return the first merge: siblings whose results have the same readers, if possible."""
    return min(some, key=lambda m: len(set(_fates(ctx, m))), default=None)


def _next(
    ctx: GraphContext, some: list[Move], made: Container[g.Node], fate: tuple[str, ...]
) -> tuple[Move | None, tuple[str, ...]]:
    """Return the next merge and the readers of its operands: siblings with equal readers first, so
    that they are adjacent and their readers can be merged, too."""
    keyed = [(_fates(ctx, m, made)[-1], n, m) for n, m in enumerate(some)]
    if not keyed:
        return None, fate
    chosen = min(keyed, key=lambda k: (k[0] != fate, k[0], k[1]))
    return chosen[2], chosen[0]


def _siblings(ctx: GraphContext, made: Sequence[g.Node]) -> set[g.Node]:
    """Return the nodes that a rewrite made, and those that share an operand with them."""
    there = [n for n in made if n in ctx.position]
    read = {v for n in there for v in n.inputs if v is not None}
    return {*there, *(u for v in read for u in ctx.users.get(v, ()))}


def _run(
    tactic: Tactic,
    graph: g.Graph,
    start: Move,
    own: Book,
    calm: Book,
    costs: Costs,
    refusals: Refusals,
    stop: Callable[[], bool],
) -> tuple[g.Graph, list[Step], int]:
    path: list[Step] = []
    move: Move | None = start
    fate = _fates(context(graph), start)[-1]
    seen = 1
    while move is not None and len(path) < tactic.longest and not stop():
        after = g.replace(graph, move.change)
        path.append(Step(move.rule.name, tactic.name, move.change, move.effect.us, graph, after))
        graph = after
        ctx = context(graph)
        made = [n for n in move.effect.added if not costs.is_constant(n)]
        some = list(moves(ctx, own, costs, refusals, _siblings(ctx, made)))
        move, fate = _next(ctx, some, made, fate)
        seen += 1
    flattening = calm.where(lambda r: r.name in FLATTEN)
    flat, path_flat = _flattened(graph, flattening, costs, refusals, stop)
    tidy, more, priced = climb(flat, calm, costs, refusals, stop=stop)
    return tidy, path + _of(tactic, path_flat + more), seen + priced
