"""The right side of a rule, built at a match of its left side.

`rewrite` returns what replaces what, which is all that a cost needs; `apply` makes the new graph.
Right sides are compiled once per rule, like left sides, to functions of the environment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from superopt.ir.graph import (
    Graph,
    Node,
    Value,
    item,
    nodes,
    operands,
    producer,
    replace,
    results,
)
from superopt.ir.op import Attr, InferError
from superopt.rules.condition import Scope, compiled, no_users, unpack
from superopt.rules.context import GraphContext
from superopt.rules.facts import sibling_kind
from superopt.rules.functions import VALUE, NotKnown, Result, number, sequence
from superopt.rules.magnitude import SUMS, loses, magnitude
from superopt.rules.make import Unsafe, attribute, filled, make, scalar
from superopt.rules.match import Match
from superopt.rules.plan import Plan, plan
from superopt.rules.rule import Rule
from superopt.rules.steps import FOUND, Cells
from superopt.rules.term import (
    Absent,
    All,
    App,
    Filled,
    Formula,
    Map,
    Number,
    Pick,
    Run,
    Scalar,
    Term,
    Var,
    names,
    show,
    walk,
)
from superopt.te.dtype import I64, DType

DTYPE = FOUND  # while building: the element type of numbers without siblings


class Lossy(Exception):
    """A right side over floats would lose digits that the left side keeps; the message says
    where."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a match was not rewritten.

    reason: 'shape' (a result has another type), 'cycle' (an operand needs a result), 'condition' (a
    formula has no value), 'infer' (an operator refuses its operands), 'unsafe' (too large),
    'rounding' (a sum regrouped around a large constant).
    """

    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Applied:
    """The graph after a rewrite, the nodes that the rewrite made, and the replacements."""

    graph: Graph
    new_nodes: tuple[Node, ...]
    change: Mapping[Value, Value]


def rewrite(match: Match, ctx: GraphContext | None = None) -> dict[Value, Value] | Refusal:
    """Return the replacements of `match`. Nothing is rebuilt: `graph.replace` makes the graph.

    With several roots, first check whether an operand of the right side needs one of them: the new
    graph would have a cycle. `ctx`, the match's graph, speeds up this check.
    """
    side = _right_side(match.rule)
    if len(match.roots) > 1:
        leaves = [v for s in side.leaves for v in _values(match.cells[s])]
        if needs_one(leaves, match.roots, None if ctx is None else ctx.position):
            return Refusal("cycle", "an operand of the right side needs a result of the left side")
    env: Cells = [*match.cells, *[None] * (side.size - len(match.cells))]
    env[DTYPE] = match.roots[0].type.dtype
    try:
        new = [v for build in side.results for v in build(env)]
        if match.part is not None:
            return _in_part(match, new)
    except InferError as e:
        return Refusal("infer", str(e))
    except NotKnown as e:
        return Refusal("condition", str(e))
    except Unsafe as e:
        return Refusal("unsafe", str(e))
    except Lossy as e:
        return Refusal("rounding", str(e))
    if len(new) != len(match.roots):
        return Refusal("shape", f"{len(match.roots)} results would become {len(new)}")
    change: dict[Value, Value] = {}
    for old, made in zip(match.roots, new, strict=True):
        if old.type != made.type:
            return Refusal("shape", f"{old.type} would become {made.type}")
        change[old] = made
    return change


def _in_part(match: Match, new: Sequence[Value]) -> dict[Value, Value] | Refusal:
    """Replace operands i to j of an n-ary operator, which are the root."""
    assert match.part is not None
    n, i, j = match.part
    (root, _), *_ = match.plan.roots
    old = match.cells[root].type
    if len(new) != 1 or new[0].type != old:
        return Refusal("shape", f"{old} would become {', '.join(str(v.type) for v in new)}")
    return {n: make(n.op, [*n.inputs[:i], new[0], *n.inputs[j:]], dict(n.attrs))}


def apply(match: Match, ctx: GraphContext) -> Applied | Refusal:
    """Return the graph of `ctx` rewritten at `match`."""
    change = rewrite(match, ctx)
    if isinstance(change, Refusal):
        return change
    made = tuple(n for n in nodes(change.values()) if n not in ctx.position)
    return Applied(replace(ctx.graph, change, ctx.position), made, change)


def needs_one(
    values: Iterable[Value], goals: Sequence[Value], position: Mapping[Node, int] | None
) -> bool:
    """True if one of `goals` is among `values` or their ancestors.

    `position` is the index of each node in topological order, which bounds the walk.
    """
    goal = {producer(g) for g in goals}
    first = min((position[n] for n in goal if n is not None), default=0) if position else 0
    stack = list(values)
    seen: set[Node] = set()
    while stack:
        n = producer(stack.pop())
        if n is None or n in seen:
            continue
        if n in goal:
            return True
        if position is not None and position.get(n, first) < first:
            continue
        seen.add(n)
        stack.extend(operands(results(n)[0]))
    return False


def _values(cell: object) -> Iterable[Value]:
    if isinstance(cell, VALUE):
        return (cell,)
    return [v for v in cell if isinstance(v, VALUE)] if isinstance(cell, tuple) else ()


# --- right sides ----------------------------------------------------------------------------------

One = Callable[[Cells], Value | None]
Many = Callable[[Cells], Sequence[Value]]


@dataclass(frozen=True, slots=True)
class _RightSide:
    """size: of the environment. leaves: slots of the operands used. results: their builders."""

    size: int
    leaves: tuple[int, ...]
    results: tuple[Many, ...]


@lru_cache(maxsize=1 << 13)
def _right_side(rule: Rule) -> _RightSide:
    p = plan(rule)
    b = _Builder(p, rule)
    made = tuple(b.root(t, alone=len(rule.rhs) == 1) for t in rule.rhs)
    leaves = {
        p.slots[q.name]
        for t in rule.rhs
        for q in walk(t)
        if isinstance(q, (Var, Run)) and q.name in p.slots
    }
    return _RightSide(len(b.scope.used), tuple(sorted(leaves)), made)


class _Builder:
    """Compiles the terms of one right side."""

    def __init__(self, p: Plan, rule: Rule) -> None:
        self.scope = Scope(dict(p.slots), dict(p.terms), [None] * p.size)
        self.regroups = rule.float_class != "E0"
        self.local: frozenset[str] = frozenset()  # variables of enclosing comprehensions
        counts: dict[App, int] = {}
        for t in rule.rhs:
            for q in walk(t):
                if isinstance(q, App):
                    counts[q] = counts.get(q, 0) + 1
        self.kept = {q: self.scope.fresh() for q, n in counts.items() if n > 1}

    def formula(self, f: Formula) -> Callable[[Cells], Result]:
        return compiled(f, self.scope, no_users)

    def root(self, t: Term, alone: bool) -> Many:
        if isinstance(t, App) and alone:
            build = self.app(t)
            return lambda env: results(build(env))
        return self.several(t)

    def several(self, t: Term) -> Many:
        """Return a builder of the values that a term adds to a list of operands or results."""
        match t:
            case Run(n):
                slot = self.scope.slots[n]
                return lambda env: env[slot]
            case All(app):
                build = self.app(app)
                return lambda env: results(build(env))
            case Map(body, own, over):
                return self.map(body, own, over)
            case _:
                one = self.one(t)

                def single(env: Cells) -> Sequence[Value]:
                    v = one(env)
                    if v is None:
                        raise NotKnown(f"{show(t)} is absent")
                    return (v,)

                return single

    def map(self, body: Term, own: tuple[str, ...], over: Formula | App) -> Many:
        source: Callable[[Cells], Sequence[Result]]
        if isinstance(over, App):
            source = self.several(All(over))
        else:
            items = self.formula(over)
            source = lambda env: sequence(items(env))  # noqa: E731
        outer, local = self.scope, self.local
        self.scope, self.local = outer.inner(own), local | frozenset(own)
        slots = [self.scope.slots[n] for n in own]
        build = self.several(body)
        self.scope, self.local = outer, local

        def run(env: Cells) -> Sequence[Value]:
            out: list[Value] = []
            for one in source(env):
                unpack(env, slots, one)
                out += build(env)
            return out

        return run

    def one(self, t: Term) -> One:
        match t:
            case Var(n):
                slot = self.scope.slots[n]
                return lambda env: env[slot]
            case Absent():
                return lambda env: None
            case App():
                build = self.app(t)
                return lambda env: _only(build(env))
            case Pick(app, i):
                build = self.app(app)
                return lambda env: _result(build(env), i)
            case Number() | Scalar() | Filled():
                constant_of = self.constant(t)
                return lambda env: constant_of(env, env[DTYPE])
            case _:
                raise AssertionError(f"{show(t)} where one value is meant")

    def app(self, t: App) -> Callable[[Cells], Node]:
        build = self.fresh(t)
        keep = self.kept.get(t)
        if keep is None or names(t) & self.local:
            return build

        def once(env: Cells) -> Node:
            if env[keep] is None:
                env[keep] = build(env)
            return env[keep]  # type: ignore[no-any-return]

        return once

    def fresh(self, t: App) -> Callable[[Cells], Node]:
        regroups = self.regroups and t.op.name in SUMS
        op, index = t.op, 1 if t.op.name.startswith("Gather") else -1
        parts: list[tuple[One | None, Many | None, Callable[[Cells, DType], Value] | None]] = []
        for o in t.operands:
            match o:
                case Number() | Scalar() | Filled():
                    parts.append((None, None, self.constant(o)))
                case Run() | All() | Map():
                    parts.append((None, self.several(o), None))
                case _:
                    parts.append((self.one(o), None, None))
        waits = any(c is not None for _, _, c in parts)
        rest = None if t.rest is None else self.scope.slots[t.rest]
        given = [(k, self.formula(f)) for k, f in t.attrs]

        def build(env: Cells) -> Node:
            values: list[Value | None] = []
            pending: list[tuple[int, Callable[[Cells, DType], Value]]] = []
            for one, many, late in parts:
                if one is not None:
                    values.append(one(env))
                elif many is not None:
                    values += many(env)
                elif late is not None:
                    pending.append((len(values), late))
                    values.append(None)
            if waits:
                kinds = (v.type.dtype for v in values if v is not None)
                dtype = sibling_kind(kinds) or env[DTYPE]
                for at, late in pending:
                    values[at] = late(env, I64 if at == index else dtype)
            attrs: dict[str, Attr] = {} if rest is None else dict(env[rest])
            for k, f in given:
                attrs[k] = attribute(f(env))
            if regroups and (large := loses(op, values)) is not None:
                raise Lossy(f"an operand of {op.name} may be as large as {magnitude(large):.3g}")
            return make(op, values, attrs)

        return build

    def constant(self, t: Number | Scalar | Filled) -> Callable[[Cells, DType], Value]:
        match t:
            case Number(n):
                return lambda env, dtype: scalar(n, dtype)
            case Scalar(f):
                run = self.formula(f)
                return lambda env, dtype: scalar(number(run(env)), dtype)
            case Filled(kind, args):
                given = [self.formula(a) for a in args]
                return lambda env, dtype: filled(kind, [g(env) for g in given], dtype)


def _only(n: Node) -> Value:
    if len(n.types) != 1:
        raise InferError(f"{n.op.name} has {len(n.types)} results where one is meant")
    return n


def _result(n: Node, i: int) -> Value:
    if i >= len(n.types):
        raise InferError(f"{n.op.name} has no result {i}, only {len(n.types)}")
    return item(n, i)
