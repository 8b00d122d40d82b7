"""Symmetries of a left side: parts that a renaming exchanges need to be tried in one order only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass, replace

from superopt.ir.op import Op
from superopt.rules.rule import Rule
from superopt.rules.syntax import Param
from superopt.rules.term import App, Formula, Name, Part, Run, Term, Var, rebuild, rename, show
from superopt.te.dtype import DType


def exchange(a: Part, b: Part, rule: Rule) -> dict[str, str] | None:
    """Return the renaming that exchanges `a` and `b`, None if there is none."""
    to: dict[str, str] = {}
    if not _unify(a, b, to):
        return None
    shapes = {p.name: p for p in rule.params if isinstance(p, Param)}
    for x in list(to):
        p, q = shapes.get(x), shapes.get(to[x])
        if p is None and q is None:
            continue
        if p is None or q is None or (p.kind, p.run) != (q.kind, q.run):
            return None
        if (p.shape is None) != (q.shape is None):
            return None
        if p.shape is not None and q.shape is not None and not _unify(p.shape, q.shape, to):
            return None
    return to


def _pair(x: str, y: str, to: dict[str, str]) -> bool:
    """Rename x to y and y to x; False if that contradicts the renaming."""
    return to.setdefault(x, y) == y and to.setdefault(y, x) == x


def _unify(a: object, b: object, to: dict[str, str]) -> bool:
    match a, b:
        case (Var(x), Var(y)) | (Name(x), Name(y)) | (Run(x), Run(y)):
            return _pair(x, y, to)
        case tuple(), tuple():
            return len(a) == len(b) and all(_unify(x, y, to) for x, y in zip(a, b, strict=True))
        case App(op, xs, attrs, rest), App(other, ys, others, last):
            if op is not other or (rest is None) != (last is None):
                return False
            if rest is not None and last is not None and not _pair(rest, last, to):
                return False
            return _unify(xs, ys, to) and _unify(
                tuple(sorted(attrs, key=_key)), tuple(sorted(others, key=_key)), to
            )
    if type(a) is not type(b):
        return False
    if is_dataclass(a) and not isinstance(a, (Op, DType)):
        return all(_unify(getattr(a, f.name), getattr(b, f.name), to) for f in fields(a))
    return a == b


def _key(attr: tuple[str, Formula]) -> str:
    return attr[0]


def ordered(t: Term) -> Term:
    """Return `t` with the operands of commutative operators in a fixed order."""

    def change(p: Part) -> Part | None:
        match p:
            case App(op, (a, b), attrs, rest) if "commutative" in op.laws:
                pair = sorted((ordered(a), ordered(b)), key=show)
                return App(op, tuple(pair), tuple(sorted(attrs, key=_key)), rest)
            case App(op, operands, attrs, rest):
                given = tuple(ordered(o) for o in operands)
                return App(op, given, tuple(sorted(attrs, key=_key)), rest)
            case _:
                return None

    return rebuild(t, change)


def _all(terms: Iterable[Term], to: dict[str, str]) -> list[Term]:
    return [ordered(rename(t, to)) for t in terms]


def _params(rule: Rule, to: dict[str, str]) -> set[Param]:
    out: set[Param] = set()
    for p in rule.params:
        if isinstance(p, Param):
            shape = None if p.shape is None else tuple(rename(d, to) for d in p.shape)
            out.add(replace(p, name=to.get(p.name, p.name), shape=shape))
    return out


def _invariant(rule: Rule, to: dict[str, str]) -> bool:
    """True if a renaming preserves types and conditions."""
    same = {rename(c, to) for c in rule.where} == set(rule.where)
    return same and _params(rule, to) == _params(rule, {})


def commutes(rule: Rule, t: App, fixed: Sequence[App]) -> bool:
    """True if a match of `t` with exchanged operands is only a renaming with the same result.

    `fixed`: the applications whose operands are tried in one order, which must stay as they are.
    """
    a, b = t.operands
    to = exchange(a, b, rule)
    return (
        to is not None
        and _invariant(rule, to)
        and all(_all(f.operands, to) == _all(f.operands, {}) for f in fixed)
        and _all(rule.lhs, to) == _all(rule.lhs, {})
        and _all(rule.rhs, to) == _all(rule.rhs, {})
    )


def interchangeable(rule: Rule, i: int, j: int) -> bool:
    """True if a match with roots i and j exchanged is only a renaming, which exchanges results,
    too."""
    to = exchange(rule.lhs[i], rule.lhs[j], rule)
    if to is None or not _invariant(rule, to):
        return False
    swapped = list(rule.lhs)
    swapped[i], swapped[j] = swapped[j], swapped[i]
    return _all(rule.lhs, to) == _all(swapped, {})
