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
    nodes,
    operands,
    producer,
    replace,
    result,
    results,
)
from superopt.ir.op import Attr, InferError
from superopt.rules.lang.functions import VALUE_TYPES, NotKnown, Result, as_number, as_tuple
from superopt.rules.lang.interpreter import Scope, compile_formula, reject_users, unpack
from superopt.rules.lang.printer import show
from superopt.rules.lang.rule import Rule
from superopt.rules.lang.term import (
    Absent,
    AllResults,
    App,
    Fill,
    Formula,
    MapTerms,
    Number,
    OperandRun,
    Pick,
    Scalar,
    Term,
    Var,
    free_names,
    walk,
)
from superopt.rules.lang.value_facts import sibling_dtype
from superopt.rules.match.graph_context import GraphContext
from superopt.rules.match.magnitude import SUM_OPS, lossy_operand, magnitude
from superopt.rules.match.matcher import Match
from superopt.rules.match.node_builder import (
    Unsafe,
    as_attribute,
    fill_constant,
    make_node,
    scalar_constant,
)
from superopt.rules.match.operand_steps import FOUND_SLOT, Cells
from superopt.rules.match.pattern import Pattern, compile_pattern
from superopt.te.expr.dtype import I64, DType

DTYPE_SLOT = FOUND_SLOT  # while building: the element type of numbers without siblings


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
        if depends_on_any(leaves, match.roots, None if ctx is None else ctx.position):
            return Refusal("cycle", "an operand of the right side needs a result of the left side")
    env: Cells = [*match.cells, *[None] * (side.size - len(match.cells))]
    env[DTYPE_SLOT] = match.roots[0].type.dtype
    try:
        new = [v for build in side.results for v in build(env)]
        if match.part is not None:
            return _rewrite_part(match, new)
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
    for old, replacement in zip(match.roots, new, strict=True):
        if old.type != replacement.type:
            return Refusal("shape", f"{old.type} would become {replacement.type}")
        change[old] = replacement
    return change


def _rewrite_part(match: Match, new: Sequence[Value]) -> dict[Value, Value] | Refusal:
    """Replace operands i to j of an n-ary operator, which are the root."""
    assert match.part is not None
    n, i, j = match.part
    (root, _), *_ = match.pattern.roots
    old = match.cells[root].type
    if len(new) != 1 or new[0].type != old:
        return Refusal("shape", f"{old} would become {', '.join(str(v.type) for v in new)}")
    return {n: make_node(n.op, [*n.inputs[:i], new[0], *n.inputs[j:]], dict(n.attrs))}


def apply(match: Match, ctx: GraphContext) -> Applied | Refusal:
    """Return the graph of `ctx` rewritten at `match`."""
    change = rewrite(match, ctx)
    if isinstance(change, Refusal):
        return change
    new_nodes = tuple(n for n in nodes(change.values()) if n not in ctx.position)
    return Applied(replace(ctx.graph, change, ctx.position), new_nodes, change)


def depends_on_any(
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
    if isinstance(cell, VALUE_TYPES):
        return (cell,)
    return [v for v in cell if isinstance(v, VALUE_TYPES)] if isinstance(cell, tuple) else ()


# --- right sides ----------------------------------------------------------------------------------

BuildOne = Callable[[Cells], Value | None]
BuildMany = Callable[[Cells], Sequence[Value]]


@dataclass(frozen=True, slots=True)
class _RightSide:
    """size: of the environment. leaves: slots of the operands used. results: their builders."""

    size: int
    leaves: tuple[int, ...]
    results: tuple[BuildMany, ...]


@lru_cache(maxsize=1 << 13)
def _right_side(rule: Rule) -> _RightSide:
    p = compile_pattern(rule)
    b = _Builder(p, rule)
    builders = tuple(b.build_root(t, alone=len(rule.rhs) == 1) for t in rule.rhs)
    leaves = {
        p.slots[q.name]
        for t in rule.rhs
        for q in walk(t)
        if isinstance(q, (Var, OperandRun)) and q.name in p.slots
    }
    return _RightSide(len(b.scope.cells), tuple(sorted(leaves)), builders)


class _Builder:
    """Compiles the terms of one right side."""

    def __init__(self, p: Pattern, rule: Rule) -> None:
        self.scope = Scope(dict(p.slots), dict(p.terms), [None] * p.size)
        self.may_regroup = rule.float_class != "E0"
        self.local_names: frozenset[str] = frozenset()  # variables of enclosing comprehensions
        counts: dict[App, int] = {}
        for t in rule.rhs:
            for q in walk(t):
                if isinstance(q, App):
                    counts[q] = counts.get(q, 0) + 1
        self.cached_slots = {q: self.scope.new_slot() for q, n in counts.items() if n > 1}

    def formula(self, f: Formula) -> Callable[[Cells], Result]:
        return compile_formula(f, self.scope, reject_users)

    def build_root(self, t: Term, alone: bool) -> BuildMany:
        if isinstance(t, App) and alone:
            build = self.build_app(t)
            return lambda env: results(build(env))
        return self.build_many(t)

    def build_many(self, t: Term) -> BuildMany:
        """Return a builder of the values that a term adds to a list of operands or results."""
        match t:
            case OperandRun(n):
                slot = self.scope.slots[n]
                return lambda env: env[slot]
            case AllResults(app):
                build = self.build_app(app)
                return lambda env: results(build(env))
            case MapTerms(body, own, over):
                return self.build_map(body, own, over)
            case _:
                one = self.build_one(t)

                def single(env: Cells) -> Sequence[Value]:
                    v = one(env)
                    if v is None:
                        raise NotKnown(f"{show(t)} is absent")
                    return (v,)

                return single

    def build_map(self, body: Term, variables: tuple[str, ...], over: Formula | App) -> BuildMany:
        source: Callable[[Cells], Sequence[Result]]
        if isinstance(over, App):
            source = self.build_many(AllResults(over))
        else:
            items = self.formula(over)
            source = lambda env: as_tuple(items(env))  # noqa: E731
        outer, local = self.scope, self.local_names
        self.scope, self.local_names = outer.inner_scope(variables), local | frozenset(variables)
        slots = [self.scope.slots[n] for n in variables]
        build = self.build_many(body)
        self.scope, self.local_names = outer, local

        def run(env: Cells) -> Sequence[Value]:
            out: list[Value] = []
            for one in source(env):
                unpack(env, slots, one)
                out += build(env)
            return out

        return run

    def build_one(self, t: Term) -> BuildOne:
        match t:
            case Var(n):
                slot = self.scope.slots[n]
                return lambda env: env[slot]
            case Absent():
                return lambda env: None
            case App():
                build = self.build_app(t)
                return lambda env: _single_result(build(env))
            case Pick(app, i):
                build = self.build_app(app)
                return lambda env: _result(build(env), i)
            case Number() | Scalar() | Fill():
                constant_of = self.build_constant(t)
                return lambda env: constant_of(env, env[DTYPE_SLOT])
            case _:
                raise AssertionError(f"{show(t)} where one value is expected")

    def build_app(self, t: App) -> Callable[[Cells], Node]:
        build = self.build_node(t)
        keep = self.cached_slots.get(t)
        if keep is None or free_names(t) & self.local_names:
            return build

        def once(env: Cells) -> Node:
            if env[keep] is None:
                env[keep] = build(env)
            return env[keep]  # type: ignore[no-any-return]

        return once

    def build_node(self, t: App) -> Callable[[Cells], Node]:
        regroups = self.may_regroup and t.op.name in SUM_OPS
        op, index = t.op, 1 if t.op.name.startswith("Gather") else -1
        parts: list[
            tuple[BuildOne | None, BuildMany | None, Callable[[Cells, DType], Value] | None]
        ] = []
        for o in t.operands:
            match o:
                case Number() | Scalar() | Fill():
                    parts.append((None, None, self.build_constant(o)))
                case OperandRun() | AllResults() | MapTerms():
                    parts.append((None, self.build_many(o), None))
                case _:
                    parts.append((self.build_one(o), None, None))
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
                dtype = sibling_dtype(kinds) or env[DTYPE_SLOT]
                for at, late in pending:
                    values[at] = late(env, I64 if at == index else dtype)
            attrs: dict[str, Attr] = {} if rest is None else dict(env[rest])
            for k, f in given:
                attrs[k] = as_attribute(f(env))
            if regroups and (large := lossy_operand(op, values)) is not None:
                raise Lossy(f"an operand of {op.name} may be as large as {magnitude(large):.3g}")
            return make_node(op, values, attrs)

        return build

    def build_constant(self, t: Number | Scalar | Fill) -> Callable[[Cells, DType], Value]:
        match t:
            case Number(n):
                return lambda env, dtype: scalar_constant(n, dtype)
            case Scalar(f):
                run = self.formula(f)
                return lambda env, dtype: scalar_constant(as_number(run(env)), dtype)
            case Fill(kind, args):
                given = [self.formula(a) for a in args]
                return lambda env, dtype: fill_constant(kind, [g(env) for g in given], dtype)


def _single_result(n: Node) -> Value:
    if len(n.types) != 1:
        raise InferError(f"{n.op.name} has {len(n.types)} results where one is expected")
    return n


def _result(n: Node, i: int) -> Value:
    if i >= len(n.types):
        raise InferError(f"{n.op.name} has no result {i}, only {len(n.types)}")
    return result(n, i)
