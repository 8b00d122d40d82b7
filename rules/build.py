"""Building the right side of a rule where its left side matched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from superopt.ir.graph import Constant, Graph, Node, Value, constant, depends, item, node, replace
from superopt.ir.graph import producer as producer
from superopt.ir.op import InferError
from superopt.rules.condition import Env, Scope, compiled, no_users, unpack
from superopt.rules.context import GraphContext
from superopt.rules.facts import rounded
from superopt.rules.functions import NotKnown, Result, sequence
from superopt.rules.match import UNSET, Match
from superopt.rules.rule import Rule
from superopt.rules.term import (
    Absent, All, App, Each, Filled, Formula, Map, Name, Number, Part, Pick, Run, Scalar, Term, Var, show, walk,
)  # fmt: skip
from superopt.te.dtype import BOOL, F32, I64, DType, to_numpy


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a match was not rewritten: 'shape', 'cycle', 'condition', 'infer' or 'unsafe'."""

    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Applied:
    """The graph after a rewrite, and what replaced what."""

    graph: Graph
    change: Mapping[Value, Value]


def rewrite(match: Match, ctx: GraphContext) -> dict[Value, Value] | Refusal:
    """What `match` replaces by what, without building the new graph.

    Refused: results of another type than before ('shape'), a rewrite whose operands need its own
    results ('cycle'), operators that do not take their operands ('infer').
    """
    if len(match.roots) > 1:
        leaves = {v for v in _leaves(match) if v is not None}
        if depends(leaves, match.roots):
            return Refusal("cycle", "an operand needs one of the results")
    try:
        new = build(match.rule, match.bindings, match.terms, match.roots)
    except InferError as e:
        return Refusal("infer", str(e))
    except NotKnown as e:
        return Refusal("condition", str(e))
    if len(new) != len(match.roots):
        return Refusal("shape", f"{len(match.roots)} results become {len(new)}")
    change: dict[Value, Value] = {}
    for old, made in zip(match.roots, new, strict=True):
        if old.type != made.type:
            return Refusal("shape", f"{old.type} becomes {made.type}")
        change[old] = made
    return change


def apply(match: Match, ctx: GraphContext) -> Applied | Refusal:
    """`ctx.graph` rewritten at `match`."""
    change = rewrite(match, ctx)
    if isinstance(change, Refusal):
        return change
    return Applied(replace(ctx.graph, change), change)


def _leaves(match: Match) -> list[Value]:
    out: list[Value] = []
    for v in match.bindings.values():
        if isinstance(v, tuple):
            out += [x for x in v if _is_value(x)]  # type: ignore[misc]
        elif _is_value(v):
            out.append(v)  # type: ignore[arg-type]
    return out


def _is_value(v: object) -> bool:
    return hasattr(v, "type") and not isinstance(v, DType)


def build(
    rule: Rule,
    bindings: Mapping[str, Result],
    terms: Mapping[Term, Result],
    roots: Sequence[Value] = (),
) -> list[Value]:
    """The values of the right side, where the left side bound names and subterms.

    Raises InferError or NotKnown where they do not fit.
    """
    scope, runs = _scope(rule)
    env: list[object] = [UNSET] * (len(scope.used) + 2)
    for name, value in bindings.items():
        if name in scope.slots:
            env[scope.slots[name]] = value
    for t, value in terms.items():
        if t in scope.terms:
            env[scope.terms[t]] = value
    builder = _Builder(scope, env, runs)
    out: list[Value] = []
    for t in rule.rhs:
        out += builder.results(t, single=len(rule.rhs) > 1)
    return out


@lru_cache(maxsize=1 << 13)
def _scope(rule: Rule) -> tuple[Scope, dict[Formula, Callable[[Env], Result]]]:
    scope = Scope()
    for side in (*rule.lhs, *rule.rhs, *rule.where):
        for p in walk(side):
            match p:
                case Var(n) | Run(n) | Name(n):
                    scope.slot(n)
                case App(_, _, _, rest) if rest is not None:
                    scope.slot(rest)
                case Map(_, own, _):
                    for n in own:
                        scope.slot(n)
                case _:
                    pass
    for param in rule.params:
        for d in getattr(param, "shape", None) or ():
            for p in walk(d):
                if isinstance(p, Name):
                    scope.slot(p.id)
    for side in rule.lhs:
        for p in walk(side):
            if isinstance(p, (App, Pick)) and p not in scope.terms:
                scope.terms[p] = scope.fresh()
    runs: dict[Formula, Callable[[Env], Result]] = {}
    for side in rule.rhs:
        for p in walk(side):
            for f in _formulas(p):
                runs[f] = compiled(f, scope, no_users)
    return scope, runs


def _formulas(p: Part) -> tuple[Formula, ...]:
    """The formulas directly in a term."""
    match p:
        case App(_, _, attrs, _):
            return tuple(f for _, f in attrs)
        case Scalar(f):
            return (f,)
        case Filled(_, args):
            return args
        case Map(_, _, over) if not isinstance(over, App):
            return (over,)
        case _:
            return ()


class _Builder:
    def __init__(self, scope: Scope, env: list[object], runs: dict[Formula, Callable[[Env], Result]]) -> None:
        self.scope, self.env, self.runs = scope, env, runs

    def formula(self, f: Formula) -> Result:
        return self.runs[f](self.env)

    def results(self, t: Term, single: bool) -> list[Value]:
        """What a term at the root, or as operands, gives."""
        match t:
            case Run(n):
                return list(self.env[self.scope.slots[n]])  # type: ignore[call-overload]
            case All(app):
                n = self.app(app)
                return [item(n, i) for i in range(len(n.types))]
            case Map(body, own, over):
                items = self.results(All(over), False) if isinstance(over, App) else sequence(self.formula(over))
                slots = [self.scope.slots[n] for n in own]
                out: list[Value] = []
                for one in items:
                    unpack(self.env, slots, one)  # type: ignore[arg-type]
                    out += self.results(body, True)
                return out
            case App() if not single:
                n = self.app(t)
                return [item(n, i) for i in range(len(n.types))]
            case _:
                return [self.value(t)]  # type: ignore[list-item]

    def value(self, t: Term) -> Value | None:
        match t:
            case Var(n):
                found = self.env[self.scope.slots[n]]
                return found  # type: ignore[return-value]
            case Absent():
                return None
            case App():
                n = self.app(t)
                if len(n.types) != 1:
                    raise InferError(f"{show(t)} has {len(n.types)} results")
                return n
            case Pick(app, i):
                n = self.app(app)
                if i >= len(n.types):
                    raise InferError(f"{show(t)}: there are {len(n.types)} results")
                return item(n, i)
            case Filled(kind, args):
                return self.filled(kind, args, F32)
            case _:
                raise InferError(f"{show(t)} stands alone")

    def app(self, t: App) -> Node:
        operands: list[Value | None | Number | Scalar | Filled] = []
        for o in t.operands:
            if isinstance(o, (Number, Scalar, Filled)):
                operands.append(o)
            elif isinstance(o, (Run, All, Map)):
                operands += self.results(o, True)
            else:
                operands.append(self.value(o))
        dtype = self.sibling(t, operands)
        values: list[Value | None] = []
        for position, given in enumerate(operands):
            match given:
                case Number(number):
                    values.append(_scalar(number, self.kind(t, position, dtype)))
                case Scalar(f):
                    number = self.formula(f)
                    values.append(_scalar(number, self.kind(t, position, dtype)))
                case Filled(kind, args):
                    values.append(self.filled(kind, args, dtype))
                case _:
                    values.append(given)
        attrs = {}
        if t.rest is not None:
            attrs.update(dict(self.env[self.scope.slots[t.rest]]))  # type: ignore[call-overload]
        attrs |= {k: self.formula(f) for k, f in t.attrs}
        if t.op.name == "Concat":
            values = _flat(values, attrs)
        return node(t.op, values, **attrs)  # type: ignore[arg-type]

    def sibling(self, t: App, operands: Sequence[object]) -> DType:
        kinds = [v.type.dtype for v in operands if _is_value(v)]  # type: ignore[attr-defined]
        plain = [k for k in kinds if k is not None and k != BOOL]
        return plain[0] if plain else F32

    def kind(self, t: App, position: int, dtype: DType) -> DType:
        return I64 if t.op.name.startswith("Gather") and position == 1 else dtype

    def filled(self, kind: str, args: tuple[Formula, ...], dtype: DType) -> Value:
        given = [self.formula(f) for f in args]
        if given and isinstance(given[-1], DType):
            dtype = given.pop()  # type: ignore[assignment]
        stored = to_numpy(dtype)
        if kind == "eye":
            if not isinstance(given[0], int):
                raise NotKnown("the size of eye is symbolic")
            return constant(np.eye(given[0], dtype=stored))
        shape = sequence(given[0])
        if not all(isinstance(d, int) for d in shape):
            raise NotKnown("the shape of a constant is symbolic")
        number = {"zeros": 0, "ones": 1}.get(kind, given[-1] if kind == "full" else 0)
        return constant(np.full(tuple(shape), number, stored))  # type: ignore[arg-type]


def _flat(values: list[Value | None], attrs: Mapping[str, object]) -> list[Value | None]:
    """Operands of a Concat with those that are Concats on the same axis replaced by theirs."""
    out: list[Value | None] = []
    for v in values:
        if isinstance(v, Node) and v.op.name == "Concat" and _axis(v) == _count(v, attrs["axis"]):
            out += v.inputs
        else:
            out.append(v)
    return out


def _axis(v: Node) -> object:
    return v.attr("axis")


def _count(v: Node, axis: object) -> object:
    rank = len(v.type.shape or ())
    return axis % rank if isinstance(axis, int) and rank else axis


@lru_cache(maxsize=1 << 12)
def _number(value: float, dtype: DType) -> Constant:
    stored = rounded(value, dtype)
    if stored is None:
        raise InferError(f"{value} is no {dtype}")
    return constant(np.array(stored, to_numpy(dtype)))


def _scalar(number: object, dtype: DType) -> Constant:
    if isinstance(number, bool) or not hasattr(number, "numerator") and not isinstance(number, float):
        raise NotKnown(f"{number} is no number")
    return _number(float(number) if not isinstance(number, int) else number, dtype)  # type: ignore[arg-type]
