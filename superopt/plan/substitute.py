"""Expressions with others in the place of their axes."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from superopt.te import index as ix
from superopt.te.affine import rebuild
from superopt.te.dtype import INDEX
from superopt.te.node import Apply, Axis, Const, Expr, Index, Load, Reduce


def placed(e: Expr, env: Mapping[Axis, Expr]) -> Expr:
    """`e` with other indices for its axes."""
    memo: dict[int, Expr] = {}
    names = {a.name for i in env.values() for a in _axes(i)}

    def go(e: Expr) -> Expr:
        if id(e) not in memo:
            memo[id(e)] = one(e)
        return memo[id(e)]

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
                if taken:  # a name stands for one axis
                    new = {a: Axis(_other(a.name, names), a.extent) for a in taken}
                    inner = placed(body, {**new})
                    return go(Reduce(fn, tuple(new.get(a, a) for a in axes), inner, dtype))
                return Reduce(fn, axes, go(body), dtype)
            case Index(element, bound):
                return indexed(go(element), go(bound))
        return e

    return go(e)


def _axes(e: Expr) -> set[Axis]:
    match e:
        case Axis():
            return {e}
        case Apply(_, args) | Load(_, args):
            return set().union(*map(_axes, args)) if args else set()
        case Index(element, bound):
            return _axes(element) | _axes(bound)
    return set()


def _other(name: str, taken: Collection[str]) -> str:
    n = 1
    while f"{name}_{n}" in taken:
        n += 1
    return f"{name}_{n}"


def indexed(element: Expr, bound: Expr) -> Expr:
    """An element as an index; a number is one at once."""
    if isinstance(element, Const) and isinstance(bound, Const):
        i = int(element.value)
        return ix.as_index(i + int(bound.value) if i < 0 else i)
    return Index(element, bound, INDEX)
