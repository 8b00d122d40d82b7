"""Substitution in expressions: the bodies of tensors for loads of them, and indices for axes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from superopt.te.analysis.affine import rebuild
from superopt.te.analysis.walk import index_axes
from superopt.te.expr import index
from superopt.te.expr.dtype import INDEX
from superopt.te.expr.node import Apply, Axis, Const, Expr, Index, Load, Reduce
from superopt.te.expr.tensor import Tensor


@dataclass(slots=True)
class Inliner:
    """Replaces loads of some tensors by the definitions of these."""

    definitions: Mapping[Tensor, Tensor]
    memo: dict[int, tuple[Expr, Expr]] = field(default_factory=dict)

    def expr(self, e: Expr) -> Expr:
        found = self.memo.get(id(e))
        if found is None:
            found = self.memo[id(e)] = (e, self._expr(e))
        return found[1]

    def _expr(self, e: Expr) -> Expr:
        match e:
            case Load(t, index, dtype):
                at = tuple(self.expr(i) for i in index)
                new = self.definitions.get(t)
                if new is None:
                    return e if at == index else Load(t, at, dtype)
                assert new.body is not None
                return self.expr(substitute_axes(new.body, dict(zip(new.axes, at, strict=True))))
            case Apply(fn, args, dtype):
                some = tuple(self.expr(a) for a in args)
                return e if some == args else rebuild(fn, some, dtype)
            case Reduce(fn, axes, body, dtype):
                return Reduce(fn, axes, self.expr(body), dtype)
            case Index(element, bound):
                return make_index(self.expr(element), self.expr(bound))
        return e


def substitute_axes(e: Expr, env: Mapping[Axis, Expr]) -> Expr:
    """Return `e` with `env` substituted for its axes; bound axes are renamed to avoid capture."""
    memo: dict[int, tuple[Expr, Expr]] = {}  # keeps the expression, so that its id stays unique
    names = {a.name for i in env.values() for a in index_axes(i)} | {a.name for a in env}

    def go(e: Expr) -> Expr:
        if id(e) not in memo:
            memo[id(e)] = (e, one(e))
        return memo[id(e)][1]

    def one(e: Expr) -> Expr:
        match e:
            case Axis():
                return env.get(e, e)
            case Load(t, index, dtype):
                return Load(t, tuple(map(go, index)), dtype)
            case Apply(fn, args, dtype):
                return rebuild(fn, tuple(map(go, args)), dtype)
            case Reduce(fn, axes, body, dtype):
                taken = [a for a in axes if a.name in names]
                if taken:  # rename a bound axis whose name is in use
                    new = {a: Axis(_fresh_name(a.name, names), a.extent) for a in taken}
                    inner = substitute_axes(body, {**new})
                    return go(Reduce(fn, tuple(new.get(a, a) for a in axes), inner, dtype))
                return Reduce(fn, axes, go(body), dtype)
            case Index(element, bound):
                return make_index(go(element), go(bound))
        return e

    return go(e)


def _fresh_name(name: str, taken: Collection[str]) -> str:
    n = 1
    while f"{name}_{n}" in taken:
        n += 1
    return f"{name}_{n}"


def make_index(element: Expr, bound: Expr) -> Expr:
    """Return an element as an index; a constant becomes a constant index."""
    if isinstance(element, Const) and isinstance(bound, Const):
        i = int(element.value)
        return index.as_index(i + int(bound.value) if i < 0 else i)
    return Index(element, bound, INDEX)
