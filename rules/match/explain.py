"""Explain in text why a rule applies at a node or not.

The matcher's steps run with a probe between them. If there is no match, the step reached last tells
what it required and what it found.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from superopt.ir.graph import Graph, Node, Value, producer, results
from superopt.rules.lang.functions import show_result
from superopt.rules.lang.printer import show
from superopt.rules.lang.rule import Rule
from superopt.rules.match.graph_context import GraphContext, graph_context
from superopt.rules.match.matcher import Match, emit_match, new_environment
from superopt.rules.match.operand_steps import FOUND_SLOT, Cells, Continuation
from superopt.rules.match.pattern import Pattern, Start, compile_pattern
from superopt.rules.match.rewrite import Refusal, rewrite

Outcome = Literal["applies", "refused", "failed"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """A rule tried at one node.

    site: the value of the root that matching started from. outcome: 'applies', 'refused' (it
    matches, but the right side is not valid there) or 'failed'. passed, steps: how many of the
    matcher's steps succeeded, and of how many. reason: a text without a full stop.
    """

    rule: str
    site: Value
    outcome: Outcome
    passed: int
    steps: int
    reason: str

    def __str__(self) -> str:
        inside = self.outcome == "failed" and self.passed < self.steps
        progress = f" (step {self.passed + 1} of {self.steps})" if inside else ""
        return f"{self.rule}: {self.outcome}{progress}: {self.reason}"


def explain(rule: Rule, graph: Graph | GraphContext, value: Value | None = None) -> list[Attempt]:
    """Return the attempts at each node where `rule` can start; with `value`, those around it.

    Around a value are the nodes whose left side might cover its producer.
    """
    ctx = graph_context(graph) if isinstance(graph, Graph) else graph
    p = compile_pattern(rule)
    near = None if value is None else _covering_nodes(value, ctx)
    out: list[Attempt] = []
    tried: set[Node] = set()
    for start in p.starts if near is not None else p.starts[:1]:
        sites = ctx.by_op if near is None else ctx.nodes_near(near, start.depth - 1)
        for n in sites.get(start.op, ()):
            if n not in tried:
                tried.add(n)
                out += _attempts(p, start, ctx, n, near)
    if not out and value is not None:
        out.append(_unreachable(p, value))
    return out


def _covering_nodes(value: Value, ctx: GraphContext) -> Collection[Node]:
    n = producer(value)
    return [n] if n is not None and n in ctx.position else ctx.users.get(value, [])


def _unreachable(p: Pattern, value: Value) -> Attempt:
    n = producer(value)
    wanted = " or ".join(sorted({s.op.name for s in p.starts}))
    found = show_result(value) if n is None else f"{n.op.title} of type {value.type}"
    reason = f"this is {found}, which the rule does not reach from any {wanted}"
    return Attempt(p.rule.name, value, "failed", 0, len(p.starts[0].steps), reason)


def _attempts(
    p: Pattern, start: Start, ctx: GraphContext, n: Node, near: Collection[Node] | None
) -> list[Attempt]:
    env = new_environment(p, ctx, near)
    env[FOUND_SLOT] = found = list[Match]()
    env[start.slot] = n
    furthest: list[tuple[int, tuple[Any, ...]]] = [(-1, ())]
    _probe_chain(p, start, furthest)(env)
    site, count = results(n)[0], len(start.steps)
    if found:
        return [_match_outcome(m, ctx, count) for m in found]
    last, cells = furthest[0]
    if last == count:
        reason = "it matches only elsewhere: no match covers the given node"
    else:
        reason = start.steps[last].explain(list(cells))
    return [Attempt(p.rule.name, site, "failed", last, count, reason)]


def _probe_chain(
    p: Pattern, start: Start, progress: list[tuple[int, tuple[Any, ...]]]
) -> Continuation:
    """Return the step chain, which records the last step reached and its bindings in `progress`."""

    def probe(number: int, go: Continuation) -> Continuation:
        def run(env: Cells) -> None:
            if number > progress[0][0]:
                progress[0] = (number, tuple(env))
            go(env)

        return run

    go = probe(len(start.steps), emit_match(p))
    for number, step in reversed(list(enumerate(start.steps))):
        go = probe(number, step.make(go))
    return go


def _match_outcome(m: Match, ctx: GraphContext, count: int) -> Attempt:
    change = rewrite(m, ctx)
    if isinstance(change, Refusal):
        reason = f"it matches, but {_refusal_text(change)}: {change.detail}"
        return Attempt(m.rule.name, m.roots[0], "refused", count, count, reason)
    if all(old is new for old, new in change.items()):
        reason = "it matches, and changes nothing"
        return Attempt(m.rule.name, m.roots[0], "applies", count, count, reason)
    bound = [f"{n} is {show_result(v)}" for n, v in m.bindings.items() if v is not None]
    becomes = ", ".join(map(show, m.rule.rhs)).removeprefix("*")
    reason = f"becomes {becomes} where {'; '.join(bound)}"
    return Attempt(m.rule.name, m.roots[0], "applies", count, count, reason)


def _refusal_text(r: Refusal) -> str:
    words = {
        "shape": "the result would have another type",
        "cycle": "the new graph would have a cycle",
        "condition": "a formula of the right side has no value there",
        "infer": "an operator of the right side refuses its operands",
        "unsafe": "the right side is too large",
        "rounding": "a sum would be regrouped around a large constant",
    }
    return words[r.reason]


def show_attempts(attempts: Sequence[Attempt]) -> str:
    """Return the attempts as lines; equal ones are counted."""
    counts: dict[str, int] = {}
    for a in attempts:
        counts[str(a)] = counts.get(str(a), 0) + 1
    return "\n".join(text if n == 1 else f"{text} ({n} times)" for text, n in counts.items())
