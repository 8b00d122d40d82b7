"""Readable conditions on sizes.

(h + -1) // 2 >= 2                      ->    h >= 5 1 < h - 1, h - 1 < h, 0 <= h - 1        ->    h
>= 3 n == max(((m * -1) + 30), 0)            ->    n == max(30 - m, 0)
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, reduce
from typing import Any

import numpy as np

FAR = 1 << 14  # numbers tried for a name
LARGE = 64  # largest literal in conditions that are decided by trial
_NAME = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*")
_FUNCTIONS = {"min": np.minimum, "max": np.maximum}
_COMPARED = {
    ast.Lt: ("<", np.less), ast.LtE: ("<=", np.less_equal), ast.Gt: (">", np.greater),
    ast.GtE: (">=", np.greater_equal), ast.Eq: ("==", np.equal), ast.NotEq: ("!=", np.not_equal),
}  # fmt: skip
_TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Gt: ast.Lt, ast.GtE: ast.LtE}
_OTHERS = {ast.FloorDiv: ("//", np.floor_divide), ast.Mod: ("%", np.mod)}

Sum = dict[str, int]  # coefficients of products; "" has the constant


class _Other(ValueError):
    """The expression is more than comparisons of sums, products, quotients, remainders and
    extremes."""


def readable(condition: str) -> str:
    """Return bounds of the only name in the condition, if equivalent for all integers; "" if it
    always holds; the condition unchanged if it cannot be parsed."""
    return ", ".join(together([condition]))


def together(conditions: Iterable[str], least: int | None = None) -> tuple[str, ...]:
    """Merge conditions that all must hold. min_value: lower bound of every name."""
    bounds: dict[str, tuple[int, int]] = {}
    said: dict[str, None] = {}  # a name is listed where it is first bounded
    for text in conditions:
        shown, name, found = _read(text, -FAR if least is None else least)
        if found is None:
            said[shown] = None
        elif name:
            low, high = bounds.get(name, (-FAR, FAR))
            bounds[name] = max(low, found[0]), min(high, found[1])
            said[name] = None
    return tuple(_bounded(c, *bounds[c]) if c in bounds else c for c in said)


def _bounded(name: str, low: int, high: int) -> str:
    if low == high:
        return f"{name} == {low}"
    if high == FAR:
        return f"{name} >= {low}"
    return f"{name} <= {high}" if low == -FAR else f"{low} <= {name} <= {high}"


@lru_cache(maxsize=1 << 12)
def _read(text: str, least: int) -> tuple[str, str, tuple[int, int] | None]:
    """Return a condition as text, its only name, and its bounds, if it is a range; no name if it
    always holds."""
    names = list(dict.fromkeys(n for n in _NAME.findall(text) if n not in (*_FUNCTIONS, *_WORDS)))
    plain = {n: f"n{k}" for k, n in enumerate(names)}
    own = _NAME.sub(lambda m: plain.get(m[0], m[0]), text)
    try:
        tree = ast.parse(own, mode="eval").body
        shown = _NAME.sub(lambda m: _named(m[0], names), _shown(tree))
    except (SyntaxError, _Other):
        return text, "", None
    tried = np.arange(least, FAR + 1)
    gap, compare = _gap(tree)
    left = [t for t in gap if t]
    falls = left and compare in (np.less, np.less_equal) and max(gap[t] for t in left) < 0
    if compare and falls and least > 0 and compare(_at(gap, least), 0):
        return shown, "", (-FAR, FAR)  # larger values only decrease it
    try:
        if _largest(tree) > LARGE:
            raise _Other
        if compare is not None and len(left) < 2:
            holds = compare(_at(gap, tried), 0)
            name = names[int(left[0][1:])] if left else ""
        elif len(names) == 1:
            holds, name = _value(tree, tried), names[0]
        else:
            raise _Other
    except _Other:
        return shown, "", None
    holds = np.broadcast_to(holds, tried.shape)
    where = np.flatnonzero(holds)
    if not len(where) or not holds[where[0] : where[-1] + 1].all():
        return shown, "", None
    low, high = least + int(where[0]), least + int(where[-1])
    if low == least:
        low = -FAR
    if any(FAR // 2 < abs(end) < FAR for end in (low, high)):
        return shown, "", None
    return shown, name if (low, high) != (-FAR, FAR) else "", (low, high)


_WORDS = ("and", "or", "not")


def _gap(e: ast.expr) -> tuple[Sum, Callable[..., Any] | None]:
    """Return the difference of the compared sides, if it is a sum of names, and its comparison with
    0."""
    match e:
        case ast.Compare(a, [op], [b]) if type(op) in _COMPARED:
            sign = -1 if isinstance(op, ast.Gt | ast.GtE) else 1
            gap = _sum(ast.BinOp(a, ast.Sub(), b))
            gap = {t: sign * c for t, c in gap.items() if c}
            turned = _TURNED.get(type(op), type(op))
            if all(t == "" or t[1:].isdigit() for t in gap):
                return gap, _COMPARED[turned][1]
    return {}, None


def _at(gap: Sum, x: np.ndarray | int) -> np.ndarray | int:
    """Evaluate a sum with the same value for all names."""
    return sum((c * x if t else np.asarray(c) for t, c in gap.items()), np.asarray(0))


def _named(word: str, names: Sequence[str]) -> str:
    return names[int(word[1:])] if word[1:].isdigit() else word


def _largest(tree: ast.AST) -> int:
    found = (n.value for n in ast.walk(tree) if isinstance(n, ast.Constant))
    return max((abs(v) for v in found if isinstance(v, int)), default=0)


def _value(e: ast.expr, x: np.ndarray) -> np.ndarray:
    """Evaluate an expression at numbers for its only name."""
    match e:
        case ast.Constant(int() as n):
            return np.asarray(n)
        case ast.Name():
            return x
        case ast.UnaryOp(ast.USub(), a):
            return np.asarray(-_value(a, x))
        case ast.BinOp(a, ast.Add(), b):
            return np.asarray(_value(a, x) + _value(b, x))
        case ast.BinOp(a, ast.Sub(), b):
            return np.asarray(_value(a, x) - _value(b, x))
        case ast.BinOp(a, ast.Mult(), b) if not (_names(a) and _names(b)):
            return np.asarray(_value(a, x) * _value(b, x))
        case ast.BinOp(a, ast.FloorDiv() | ast.Mod() as op, ast.Constant(int() as n)) if n > 0:
            return np.asarray(_OTHERS[type(op)][1](_value(a, x), n))
        case ast.Call(ast.Name(fn), args) if fn in _FUNCTIONS:
            return reduce(_FUNCTIONS[fn], [_value(a, x) for a in args])
        case ast.Compare(a, [op], [b]) if type(op) in _COMPARED:
            return np.broadcast_to(_COMPARED[type(op)][1](_value(a, x), _value(b, x)), x.shape)
        case ast.BoolOp(op, some):
            both = np.logical_and if isinstance(op, ast.And) else np.logical_or
            return reduce(both, [_value(a, x) for a in some])
    raise _Other


def _names(e: ast.expr) -> bool:
    return any(isinstance(n, ast.Name) and n.id not in _FUNCTIONS for n in ast.walk(e))


def _shown(e: ast.expr) -> str:
    match e:
        case ast.Compare(a, [op], [b]) if type(op) in _COMPARED:
            return f"{_shown(a)} {_COMPARED[type(op)][0]} {_shown(b)}"
        case ast.BoolOp(op, some):
            word = " and " if isinstance(op, ast.And) else " or "
            return word.join(
                f"({_shown(a)})" if isinstance(a, ast.BoolOp) else _shown(a) for a in some
            )
    return _summed(_sum(e))


def _summed(s: Sum) -> str:
    """Return a sum as text: positive terms first, and the constant last unless all others are
    negative."""
    parts = sorted((t for t in s if s[t]), key=lambda t: (t == "", s[t] < 0))
    if parts and s[parts[0]] < 0 < s[parts[-1]]:
        parts.insert(0, parts.pop())  # 30 - h
    out = ""
    for t in parts:
        size = abs(s[t])
        if _divided(t) and (size != 1 or (s[t] < 0 and not out)):
            said = f"({t})" if size == 1 else f"{size} * ({t})"
        else:
            said = f"{size} * {t}" if t and size != 1 else t or str(size)
        sign = ("-" if s[t] < 0 else "") if not out else " - " if s[t] < 0 else " + "
        out += sign + said
    return out or "0"


def _divided(product: str) -> bool:
    """True for a quotient or a remainder."""
    depth = 0
    for c in product:
        depth += (c == "(") - (c == ")")
        if not depth and c in "/%":
            return True
    return False


def _sum(e: ast.expr) -> Sum:
    match e:
        case ast.Constant(int() as n):
            return {"": n}
        case ast.Name(name):
            return {name: 1}
        case ast.UnaryOp(ast.USub(), a):
            return _scaled(_sum(a), -1)
        case ast.BinOp(a, ast.Add() | ast.Sub() as op, b):
            out = dict(_sum(a))
            for t, c in _scaled(_sum(b), -1 if isinstance(op, ast.Sub) else 1).items():
                out[t] = out.get(t, 0) + c
            return out
        case ast.BinOp(a, ast.Mult(), b):
            x, y = _sum(a), _sum(b)
            for one, other in ((x, y), (y, x)):
                if one.keys() <= {""}:
                    return _scaled(other, one.get("", 0))
            return {f"{_atom(x)} * {_atom(y)}": 1}
        case ast.BinOp(a, ast.FloorDiv() | ast.Mod() as op, b):
            return {f"{_atom(_sum(a))} {_OTHERS[type(op)][0]} {_atom(_sum(b))}": 1}
        case ast.Call(ast.Name(fn), args) if fn in _FUNCTIONS:
            some = {_summed(s): s for s in map(_sum, _flat(fn, args))}
            return {f"{fn}({', '.join(some)})": 1} if len(some) > 1 else some.popitem()[1]
    raise _Other


def _flat(fn: str, args: Iterable[ast.expr]) -> Iterable[ast.expr]:
    for a in args:
        match a:
            case ast.Call(ast.Name(inner), more) if inner == fn:
                yield from _flat(fn, more)
            case _:
                yield a


def _scaled(s: Sum, by: int) -> Sum:
    return {t: c * by for t, c in s.items()}


def _atom(s: Sum) -> str:
    text = _summed(s)
    return text if re.fullmatch(r"\w+|(?:min|max)\([^()]*\)", text) else f"({text})"
