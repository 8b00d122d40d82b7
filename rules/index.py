"""Match many rules at once: a table by operator and operands selects the rules to try at a node.

A node's profile is its operator and the producers of its operands. The rules that can start from a
profile are computed once and cached: a handful of hundreds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from superopt.ir.graph import Constant, Item, Node, results
from superopt.ir.op import Op
from superopt.rules.context import GraphContext
from superopt.rules.make import NARY
from superopt.rules.match import Match, chains, environment
from superopt.rules.plan import Plan, Start, app_of, depth_of, plan
from superopt.rules.rule import Rule
from superopt.rules.steps import FOUND, Cont
from superopt.rules.term import All, App, Filled, Number, Pick, Run, Scalar, Term, walk

# The producer of an operand: an operator, with a single result or not; or CONSTANT; or OTHER.
CONSTANT, OTHER = "constant", "other"
Source = Op | tuple[Op] | str
Profile = tuple[Op, tuple[Source, ...]]
REMEMBERED = 1 << 14  # profiles


@dataclass(frozen=True, slots=True)
class _Entry:
    """A rule that may start from nodes of an operator: its number, and from which root."""

    number: int
    root: int
    rule: Rule
    term: App


@dataclass(frozen=True, slots=True)
class _Started:
    """A rule that may start from a node, and its chain."""

    number: int
    root: int
    plan: Plan
    start: Start
    chain: Cont


class Index:
    """Rules that are matched together, in their order."""

    __slots__ = ("_by_op", "_deepest", "_known", "_reach", "_within", "rules")

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(rules)
        self._by_op: dict[Op, list[_Entry]] = {}
        self._known: dict[Profile, tuple[_Started, ...]] = {}
        self._deepest: dict[Op, int] = {}
        self._within: dict[frozenset[Op], Index] = {}
        for number, rule in enumerate(self.rules):
            for root, side in enumerate(rule.lhs):
                entry = _Entry(number, root, rule, app_of(side))
                op = entry.term.op
                self._by_op.setdefault(op, []).append(entry)
                self._deepest[op] = max(self._deepest.get(op, 0), depth_of(entry.term))
        self._reach = max(self._deepest.values(), default=0)

    def within(self, ops: frozenset[Op]) -> Index:
        """Return the rules that use only these operators, on either side."""
        if ops not in self._within:
            if len(self._within) > REMEMBERED:
                self._within.clear()
            self._within[ops] = Index(r for r in self.rules if operators(r) <= ops)
        return self._within[ops]

    def matches(self, ctx: GraphContext, near: Collection[Node] | None = None) -> list[Match]:
        """Return what `matches` yields for each rule, one rule after the other."""
        nodes = ((n, 0) for n in ctx.position) if near is None else _around(ctx, near, self._reach)
        found: list[tuple[int, int, int, list[Match]]] = []
        for n, level in nodes:
            if self._deepest.get(n.op, 0) <= level:
                continue
            for e in self._entries(n):
                # without `near` the first root suffices: all others are found from it
                if e.start.depth <= level or (near is None and e.root):
                    continue
                env = environment(e.plan, ctx, near)
                env[e.start.slot] = n
                e.chain(env)
                if env[FOUND]:
                    found.append((e.number, e.root, ctx.position[n], env[FOUND]))
        found.sort(key=lambda f: f[:3])
        return _once(found)

    def _entries(self, n: Node) -> tuple[_Started, ...]:
        profile = (n.op, tuple([_source(v) for v in n.inputs]))
        known = self._known.get(profile)
        if known is None:
            if len(self._known) > REMEMBERED:
                self._known.clear()
            entries = self._by_op[n.op]
            known = tuple([_started(e) for e in entries if _may_start(e.term, profile[1])])
            self._known[profile] = known
        return known


def _started(e: _Entry) -> _Started:
    """Compile the pattern on demand: most rules use an operator that no graph has."""
    p = plan(e.rule)
    return _Started(e.number, e.root, p, p.starts[e.root], chains(p)[e.root])


@lru_cache(maxsize=1 << 14)
def operators(rule: Rule) -> frozenset[Op]:
    """Return the operators of both sides."""
    return frozenset(
        t.op for side in (*rule.lhs, *rule.rhs) for t in walk(side) if isinstance(t, App)
    )


def _around(ctx: GraphContext, near: Collection[Node], reach: int) -> Iterator[tuple[Node, int]]:
    """Yield the nodes that reach `near`, with their distance in operands."""
    users = ctx.users
    seen = {n for n in near if n in ctx.position}
    front = list(seen)
    for level in range(reach):
        yield from ((n, level) for n in front)
        further: list[Node] = []
        for n in front:
            for v in (n,) if len(n.types) == 1 else results(n):
                for u in users.get(v, ()):
                    if u not in seen:
                        seen.add(u)
                        further.append(u)
        front = further


def _source(v: object) -> Source:
    kind = type(v)
    if kind is Node:
        return v.op  # type: ignore[attr-defined,no-any-return]
    if kind is Item:
        return (v.node.op,)  # type: ignore[attr-defined]
    return CONSTANT if kind is Constant else OTHER


def _may_start(root: App, sources: tuple[Source, ...]) -> bool:
    """True if the operands of `root` can have these producers."""
    terms = root.operands
    if any(isinstance(t, (Run, All)) for t in terms):
        return all(any(_may_be(t, s) for s in sources) for t in terms if not isinstance(t, Run))
    if root.op.name in NARY and len(sources) > len(terms) > 1:
        # a run may be an operand that the rule names: only operators in the pattern count
        return all(
            any(_may_be(t, s) for s in sources)
            for t in terms
            if not (isinstance(t, App) and t.op is root.op)
        )
    if len(terms) != len(sources):
        return False
    pairs = [zip(terms, sources, strict=True)]
    if "commutative" in root.op.laws and len(terms) == 2:
        pairs.append(zip(terms, sources[::-1], strict=True))
    return any(all(_may_be(t, s) for t, s in p) for p in pairs)


def _may_be(t: Term, s: Source) -> bool:
    match t:
        case App(op):
            return s is op
        case Pick(App(op)) | All(App(op)):
            return s is op or s == (op,)
        case Number() | Scalar() | Filled():
            return s == CONSTANT
        case _:
            return True


def _once(found: list[tuple[int, int, int, list[Match]]]) -> list[Match]:
    """Return the matches; those of several roots are found from each root, and kept once."""
    out: list[Match] = []
    seen: set[object] = set()
    for _, _, _, some in found:
        for m in some:
            if len(m.plan.starts) > 1:
                key = (m.rule.name, m.roots, tuple([m.cells[s] for s in m.plan.slots.values()]))
                if key in seen:
                    continue
                seen.add(key)
            out.append(m)
    return out
