"""Rewrite the tensors of a plan by rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TypeAlias

from superopt.rules.te.axes import bind_axes
from superopt.rules.te.build import Builder, Env
from superopt.rules.te.match import (
    ANY_ROOT,
    READ_THROUGH,
    Context,
    Matcher,
    key_of,
    number_value,
    root_key,
)
from superopt.rules.te.term import Fact, Fold, TeRule, parse_te_rules
from superopt.te.analysis.walk import loads, subexpressions
from superopt.te.expr.node import Apply, Axis, Expr, Reduce
from superopt.te.expr.tensor import Tensor

MAX_REWRITES = 1000  # of one tensor by one set of rules
TE_LIBRARY = Path(__file__).resolve().parent.parent / "library" / "te"


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A rewritten tensor: its definition, the tensors in memory that it reads instead, those whose
    definitions were looked into, and the values of the rule's names."""

    rule: TeRule
    tensor: Tensor
    stored: tuple[Tensor, ...]
    read_through: tuple[Tensor, ...]
    env: Env


Facts: TypeAlias = Mapping[str, Sequence[Fact]]


@dataclass(frozen=True, slots=True)
class RuleSet:
    """Rules in order, and by the roots of their left sides; and facts by their predicates."""

    rules: tuple[TeRule, ...]
    facts: Facts = field(default_factory=dict)
    by_root: dict[str, list[TeRule]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for rule in self.rules:
            self.by_root.setdefault(root_key(rule.lhs), []).append(rule)

    def rewrites(self, t: Tensor, context: Context) -> Iterator[Rewrite]:
        """Yield a tensor rewritten in each way, at outer subexpressions first."""
        if t.body is None:
            return
        for rule in self.by_root.get("tensor over axes", ()):
            yield from rewrite_axes(t, self.matcher(rule, t, context))
        matchers: dict[str, Matcher] = {}
        for e in _element_expressions(t.body):
            for rule in (*self.by_root.get(key_of(e), ()), *self.by_root.get(ANY_ROOT, ())):
                if rule.name not in matchers:
                    matchers[rule.name] = self.matcher(rule, t, context)
                yield from rewrite_at(t, e, matchers[rule.name])

    def rewrite(self, t: Tensor, context: Context) -> Rewrite | None:
        """Return a tensor rewritten in the first way; None if no rule matches."""
        return next(self.rewrites(t, context), None)

    def rewrite_fully(self, t: Tensor, context: Context) -> Tensor:
        """Return a tensor rewritten until no rule matches. The rules make no other tensors."""
        for made in self.rewrite_repeatedly(t, context):
            t = made.tensor
        return t

    def rewrite_repeatedly(self, t: Tensor, context: Context) -> Iterator[Rewrite]:
        """Yield a tensor rewritten once, twice, ... until no rule matches.

        Raises:
            RuntimeError: after MAX_REWRITES, since a rule matches what it makes.
        """
        made = self.rewrite(t, context)
        for _ in range(MAX_REWRITES):
            if made is None:
                return
            yield made
            rule = made.rule
            made = self.rewrite(made.tensor, context)
        raise RuntimeError(f"rule {rule.name} rewrote {t.name} {MAX_REWRITES} times without an end")

    def rewrite_root(self, e: Expr, context: Context) -> Expr | None:
        """Return an expression rewritten as a whole; None if no rule matches."""
        for rule in self.by_root.get(key_of(e), ()):
            whole = Tensor("t", e.dtype, (), (), e)
            for made in rewrite_at(whole, e, self.matcher(rule, whole, context)):
                return made.tensor.body
        return None

    def occurrences(self, predicate: str, e: Expr) -> Iterator[Env]:
        """Yield the values of the names for each subexpression with a property."""
        for f in self.facts[predicate]:
            key = root_key(f.rule.lhs)
            for x in dict.fromkeys(x for x in subexpressions(e) if key_of(x) == key):
                yield from Matcher(f.rule, Context(), (), e, self.facts).matches(x)

    def matcher(self, rule: TeRule, t: Tensor, context: Context) -> Matcher:
        assert t.body is not None
        return Matcher(rule, context, t.axes, t.body, self.facts)


def rewrite_at(t: Tensor, e: Expr, m: Matcher) -> Iterator[Rewrite]:
    """Yield `t` with its subexpression `e` rewritten, for each way in which the rule matches."""
    assert t.body is not None
    for env in m.matches(e):
        build = Builder(dict(env), t.axes, number_value, e.dtype)
        new = build.expr(m.rule.rhs)
        if new.dtype is e.dtype:  # a reduction may have another type than its terms
            yield _rewrite(m, build, t, t.axes, replace_expr(t.body, e, new))


def rewrite_axes(t: Tensor, m: Matcher) -> Iterator[Rewrite]:
    """Yield `t` with other axes, for each way in which a rule on tensors matches."""
    lhs, rhs = m.rule.lhs, m.rule.rhs
    assert isinstance(lhs, Fold)
    assert isinstance(rhs, Fold)
    assert t.body is not None
    for bound in bind_axes(lhs.axes, t.axes, {}):
        for matched in m.match(lhs.body, t.body, bound, ()):
            for env in m.holding(m.rule.where, matched):
                build = Builder(dict(env), t.axes, number_value, t.dtype)
                axes = build.new_axes(rhs.axes)
                yield _rewrite(m, build, t, axes, build.expr(rhs.body))


def _rewrite(m: Matcher, build: Builder, t: Tensor, axes: tuple[Axis, ...], body: Expr) -> Rewrite:
    now = Tensor(t.name, t.dtype, tuple(a.extent for a in axes), axes, body)
    through = build.env.get(READ_THROUGH, ())
    assert isinstance(through, tuple)
    inlined = tuple(x for x in through if isinstance(x, Tensor))
    return Rewrite(m.rule, now, tuple(build.stored), inlined, build.env)


def rewrite_definitions(
    rules: RuleSet,
    definitions: Mapping[Tensor, Tensor],
    context: Context,
    repeat: bool = False,
) -> dict[Tensor, Tensor]:
    """Return the definitions, each rewritten once if a rule matches; with `repeat` until none does.
    New tensors come before their readers. Tensors whose definitions were looked into are removed
    where nothing reads them any more."""
    out: dict[Tensor, Tensor] = {}
    through: set[Tensor] = set()
    for t, now in definitions.items():
        for made in islice(rules.rewrite_repeatedly(now, context), None if repeat else 1):
            out |= {x: x for x in made.stored}
            through.update(made.read_through)
            now = made.tensor
        out[t] = now
    if through:
        read = {x.tensor for now in out.values() if now.body is not None for x in loads(now.body)}
        out = {t: now for t, now in out.items() if t not in through or t in read}
    return out


def replace_expr(e: Expr, old: Expr, new: Expr) -> Expr:
    """Return `e` with `new` in place of `old`."""
    if e is old or e == old:
        return new
    match e:
        case Apply(fn, args, dtype):
            some = tuple(replace_expr(a, old, new) for a in args)
            return e if all(a is b for a, b in zip(some, args, strict=True)) else Apply(
                fn, some, dtype
            )  # fmt: skip
        case Reduce(fn, axes, body, dtype):
            inner = replace_expr(body, old, new)
            return e if inner is body else Reduce(fn, axes, inner, dtype)
    return e


def _element_expressions(e: Expr) -> Iterator[Expr]:
    """Yield the subexpressions outside of indices once, outer ones first."""
    stack, seen = [e], set[int]()
    while stack:
        e = stack.pop()
        if id(e) in seen:
            continue
        seen.add(id(e))
        yield e
        match e:
            case Apply(_, args):
                stack += reversed(args)
            case Reduce(_, _, body):
                stack.append(body)


@lru_cache(maxsize=64)
def load_te_rules(name: str, *prefixes: str) -> RuleSet:
    """Return the rules of a file of `library/te`, such as "reductions"; those whose names begin
    with a prefix, if any is given."""
    if prefixes:
        whole = load_te_rules(name)
        return RuleSet(tuple(r for r in whole.rules if r.name.startswith(prefixes)), whole.facts)
    text = (TE_LIBRARY / f"{name}.rules").read_text(encoding="utf-8")
    rules, facts = parse_te_rules(text, f"te/{name}.rules")
    by_predicate: dict[str, list[Fact]] = {}
    for f in facts:
        by_predicate.setdefault(f.predicate, []).append(f)
    return RuleSet(tuple(rules), by_predicate)


def load_te_library() -> tuple[TeRule, ...]:
    """Return all rules on tensor expressions, in order of file name."""
    names = sorted(path.stem for path in TE_LIBRARY.glob("*.rules"))
    return tuple(r for name in names for r in load_te_rules(name).rules)
