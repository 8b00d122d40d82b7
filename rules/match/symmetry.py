"""Symmetries of a left side: parts that a renaming exchanges need to be tried in one order only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass, replace

from superopt.ir.op import Op
from superopt.rules.lang.printer import show
from superopt.rules.lang.rule import Rule
from superopt.rules.lang.syntax import Param
from superopt.rules.lang.term import (
    App,
    Formula,
    Name,
    OperandRun,
    Part,
    Term,
    Var,
    rebuild,
    rename,
)
from superopt.te.expr.dtype import DType


def exchange_renaming(a: Part, b: Part, rule: Rule) -> dict[str, str] | None:
    """Return the renaming that exchanges `a` and `b`, None if there is none."""
    to: dict[str, str] = {}
    if not _unify(a, b, to):
        return None
    shapes = {p.name: p for p in rule.params if isinstance(p, Param)}
    for x in list(to):
        p, q = shapes.get(x), shapes.get(to[x])
        if p is None and q is None:
            continue
        if p is None or q is None or (p.kind, p.is_run) != (q.kind, q.is_run):
            return None
        if (p.shape is None) != (q.shape is None):
            return None
        if p.shape is not None and q.shape is not None and not _unify(p.shape, q.shape, to):
            return None
    return to


def _rename_pair(x: str, y: str, renaming: dict[str, str]) -> bool:
    """Rename x to y and y to x; False if that contradicts the renaming."""
    return renaming.setdefault(x, y) == y and renaming.setdefault(y, x) == x


def _unify(a: object, b: object, renaming: dict[str, str]) -> bool:
    match a, b:
        case (Var(x), Var(y)) | (Name(x), Name(y)) | (OperandRun(x), OperandRun(y)):
            return _rename_pair(x, y, renaming)
        case tuple(), tuple():
            return len(a) == len(b) and all(
                _unify(x, y, renaming) for x, y in zip(a, b, strict=True)
            )
        case App(op, xs, attrs, rest), App(other, ys, others, last):
            if op is not other or (rest is None) != (last is None):
                return False
            if rest is not None and last is not None and not _rename_pair(rest, last, renaming):
                return False
            return _unify(xs, ys, renaming) and _unify(
                tuple(sorted(attrs, key=_attr_key)), tuple(sorted(others, key=_attr_key)), renaming
            )
    if type(a) is not type(b):
        return False
    if is_dataclass(a) and not isinstance(a, (Op, DType)):
        own = (f.name for f in fields(a) if f.init)
        return all(_unify(getattr(a, name), getattr(b, name), renaming) for name in own)
    return a == b


def _attr_key(attr: tuple[str, Formula]) -> str:
    return attr[0]


def order_commutative(t: Term) -> Term:
    """Return `t` with the operands of commutative operators in a fixed order."""

    def change(p: Part) -> Part | None:
        match p:
            case App(op, (a, b), attrs, rest) if "commutative" in op.laws:
                pair = sorted((order_commutative(a), order_commutative(b)), key=show)
                return App(op, tuple(pair), tuple(sorted(attrs, key=_attr_key)), rest)
            case App(op, operands, attrs, rest):
                given = tuple(order_commutative(o) for o in operands)
                return App(op, given, tuple(sorted(attrs, key=_attr_key)), rest)
            case _:
                return None

    return rebuild(t, change)


def _normalize_terms(terms: Iterable[Term], renaming: dict[str, str]) -> list[Term]:
    return [order_commutative(rename(t, renaming)) for t in terms]


def _renamed_params(rule: Rule, renaming: dict[str, str]) -> set[Param]:
    out: set[Param] = set()
    for p in rule.params:
        if isinstance(p, Param):
            shape = None if p.shape is None else tuple(rename(d, renaming) for d in p.shape)
            out.add(replace(p, name=renaming.get(p.name, p.name), shape=shape))
    return out


def _is_invariant(rule: Rule, renaming: dict[str, str]) -> bool:
    """True if a renaming preserves types and conditions."""
    same = {rename(c, renaming) for c in rule.where} == set(rule.where)
    return same and _renamed_params(rule, renaming) == _renamed_params(rule, {})


def is_swap_redundant(rule: Rule, t: App, fixed: Sequence[App]) -> bool:
    """True if a match of `t` with exchanged operands is only a renaming with the same result.

    `fixed`: the applications whose operands are tried in one order, which must stay as they are.
    """
    a, b = t.operands
    to = exchange_renaming(a, b, rule)
    return (
        to is not None
        and _is_invariant(rule, to)
        and all(_normalize_terms(f.operands, to) == _normalize_terms(f.operands, {}) for f in fixed)
        and _normalize_terms(rule.lhs, to) == _normalize_terms(rule.lhs, {})
        and _normalize_terms(rule.rhs, to) == _normalize_terms(rule.rhs, {})
    )


def are_roots_interchangeable(rule: Rule, i: int, j: int) -> bool:
    """True if a match with roots i and j exchanged is only a renaming, which exchanges results,
    too."""
    to = exchange_renaming(rule.lhs[i], rule.lhs[j], rule)
    if to is None or not _is_invariant(rule, to):
        return False
    swapped = list(rule.lhs)
    swapped[i], swapped[j] = swapped[j], swapped[i]
    return _normalize_terms(rule.lhs, to) == _normalize_terms(swapped, {})
