"""Match expressions with the left sides of rules, and evaluate conditions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import permutations
from typing import TypeAlias

from superopt.rules.te.axes import bind_axes, digit_axes, join_axes
from superopt.rules.te.build import Builder, Lambda, Value, as_axis, as_tuple
from superopt.rules.te.term import (
    AxisTerm,
    Call,
    Element,
    Fact,
    Fold,
    Lit,
    Rest,
    Run,
    Store,
    Term,
    TeRule,
    Tuple,
    Var,
    element_kinds,
    subterms,
)
from superopt.te.analysis.affine import affine, free_axes
from superopt.te.analysis.inline import substitute_axes
from superopt.te.analysis.walk import loads, operands, reductions, subexpressions
from superopt.te.eval.interpret import evaluate
from superopt.te.expr.dtype import DTYPES, INDEX
from superopt.te.expr.node import Apply, Axis, Const, Expr, Load, Reduce
from superopt.te.expr.tensor import Tensor, const, ravel

Condition: TypeAlias = Callable[..., object]
INTEGERS = {"size": 1, "nat": 0, "int": -float("inf")}  # kinds, with their least values
COMMUTATIVE = frozenset(("add", "mul", "max", "min"))


@dataclass(frozen=True, slots=True)
class Context:
    """What rules may assume. definitions: the tensors whose definitions a `store` may look into,
    with these. conditions: the functions that conditions name. constants: constant tensors.
    sees_stages: look into the stages that are inlined in a kernel, too."""

    definitions: Mapping[Tensor, Tensor] = field(default_factory=dict)
    conditions: Mapping[str, Condition] = field(default_factory=dict)
    constants: Collection[Tensor] = ()
    sees_stages: bool = False


ANY_ROOT, ANY_FOLD = "", "reduce over axes"
READ_THROUGH = "*"  # the name of the tensors whose definitions a match looked into


def root_key(t: Term) -> str:
    """Return what an expression must be at its root to match: a function, a reduction, "load"."""
    match t:
        case Call(fn, _):
            return "cast" if fn in DTYPES else fn
        case Fold(fn, _, _):
            return f"{fn} over axes"
        case Element() | Store():
            return "load"
    return ANY_ROOT


def key_of(e: Expr) -> str:
    match e:
        case Apply(fn, _):
            return fn
        case Reduce(fn, _, _):
            return f"{fn} over axes"
        case Load():
            return "load"
    return "leaf"


def number_value(e: Expr) -> float:
    """Return the value of an expression without loads and axes, computed in its element type."""
    return float(evaluate(Tensor("number", e.dtype, (), (), e), {}))


@dataclass(slots=True)
class Matcher:
    """Matches one rule in a tensor. axes, result: those of the tensor, and its expression. facts:
    by their predicates. starts: the ways in which its axes match."""

    rule: TeRule
    context: Context
    axes: tuple[Axis, ...]
    result: Expr
    facts: Mapping[str, Sequence[Fact]] = field(default_factory=dict)
    starts: list[dict[str, Value]] = field(init=False)

    def __post_init__(self) -> None:
        self.starts = [{}]
        for t in self.rule.where:
            if isinstance(t, Fold):  # a condition on the axes of the tensor, which binds them
                bound = bind_axes(t.axes, self.axes, {})
                early = _conditions_on_axes(self.rule)
                self.starts = [env for start in bound for env in self.holding(early, start)]

    def matches(self, e: Expr) -> Iterator[dict[str, Value]]:
        """Yield the values of the names for each way in which `e` matches and conditions hold."""
        for start in self.starts:
            for env in self.match(self.rule.lhs, e, start, ()):
                yield from self.holding(self.rule.where, env)

    def match(
        self, p: Term, e: Expr, env: dict[str, Value], scope: tuple[Axis, ...]
    ) -> Iterator[dict[str, Value]]:
        """Yield the extensions of `env` with which the pattern is `e`. scope: the axes that the
        pattern binds around `e`."""
        if self.context.sees_stages and isinstance(p, Call | Fold) and isinstance(e, Load):
            e = _stage_element(e, root_key(p))
        match p, e:
            case Var(name, args), _:
                yield from self.match_variable(name, args, e, env, scope)
            case Lit(v), Const(w):
                if v == w:
                    yield env
            case Call(fn, (x,)), Apply("cast", (y,), dtype) if DTYPES.get(fn) is dtype:
                yield from self.match(x, y, env, scope)
            case Call("add" | "mul"), _ if e.dtype == INDEX:
                yield from self.match_affine(p, e, env)
            case Call(fn, ps), Apply(gn, es) if fn == gn and len(ps) == len(es):
                yield from self.match_all(ps, es, env, scope)
                if fn in COMMUTATIVE and any(map(self.is_number_term, ps)):
                    yield from self.match_all(ps, es[::-1], env, scope)
            case Fold(fn, axes, body), Reduce(gn, own, inner) if fn in (gn, "reduce"):
                for more in bind_axes(axes, own, env):
                    yield from self.match(body, inner, more, (*scope, *own))
            case Element(name, index), Load(t, at):
                yield from self.match_element(name, index, t, at, env, scope)
            case Store(_, _, body), Load(t, at):
                now = self.context.definitions.get(t)
                if now is None or now.body is None:
                    return
                wanted = root_key(body)
                if wanted and wanted != key_of(now.body):
                    return
                inner = substitute_axes(now.body, dict(zip(now.axes, at, strict=True)))
                for more in self.match(body, inner, env, scope):
                    yield more | {READ_THROUGH: (*as_tuple(more.get(READ_THROUGH, ())), t)}

    def match_affine(self, p: Term, e: Expr, env: dict[str, Value]) -> Iterator[dict[str, Value]]:
        """Match an index with a sum such as `o + f * k + b`, of axes with coefficients and a
        number."""
        form = affine(e)
        axes, base = _summands(p, self.rule.kinds)
        if form is None or len(form.terms) != len(axes):
            return
        for order in permutations(form.terms):
            more = self.match_all(
                [x for term in axes for x in term] + base,
                [x for a, c in order for x in (const(c, INDEX), a)]
                + [const(form.base, INDEX)] * len(base),
                env, (),
            )  # fmt: skip
            if base or not form.base:
                yield from more

    def is_number_term(self, p: Term) -> bool:
        return isinstance(p, Lit) or (
            isinstance(p, Var) and self.rule.kinds.get(p.name) == "number"
        )

    def match_all(
        self,
        patterns: Sequence[Term],
        es: Sequence[Expr],
        env: dict[str, Value],
        scope: tuple[Axis, ...],
    ) -> Iterator[dict[str, Value]]:
        if not patterns:
            yield env
            return
        for more in self.match(patterns[0], es[0], env, scope):
            yield from self.match_all(patterns[1:], es[1:], more, scope)

    def match_variable(
        self,
        name: str,
        args: tuple[Term, ...] | None,
        e: Expr,
        env: dict[str, Value],
        scope: tuple[Axis, ...],
    ) -> Iterator[dict[str, Value]]:
        known = env.get(name)
        if known is not None:
            if args is not None:
                assert isinstance(known, Lambda)
                known = known(Builder(env, self.axes, number_value).items(args))
            elif isinstance(known, Lambda):
                known = known.body
            if known == e or (isinstance(e, Const) and known == e.value):
                yield env
            return
        if not self.has_kind(name, e):
            return
        if isinstance(e, Axis) and self.rule.kinds.get(name) == "axis" and e in env.values():
            return  # names of axes are different axes
        own: list[Axis] = []
        for p in args or ():
            match p:
                case Call("unravel", (Var(k), Run(sizes))):
                    digits = digit_axes(as_axis(env[k]), e)
                    env = env | {sizes: tuple(a.size for a in digits)}
                    whole = ravel(digits, [a.extent for a in digits])
                    e = substitute_axes(e, {as_axis(env[k]): whole})
                    own += digits
                case Call():
                    joined = join_axes(e, Builder(env, self.axes, number_value).expr(p))
                    if joined is None:
                        return
                    axis, e = joined
                    own.append(axis)
                case _:
                    own += map(as_axis, Builder(env, self.axes, number_value).items((p,)))
        if len(scope) > len(own) and not free_axes(e).isdisjoint({*scope} - {*own}):
            return
        is_integer = isinstance(e, Const) and self.rule.kinds.get(name) in INTEGERS
        if is_integer or (isinstance(e, Axis) and args is None):
            yield env | {name: int(e.value) if isinstance(e, Const) else e}
        else:
            yield env | {name: Lambda(tuple(own), e)}

    def has_kind(self, name: str, e: Expr) -> bool:
        kind = self.rule.kinds.get(name, "any")
        if kind.endswith("[...]") and not isinstance(e, Load):
            return False
        match kind.removesuffix("[...]"):
            case "any":
                return True
            case "computed":
                return isinstance(e, Apply | Reduce) and e.dtype is not INDEX
            case "axis":
                return isinstance(e, Axis)
            case "size" | "nat" | "int" as integer:
                return isinstance(e, Const) and e.value // 1 == e.value >= INTEGERS[integer]
            case "number":
                return all(isinstance(x, Const) or operands(x) for x in subexpressions(e)) and not (
                    any(isinstance(x, Load | Reduce) for x in subexpressions(e))
                )
            case "constant":
                return all(x.tensor in self.context.constants for x in loads(e))
        return any(e.dtype is DTYPES[one] for one in element_kinds(kind))

    def match_element(
        self,
        name: str,
        patterns: Sequence[Term],
        t: Tensor,
        index: Sequence[Expr],
        env: dict[str, Value],
        scope: tuple[Axis, ...],
    ) -> Iterator[dict[str, Value]]:
        """Match an element: the indices of axes longer than 1 with the patterns, of which a `...`
        at both ends leaves out any others."""
        if env.get(name, t) is not t:
            return
        match self.rule.kinds.get(name):
            case "constant" if t not in self.context.constants:
                return
            case "reduction" if len(reductions(self.context.definitions.get(t, t).body)) != 1:
                return
        env = env | {name: t}
        at = [i for i, n in zip(index, t.shape, strict=True) if n != 1]
        match patterns:
            case [Rest(), p, Rest()]:
                for i in at:
                    yield from self.match(p, i, env, scope)
            case _ if len(patterns) == len(at):
                yield from self.match_all(patterns, at, env, scope)

    # --- conditions -------------------------------------------------------------------------------

    def holding(
        self, conditions: Sequence[Term], env: dict[str, Value]
    ) -> Iterator[dict[str, Value]]:
        """Yield the extensions of `env` with which the conditions hold."""
        if not conditions:
            yield env
            return
        for more in self.hold(conditions[0], env):
            yield from self.holding(conditions[1:], more)

    def hold(self, t: Term, env: dict[str, Value]) -> Iterator[dict[str, Value]]:
        match t:
            case Call("in", (pattern, Var(fn, args))) if args is not None and (
                choose := CHOICES.get(fn) or self.context.conditions.get(fn)
            ):
                found = choose(*self.arguments(args, env))
                assert isinstance(found, Sequence)
                for values in found:
                    if isinstance(values, Expr) and isinstance(pattern, Fold):
                        yield from self.match_within(pattern, values, env)
                    else:
                        yield env | _bind_names(pattern, values)
            case Call("in", (pattern, Var("result"))):
                yield from self.match_within(pattern, self.result, env)
            case Call("in", (pattern, within)):
                whole = Builder(env, self.axes, number_value).expr(within)
                yield from self.match_within(pattern, whole, env)
            case Call("eq", (Element() | Var(_, (_, *_)), _)):
                yield env  # what the condition before it promises, which the proof uses
            case Fold("axes", _, _):
                yield env  # bound before the match
            case Var(name, args) if args is not None:
                given = self.arguments(args, env)
                test = self.context.conditions.get(name)
                if self.has_property(name, given) if test is None else test(*given):
                    yield env
            case Call("not", (x,)):
                if not any(True for _ in self.hold(x, env)):
                    yield env
            case _:
                if all(map(_is_true, as_tuple(Builder(env, self.axes, number_value).value(t)))):
                    yield env

    def match_within(
        self, pattern: Term, whole: Expr, env: dict[str, Value]
    ) -> Iterator[dict[str, Value]]:
        """Match a subexpression."""
        wanted = root_key(pattern)
        for e in subexpressions(whole):
            if wanted in (ANY_ROOT, key_of(e)) or (wanted == ANY_FOLD and isinstance(e, Reduce)):
                yield from self.match(pattern, e, env, ())

    def arguments(self, args: Sequence[Term], env: dict[str, Value]) -> list[Value]:
        """Return the arguments of a condition, of expressions their bodies."""
        values = Builder(env, self.axes, number_value).items(args)
        return [v.body if isinstance(v, Lambda) else v for v in values]

    def has_property(self, predicate: str, given: Sequence[Value]) -> bool:
        (e,) = given
        assert isinstance(e, Expr)
        return any(
            True
            for f in self.facts[predicate]
            for _ in Matcher(f.rule, self.context, self.axes, self.result, self.facts).matches(e)
        )


@lru_cache(maxsize=256)
def _conditions_on_axes(rule: TeRule) -> tuple[Term, ...]:
    """Return the conditions that depend on the axes of the tensor only."""
    folds = [t for t in rule.where if isinstance(t, Fold)]
    known = {a.name for t in folds for a in t.axes if isinstance(a, AxisTerm)}
    return tuple(
        t for t in rule.where
        if isinstance(t, Var | Call) and t.args and not (isinstance(t, Call) and t.fn == "in")
        and {x.name for a in t.args for x in subterms(a) if isinstance(x, Var | Run)} <= known
    )  # fmt: skip


def _stage_element(e: Load, wanted: str) -> Expr:
    """Return what a load reads of an inlined stage, if that is `wanted` at its root."""
    t = e.tensor
    if t.body is None or key_of(t.body) not in ("load", wanted):
        return e
    of = substitute_axes(t.body, dict(zip(t.axes, e.index, strict=True)))
    return _stage_element(of, wanted) if isinstance(of, Load) else of


def _summands(p: Term, kinds: Mapping[str, str]) -> tuple[list[tuple[Term, Term]], list[Term]]:
    """Return (coefficient, axis) for each axis of a sum, and the number that is added."""
    match p:
        case Call("add", (x, y)):
            some = [_summands(x, kinds), _summands(y, kinds)]
            return [t for axes, _ in some for t in axes], [t for _, base in some for t in base]
        case Call("mul", (x, y)):
            return [(x, y)], []
        case Var(name, None) if kinds.get(name) == "axis":
            return [(Lit(1), p)], []
    return [], [p]


def _divide(n: int, m: int) -> list[int]:
    return [n // m] if n % m == 0 else []


CHOICES: Mapping[str, Condition] = {"divide": _divide}  # that all rules know


def _is_true(v: Value) -> bool:
    return bool(v.value) if isinstance(v, Const) else v is True


def _bind_names(names: Term, values: object) -> dict[str, Value]:
    if isinstance(names, Var):
        return {names.name: values}  # type: ignore[dict-item]
    assert isinstance(names, Tuple)
    assert isinstance(values, Sequence)
    items = [x.name for x in names.items if isinstance(x, Var)]
    return dict(zip(items, values, strict=True))
