"""Match many rules at once: a table by operator and operands selects the rules to try at a node.

A node's profile is its operator and the producers of its operands. The rules that can start from a
profile are computed once and cached: a handful of hundreds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from superopt.ir.graph import Constant, Item, Node, results
from superopt.ir.op import Op
from superopt.rules.lang.rule import Rule
from superopt.rules.lang.term import (
    AllResults,
    App,
    Fill,
    Number,
    OperandRun,
    Pick,
    Scalar,
    Term,
    walk,
)
from superopt.rules.match.graph_context import GraphContext
from superopt.rules.match.matcher import Match, compiled_chains, new_environment
from superopt.rules.match.node_builder import NARY_OPS
from superopt.rules.match.operand_steps import FOUND_SLOT, Continuation
from superopt.rules.match.pattern import Pattern, Start, compile_pattern, root_app, term_depth

# The producer of an operand: an operator, with a single result or not; or CONSTANT; or OTHER.
CONSTANT, OTHER = "constant", "other"
Source = Op | tuple[Op] | str
Profile = tuple[Op, tuple[Source, ...]]
MAX_PROFILES = 1 << 12  # profiles
MAX_RESTRICTED = 1 << 8  # indexes for some operators only
MAX_INDEXES = 64  # a search takes 27: one of all its rules, and those of its tactics


@dataclass(slots=True)
class _Entry:
    """A rule that may start from nodes of an operator: its number, and from which root; the depth
    of that root's term; its chain, when first needed: most rules use an operator that no graph
    has."""

    number: int
    root: int
    rule: Rule
    term: App
    depth: int = field(init=False)
    ready: _ReadyRule | None = None

    def __post_init__(self) -> None:
        self.depth = term_depth(self.term)


@dataclass(frozen=True, slots=True)
class _ReadyRule:
    """A rule that may start from a node, and its chain."""

    number: int
    root: int
    pattern: Pattern
    start: Start
    chain: Continuation


class RuleIndex:
    """Rules that are matched together, in their order."""

    __slots__ = ("_by_op", "_deepest", "_known", "_operators", "_reach", "_within", "rules")

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(rules)
        self._operators: tuple[frozenset[Op], ...] = ()  # of each rule, when first needed
        self._set_entries(
            _Entry(number, root, rule, root_app(side))
            for number, rule in enumerate(self.rules)
            for root, side in enumerate(rule.lhs)
        )

    def _set_entries(self, entries: Iterable[_Entry]) -> None:
        self._by_op: dict[Op, list[_Entry]] = {}
        self._known: dict[Profile, tuple[_ReadyRule, ...]] = {}
        self._within: dict[frozenset[Op], RuleIndex] = {}
        for entry in entries:
            self._by_op.setdefault(entry.term.op, []).append(entry)
        self._deepest = {op: max(e.depth for e in some) for op, some in self._by_op.items()}
        self._reach = max(self._deepest.values(), default=0)

    def restricted_to(self, ops: frozenset[Op]) -> RuleIndex:
        """Return the rules that use only these operators, on either side."""
        found = self._within.get(ops)
        if found is None:
            if len(self._within) > MAX_RESTRICTED:
                self._within.clear()
            found = self._within[ops] = self._build_restricted(ops)
        return found

    def _build_restricted(self, ops: frozenset[Op]) -> RuleIndex:
        """Return the index of these rules, with entries of this one: their numbers are in order."""
        if not self._operators:
            self._operators = tuple(map(rule_operators, self.rules))
        kept = [n for n, own in enumerate(self._operators) if own <= ops]
        out = RuleIndex(())
        out.rules = tuple([self.rules[n] for n in kept])
        own = {id(rule) for rule in out.rules}
        every = [e for op in ops for e in self._by_op.get(op, ()) if id(e.rule) in own]
        out._set_entries(sorted(every, key=lambda e: (e.number, e.root)))
        return out

    def matches(self, ctx: GraphContext, near: Collection[Node] | None = None) -> list[Match]:
        """Return what `matches` yields for each rule, one rule after the other."""
        nodes = (
            ((n, 0) for n in ctx.position) if near is None else _nodes_above(ctx, near, self._reach)
        )
        found: list[tuple[int, int, int, list[Match]]] = []
        for n, level in nodes:
            if self._deepest.get(n.op, 0) <= level:
                continue
            for e in self._entries(n):
                # without `near` the first root suffices: all others are found from it
                if e.start.depth <= level or (near is None and e.root):
                    continue
                env = new_environment(e.pattern, ctx, near)
                env[e.start.slot] = n
                e.chain(env)
                if env[FOUND_SLOT]:
                    found.append((e.number, e.root, ctx.position[n], env[FOUND_SLOT]))
        found.sort(key=lambda f: f[:3])
        return _deduplicate(found)

    def _entries(self, n: Node) -> tuple[_ReadyRule, ...]:
        profile = (n.op, tuple([_operand_source(v) for v in n.inputs]))
        known = self._known.get(profile)
        if known is None:
            if len(self._known) > MAX_PROFILES:
                self._known.clear()
            entries = self._by_op[n.op]
            known = tuple([_prepare(e) for e in entries if _can_start(e.term, profile[1])])
            self._known[profile] = known
        return known


_INDEXES: dict[tuple[int, ...], RuleIndex] = {}  # by the identities of the rules, which they hold


def shared_index(rules: Iterable[Rule]) -> RuleIndex:
    """Return the index of these very rules, the same one in each call with them."""
    each = tuple(rules)
    key = tuple(map(id, each))
    found = _INDEXES.get(key)
    if found is None:
        if len(_INDEXES) >= MAX_INDEXES:
            del _INDEXES[next(iter(_INDEXES))]  # the oldest one
        found = _INDEXES[key] = RuleIndex(each)
    return found


def _prepare(e: _Entry) -> _ReadyRule:
    """Return the compiled pattern of an entry."""
    if e.ready is None:
        p = compile_pattern(e.rule)
        e.ready = _ReadyRule(e.number, e.root, p, p.starts[e.root], compiled_chains(p)[e.root])
    return e.ready


@lru_cache(maxsize=1 << 14)
def rule_operators(rule: Rule) -> frozenset[Op]:
    """Return the operators of both sides."""
    return frozenset(
        t.op for side in (*rule.lhs, *rule.rhs) for t in walk(side) if isinstance(t, App)
    )


def _nodes_above(
    ctx: GraphContext, near: Collection[Node], reach: int
) -> Iterator[tuple[Node, int]]:
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


def _operand_source(v: object) -> Source:
    kind = type(v)
    if kind is Node:
        return v.op  # type: ignore[attr-defined,no-any-return]
    if kind is Item:
        return (v.node.op,)  # type: ignore[attr-defined]
    return CONSTANT if kind is Constant else OTHER


def _can_start(root: App, sources: tuple[Source, ...]) -> bool:
    """True if the operands of `root` can have these producers."""
    terms = root.operands
    if any(isinstance(t, (OperandRun, AllResults)) for t in terms):
        return all(
            any(_can_be(t, s) for s in sources) for t in terms if not isinstance(t, OperandRun)
        )
    if root.op.name in NARY_OPS and len(sources) > len(terms) > 1:
        # a run may be an operand that the rule names: only operators in the pattern count
        return all(
            any(_can_be(t, s) for s in sources)
            for t in terms
            if not (isinstance(t, App) and t.op is root.op)
        )
    if len(terms) != len(sources):
        return False
    pairs = [zip(terms, sources, strict=True)]
    if "commutative" in root.op.laws and len(terms) == 2:
        pairs.append(zip(terms, sources[::-1], strict=True))
    return any(all(_can_be(t, s) for t, s in p) for p in pairs)


def _can_be(t: Term, s: Source) -> bool:
    match t:
        case App(op):
            return s is op
        case Pick(App(op)) | AllResults(App(op)):
            return s is op or s == (op,)
        case Number() | Scalar() | Fill():
            return s == CONSTANT
        case _:
            return True


def _deduplicate(found: list[tuple[int, int, int, list[Match]]]) -> list[Match]:
    """Return the matches; those of several roots are found from each root, and kept once."""
    out: list[Match] = []
    seen: set[object] = set()
    for _, _, _, matches in found:
        for m in matches:
            if len(m.pattern.starts) > 1:
                key = (m.rule.name, m.roots, tuple([m.cells[s] for s in m.pattern.slots.values()]))
                if key in seen:
                    continue
                seen.add(key)
            out.append(m)
    return out
