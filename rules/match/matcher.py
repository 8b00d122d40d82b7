"""Match a rule in a graph.

`compile_pattern` compiles a rule's left side to a chain of steps, which runs here from every node
with the operator of a root. Matches come in a fixed order: by the position of their first root in
the graph, then in the order of the chain's alternatives.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from superopt.ir.graph import Node, Value, result, results
from superopt.rules.lang.rule import Rule
from superopt.rules.lang.term import Term
from superopt.rules.match.graph_context import GraphContext
from superopt.rules.match.operand_steps import (
    CONTEXT_SLOT,
    FOUND_SLOT,
    NEAR_SLOT,
    PART_SLOT,
    RESERVED_SLOTS,
    Cells,
    Continuation,
)
from superopt.rules.match.pattern import Pattern, compile_pattern

_NO_CONTEXT = (
    None,
) * RESERVED_SLOTS  # a match keeps neither the graph's indices nor other matches


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """A rule at one place of a graph.

    roots: the values that the left side matched, which the right side replaces. nodes: the nodes of
    the graph that the left side covers. part: if the root is only some operands of an n-ary
    operator (two of five in a Concat), that node and the range of operands.
    """

    rule: Rule
    roots: tuple[Value, ...]
    nodes: tuple[Node, ...]
    part: tuple[Node, int, int] | None
    pattern: Pattern
    cells: tuple[Any, ...]

    @property
    def bindings(self) -> Mapping[str, Any]:
        """The value of each name of the rule: values, sizes, attributes."""
        return {name: self.cells[slot] for name, slot in self.pattern.slots.items()}

    @property
    def terms(self) -> Mapping[Term, Any]:
        """The node or result that each subterm of the left side matched."""
        return {term: self.cells[slot] for term, slot in self.pattern.terms.items()}

    def __str__(self) -> str:
        return f"{self.rule.name} at {', '.join(map(repr, self.roots))}"


def emit_match(p: Pattern) -> Continuation:
    """Return the last step, which records a match."""
    rule, virtual = p.rule, p.has_nary
    slots = p.nodes
    ((root, index), *_) = p.roots
    alone = len(p.roots) == 1

    def run(env: Cells) -> None:
        nodes = tuple(dict.fromkeys([env[s] for s in slots]))
        part = env[PART_SLOT]
        if virtual:
            position = env[CONTEXT_SLOT].position
            nodes = tuple([n for n in nodes if n in position])
            if part is not None:
                nodes = (part[0], *nodes)
        near = env[NEAR_SLOT]
        if near is not None and not any(n in near for n in nodes):
            return
        if alone:
            n = env[root] if part is None else part[0]
            if index is None:
                roots = results(n)
            elif index < len(n.types):
                roots = (result(n, index),)
            else:
                return
        else:
            groups = [results(env[s]) if i is None else (result(env[s], i),) for s, i in p.roots]
            roots = tuple([v for one in groups for v in one])
        env[FOUND_SLOT].append(
            Match(rule, roots, nodes, part, p, (*_NO_CONTEXT, *env[RESERVED_SLOTS:]))
        )

    return run


@lru_cache(maxsize=1 << 13)
def compiled_chains(p: Pattern) -> tuple[Continuation, ...]:
    """Return for each start root the composed steps that record matches."""
    out: list[Continuation] = []
    for start in p.starts:
        go: Continuation = emit_match(p)
        for step in reversed(start.steps):
            go = step.make(go)
        out.append(go)
    return tuple(out)


def new_environment(p: Pattern, ctx: GraphContext, near: Collection[Node] | None) -> Cells:
    """Return an environment without bindings."""
    env: Cells = [None] * p.size
    env[CONTEXT_SLOT], env[FOUND_SLOT], env[NEAR_SLOT] = ctx, [], near
    return env


def matches(rule: Rule, ctx: GraphContext, near: Collection[Node] | None = None) -> Iterator[Match]:
    """Yield every match of `rule` in the graph, in a fixed order.

    With `near`, only those that cover one of these nodes: new matches after a change are near the
    nodes that it made, those that lost or gained users, and the users of the replaced values.
    """
    p = compile_pattern(rule)
    if p.ops <= ctx.by_op.keys():
        yield from _matches(p, ctx, near)


def _matches(p: Pattern, ctx: GraphContext, near: Collection[Node] | None) -> Iterable[Match]:
    starts = p.starts
    if near is None:
        start = starts[0]
        return _matches_from(
            ctx.by_op[start.op], start.slot, compiled_chains(p)[0], new_environment(p, ctx, None)
        )
    env: Cells | None = None
    groups: list[list[Match]] = []
    for start, chain in zip(starts, compiled_chains(p), strict=True):
        roots = ctx.nodes_near(near, start.depth - 1).get(start.op)
        if roots is not None:
            env = env or new_environment(p, ctx, near)
            groups.append(_matches_from(roots, start.slot, chain, env))
    if len(groups) < 2:
        return groups[0] if groups else ()
    # Matches that cover a node of `near` from several roots are found again.
    every = {(m.roots, tuple([m.cells[s] for s in p.slots.values()])): m for f in groups for m in f}
    return every.values()


def _matches_from(roots: Sequence[Node], slot: int, chain: Continuation, env: Cells) -> list[Match]:
    """Return the matches that start with one of these nodes as root."""
    env[FOUND_SLOT] = found = list[Match]()
    for n in roots:
        env[slot] = n
        chain(env)
    return found
