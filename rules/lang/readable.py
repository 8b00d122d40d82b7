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

MAX_TRIED = 1 << 14  # numbers tried for a name
MAX_LITERAL = 64  # largest literal in conditions that are decided by trial
_NAME = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*")
_FUNCTIONS = {"min": np.minimum, "max": np.maximum}
_COMPARED = {
    ast.Lt: ("<", np.less), ast.LtE: ("<=", np.less_equal), ast.Gt: (">", np.greater),
    ast.GtE: (">=", np.greater_equal), ast.Eq: ("==", np.equal), ast.NotEq: ("!=", np.not_equal),
}  # fmt: skip
_SWAPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Gt: ast.Lt, ast.GtE: ast.LtE}
_DIVISIONS = {ast.FloorDiv: ("//", np.floor_divide), ast.Mod: ("%", np.mod)}

Sum = dict[str, int]  # coefficients of products; "" has the constant


class _NotArithmetic(ValueError):
    """The expression is more than comparisons of sums, products, quotients, remainders and
    extremes."""


def readable_condition(condition: str) -> str:
    """Return bounds of the only name in the condition, if equivalent for all integers; "" if it
    always holds; the condition unchanged if it cannot be parsed."""
    return ", ".join(merge_conditions([condition]))


def merge_conditions(conditions: Iterable[str], min_value: int | None = None) -> tuple[str, ...]:
    """Merge conditions that all must hold. min_value: lower bound of every name."""
    bounds: dict[str, tuple[int, int]] = {}
    parts: dict[str, None] = {}  # a name is listed where it is first bounded
    for text in conditions:
        shown, name, found = _analyze(text, -MAX_TRIED if min_value is None else min_value)
        if found is None:
            parts[shown] = None
        elif name:
            low, high = bounds.get(name, (-MAX_TRIED, MAX_TRIED))
            bounds[name] = max(low, found[0]), min(high, found[1])
            parts[name] = None
    return tuple(_show_bounds(c, *bounds[c]) if c in bounds else c for c in parts)


def _show_bounds(name: str, low: int, high: int) -> str:
    if low == high:
        return f"{name} == {low}"
    if high == MAX_TRIED:
        return f"{name} >= {low}"
    return f"{name} <= {high}" if low == -MAX_TRIED else f"{low} <= {name} <= {high}"


@lru_cache(maxsize=1 << 12)
def _analyze(text: str, min_value: int) -> tuple[str, str, tuple[int, int] | None]:
    """Return a condition as text, its only name, and its bounds, if it is a range; no name if it
    always holds."""
    names = list(
        dict.fromkeys(n for n in _NAME.findall(text) if n not in (*_FUNCTIONS, *_KEYWORDS))
    )
    plain = {n: f"n{k}" for k, n in enumerate(names)}
    own = _NAME.sub(lambda m: plain.get(m[0], m[0]), text)
    try:
        tree = ast.parse(own, mode="eval").body
        shown = _NAME.sub(lambda m: _original_name(m[0], names), _show(tree))
    except (SyntaxError, _NotArithmetic):
        return text, "", None
    tried = np.arange(min_value, MAX_TRIED + 1)
    gap, compare = _compared_difference(tree)
    left = [t for t in gap if t]
    falls = left and compare in (np.less, np.less_equal) and max(gap[t] for t in left) < 0
    if compare and falls and min_value > 0 and compare(_evaluate_sum(gap, min_value), 0):
        return shown, "", (-MAX_TRIED, MAX_TRIED)  # larger values only decrease it
    try:
        if _largest_literal(tree) > MAX_LITERAL:
            raise _NotArithmetic
        if compare is not None and len(left) < 2:
            holds = compare(_evaluate_sum(gap, tried), 0)
            name = names[int(left[0][1:])] if left else ""
        elif len(names) == 1:
            holds, name = _value(tree, tried), names[0]
        else:
            raise _NotArithmetic
    except _NotArithmetic:
        return shown, "", None
    holds = np.broadcast_to(holds, tried.shape)
    where = np.flatnonzero(holds)
    if not len(where) or not holds[where[0] : where[-1] + 1].all():
        return shown, "", None
    low, high = min_value + int(where[0]), min_value + int(where[-1])
    if low == min_value:
        low = -MAX_TRIED
    if any(MAX_TRIED // 2 < abs(end) < MAX_TRIED for end in (low, high)):
        return shown, "", None
    return shown, name if (low, high) != (-MAX_TRIED, MAX_TRIED) else "", (low, high)


_KEYWORDS = ("and", "or", "not")


def _compared_difference(e: ast.expr) -> tuple[Sum, Callable[..., Any] | None]:
    """Return the difference of the compared sides, if it is a sum of names, and its comparison with
    0."""
    match e:
        case ast.Compare(a, [op], [b]) if type(op) in _COMPARED:
            sign = -1 if isinstance(op, ast.Gt | ast.GtE) else 1
            gap = _as_sum(ast.BinOp(a, ast.Sub(), b))
            gap = {t: sign * c for t, c in gap.items() if c}
            turned = _SWAPPED.get(type(op), type(op))
            if all(t == "" or t[1:].isdigit() for t in gap):
                return gap, _COMPARED[turned][1]
    return {}, None


def _evaluate_sum(gap: Sum, x: np.ndarray | int) -> np.ndarray | int:
    """Evaluate a sum with the same value for all names."""
    return sum((c * x if t else np.asarray(c) for t, c in gap.items()), np.asarray(0))


def _original_name(word: str, names: Sequence[str]) -> str:
    return names[int(word[1:])] if word[1:].isdigit() else word


def _largest_literal(tree: ast.AST) -> int:
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
        case ast.BinOp(a, ast.Mult(), b) if not (_has_names(a) and _has_names(b)):
            return np.asarray(_value(a, x) * _value(b, x))
        case ast.BinOp(a, ast.FloorDiv() | ast.Mod() as op, ast.Constant(int() as n)) if n > 0:
            return np.asarray(_DIVISIONS[type(op)][1](_value(a, x), n))
        case ast.Call(ast.Name(fn), args) if fn in _FUNCTIONS:
            return reduce(_FUNCTIONS[fn], [_value(a, x) for a in args])
        case ast.Compare(a, [op], [b]) if type(op) in _COMPARED:
            return np.broadcast_to(_COMPARED[type(op)][1](_value(a, x), _value(b, x)), x.shape)
        case ast.BoolOp(op, operands):
            both = np.logical_and if isinstance(op, ast.And) else np.logical_or
            return reduce(both, [_value(a, x) for a in operands])
    raise _NotArithmetic


def _has_names(e: ast.expr) -> bool:
    return any(isinstance(n, ast.Name) and n.id not in _FUNCTIONS for n in ast.walk(e))


def _show(e: ast.expr) -> str:
    match e:
        case ast.Compare(a, [op], [b]) if type(op) in _COMPARED:
            return f"{_show(a)} {_COMPARED[type(op)][0]} {_show(b)}"
        case ast.BoolOp(op, operands):
            word = " and " if isinstance(op, ast.And) else " or "
            return word.join(
                f"({_show(a)})" if isinstance(a, ast.BoolOp) else _show(a) for a in operands
            )
    return _show_sum(_as_sum(e))


def _show_sum(s: Sum) -> str:
    """Return a sum as text: positive terms first, and the constant last unless all others are
    negative."""
    parts = sorted((t for t in s if s[t]), key=lambda t: (t == "", s[t] < 0))
    if parts and s[parts[0]] < 0 < s[parts[-1]]:
        parts.insert(0, parts.pop())  # 30 - h
    out = ""
    for t in parts:
        size = abs(s[t])
        if _is_division(t) and (size != 1 or (s[t] < 0 and not out)):
            shown = f"({t})" if size == 1 else f"{size} * ({t})"
        else:
            shown = f"{size} * {t}" if t and size != 1 else t or str(size)
        sign = ("-" if s[t] < 0 else "") if not out else " - " if s[t] < 0 else " + "
        out += sign + shown
    return out or "0"


def _is_division(product: str) -> bool:
    """True for a quotient or a remainder."""
    depth = 0
    for c in product:
        depth += (c == "(") - (c == ")")
        if not depth and c in "/%":
            return True
    return False


def _as_sum(e: ast.expr) -> Sum:
    match e:
        case ast.Constant(int() as n):
            return {"": n}
        case ast.Name(name):
            return {name: 1}
        case ast.UnaryOp(ast.USub(), a):
            return _scale(_as_sum(a), -1)
        case ast.BinOp(a, ast.Add() | ast.Sub() as op, b):
            out = dict(_as_sum(a))
            for t, c in _scale(_as_sum(b), -1 if isinstance(op, ast.Sub) else 1).items():
                out[t] = out.get(t, 0) + c
            return out
        case ast.BinOp(a, ast.Mult(), b):
            x, y = _as_sum(a), _as_sum(b)
            for one, other in ((x, y), (y, x)):
                if one.keys() <= {""}:
                    return _scale(other, one.get("", 0))
            return {f"{_show_atom(x)} * {_show_atom(y)}": 1}
        case ast.BinOp(a, ast.FloorDiv() | ast.Mod() as op, b):
            return {
                f"{_show_atom(_as_sum(a))} {_DIVISIONS[type(op)][0]} {_show_atom(_as_sum(b))}": 1
            }
        case ast.Call(ast.Name(fn), args) if fn in _FUNCTIONS:
            sums = {_show_sum(s): s for s in map(_as_sum, _flatten_calls(fn, args))}
            return {f"{fn}({', '.join(sums)})": 1} if len(sums) > 1 else sums.popitem()[1]
    raise _NotArithmetic


def _flatten_calls(fn: str, args: Iterable[ast.expr]) -> Iterable[ast.expr]:
    for a in args:
        match a:
            case ast.Call(ast.Name(inner), more) if inner == fn:
                yield from _flatten_calls(fn, more)
            case _:
                yield a


def _scale(s: Sum, factor: int) -> Sum:
    return {t: c * factor for t, c in s.items()}


def _show_atom(s: Sum) -> str:
    text = _show_sum(s)
    return text if re.fullmatch(r"\w+|(?:min|max)\([^()]*\)", text) else f"({text})"
