"""The closed set of functions that formulas may call, and arithmetic on sizes.

Sizes may be symbolic. They are equal if they are equal as expressions; a comparison that the ranges
of the symbols do not decide raises `NotKnown`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from types import MappingProxyType

from superopt.ir.graph import Constant, Input, Item, Node, Value
from superopt.ir.op import InferError
from superopt.ops.shared import broadcasting
from superopt.rules.lang.value_facts import is_const, listed_integers, uniform_value
from superopt.te.analysis.size_oracle import compare_by_oracle
from superopt.te.expr import index
from superopt.te.expr.dtype import BOOL, DType
from superopt.te.expr.node import Const, Dim, Expr
from superopt.te.expr.tensor import apply, product

# The value of a formula at run time.
Result = int | float | str | bool | Fraction | DType | Expr | Value | tuple["Result", ...] | None
Number = int | float | Fraction
MAX_ITEMS = 4096  # items of a tuple that a formula makes
VALUE_TYPES = (Node, Item, Constant, Input)


class NotKnown(Exception):
    """A formula has no value here; the message says why."""


def as_size(r: Result) -> Dim:
    """Return `r` as a size."""
    if isinstance(r, Expr) or (isinstance(r, int) and not isinstance(r, bool)):
        return r
    raise NotKnown(f"{show_result(r)} is not a size")


def as_integer(r: Result) -> int:
    """Return `r` as a known integer."""
    if isinstance(r, int):
        return int(r)
    raise NotKnown(f"{show_result(r)} is not a known integer")


def as_tuple(r: Result) -> tuple[Result, ...]:
    if isinstance(r, tuple):
        return r
    raise NotKnown(f"{show_result(r)} is not a tuple")


def as_value(r: Result) -> Value:
    if isinstance(r, VALUE_TYPES):
        if isinstance(r, Node) and len(r.types) != 1:
            raise NotKnown(f"{r.op.name} has {len(r.types)} results")
        return r
    raise NotKnown(f"{show_result(r)} is not a value of the graph")


def as_number(r: Result) -> Number:
    if isinstance(r, (int, float, Fraction)):
        return r
    raise NotKnown(f"{show_result(r)} is not a known number")


def show_result(r: Result) -> str:
    """Return the text of `r` for messages."""
    match r:
        case Input(name, _):
            return f"input {name}"
        case Node(op, _, _, types) if len(types) != 1:
            return f"{len(types)} results of {op.name}"
        case Node() | Item() | Constant():
            return f"a {'constant' if isinstance(r, Constant) else 'value'} of type {r.type}"
        case tuple():
            return f"({', '.join(map(show_result, r))}{',' if len(r) == 1 else ''})"
        case str():
            return repr(r)
        case _:
            return str(r)


def shape_of(r: Result) -> tuple[Dim, ...]:
    v = as_value(r)
    if v.type.shape is None:
        raise NotKnown(f"{show_result(v)} has no known rank")
    return v.type.shape


# --- arithmetic and comparisons -------------------------------------------------------------------

_NUMBER_OPS: Mapping[str, Callable[..., Number]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "/": lambda a, b: Fraction(a, b) if not isinstance(a + b, float) else a / b,
}
_SIZE_FUNCTIONS = {"+": "add", "-": "sub", "*": "mul", "//": "floordiv", "%": "mod"}


def apply_binary(op: str, a: Result, b: Result) -> Result:
    """Return `a op b` on numbers, sizes, and (+, *) tuples; `/` is exact on integers."""
    try:
        if isinstance(a, (int, float, Fraction)) and isinstance(b, (int, float, Fraction)):
            return _power(a, b) if op == "**" else _NUMBER_OPS[op](a, b)
        if isinstance(a, tuple) and isinstance(b, tuple) and op == "+":
            return a + b
        if isinstance(a, tuple) and isinstance(b, int) and op == "*":
            return _repeat(a, b)
        if isinstance(b, tuple) and isinstance(a, int) and op == "*":
            return _repeat(b, a)
        if op in _SIZE_FUNCTIONS:
            return index.dim(
                apply(_SIZE_FUNCTIONS[op], index.as_index(as_size(a)), index.as_index(as_size(b)))
            )
    except (ZeroDivisionError, OverflowError) as e:
        raise NotKnown(f"{show_result(a)} {op} {show_result(b)}: {e}") from None
    raise NotKnown(f"{show_result(a)} {op} {show_result(b)} is undefined")


def _repeat(items: tuple[Result, ...], times: int) -> Result:
    if times * len(items) > MAX_ITEMS:
        raise NotKnown(f"{len(items)} items {times} times is too long")
    return items * times


def _power(a: Number, b: Number) -> Number:
    if isinstance(b, float) or int(b) != b or not -64 <= b <= 64:
        out = complex(a) ** float(b)
        if out.imag:
            raise NotKnown(f"{a} ** {b} is not real")
        return out.real
    exponent = int(b)
    return Fraction(a) ** exponent if exponent < 0 and isinstance(a, int) else a**exponent


def are_equal(a: Result, b: Result) -> bool:
    """True if both are equal; raises NotKnown if the symbols of sizes decide it."""
    if a is b:
        return True
    if isinstance(a, tuple) and isinstance(b, tuple):
        if len(a) != len(b):
            return False
        undecided: NotKnown | None = None
        for x, y in zip(a, b, strict=True):
            try:
                if not are_equal(x, y):
                    return False
            except NotKnown as e:
                undecided = e
        if undecided is not None:
            raise undecided
        return True
    if isinstance(a, VALUE_TYPES) or isinstance(b, VALUE_TYPES):
        return False
    if isinstance(a, Expr) or isinstance(b, Expr):
        return _decide("eq", a, b)
    return a == b


def _decide(fn: str, a: Result, b: Result) -> bool:
    verdict = apply(fn, index.as_index(as_size(a)), index.as_index(as_size(b)), dtype=BOOL)
    if isinstance(verdict, Const):
        return bool(verdict.value)
    found = compare_by_oracle(fn, as_size(a), as_size(b))
    if found is not None:
        return found
    raise NotKnown(f"{verdict} is not known")


def compare_results(op: str, a: Result, b: Result) -> bool:
    """Return `a op b`; raises NotKnown if the symbols of sizes decide it."""
    match op:
        case "==":
            return are_equal(a, b)
        case "!=":
            return not are_equal(a, b)
        case "in" | "not in":
            return _is_item(a, as_tuple(b)) == (op == "in")
        case _:
            if op in (">", ">="):
                a, b, op = b, a, "<" if op == ">" else "<="
            if isinstance(a, Expr) or isinstance(b, Expr):
                return _decide("lt" if op == "<" else "le", a, b)
            x, y = as_number(a), as_number(b)
            return x < y if op == "<" else x <= y


def _is_item(a: Result, items: Sequence[Result]) -> bool:
    undecided: NotKnown | None = None
    for item in items:
        try:
            if are_equal(a, item):
                return True
        except NotKnown as e:
            undecided = e
    if undecided is not None:
        raise undecided
    return False


# --- the functions --------------------------------------------------------------------------------


def _extreme(fn: str, args: tuple[Result, ...]) -> Result:
    items = as_tuple(args[0]) if len(args) == 1 else args
    if not items:
        raise NotKnown(f"{fn} of nothing")
    out = items[0]
    for item in items[1:]:
        if isinstance(out, Expr) or isinstance(item, Expr):
            out = index.dim(apply(fn, index.as_index(as_size(out)), index.as_index(as_size(item))))
        else:
            a, b = as_number(out), as_number(item)
            out = min(a, b) if fn == "min" else max(a, b)
    return as_number(out) if len(items) == 1 and not isinstance(out, Expr) else out


def _value(x: Result) -> Result:
    found = uniform_value(as_value(x))
    if found is None:
        raise NotKnown(f"{show_result(x)} is not a uniform constant")
    return found


def _items(x: Result) -> Result:
    found = listed_integers(as_value(x))
    if found is None:
        raise NotKnown(f"{show_result(x)} is not a short constant vector of integers")
    return found


def _checked_index(i: Result, n: int, noun: str = "index") -> int:
    k = as_integer(i)
    if not -n <= k < n:
        raise NotKnown(f"{noun} {k} is not in [-{n}, {n})")
    return k % n


def item_of(s: Result, i: Result) -> Result:
    """Return `s[i]`."""
    items = as_tuple(s)
    return items[_checked_index(i, len(items))]


def _permutation(p: Result) -> tuple[int, ...]:
    axes = tuple(as_integer(i) for i in as_tuple(p))
    if sorted(axes) != list(range(len(axes))):
        raise NotKnown(f"{show_result(p)} is not a permutation")
    return axes


def permute(s: Result, p: Result) -> Result:
    return tuple(item_of(s, i) for i in as_tuple(p))


def _drop(s: Result, i: Result) -> Result:
    items = as_tuple(s)
    gone = {_checked_index(k, len(items)) for k in (i if isinstance(i, tuple) else (i,))}
    return tuple(v for k, v in enumerate(items) if k not in gone)


def _insert(s: Result, i: Result, d: Result) -> Result:
    items = as_tuple(s)
    k = _checked_index(i, len(items) + 1)
    return (*items[:k], d, *items[k:])


def _replace(s: Result, i: Result, d: Result) -> Result:
    items = as_tuple(s)
    k = _checked_index(i, len(items))
    return (*items[:k], d, *items[k + 1 :])


def _broadcast(*shapes: Result) -> Result:
    try:
        return broadcasting.broadcast(*(tuple(as_size(d) for d in as_tuple(s)) for s in shapes))
    except InferError as e:
        raise NotKnown(str(e)) from None


def _range(*ends: Result) -> Result:
    bounds = [as_integer(e) for e in ends]
    if len(bounds) == 3 and bounds[2] == 0:
        raise NotKnown("range with step 0")
    return tuple(range(*bounds)[:MAX_ITEMS])


def _sum(s: Result) -> Result:
    out: Result = 0
    for item in as_tuple(s):
        out = apply_binary("+", out, item)
    return out


def _product(s: Result) -> Result:
    out: Result = 1
    for item in as_tuple(s):
        out = apply_binary("*", out, item)
    return out


def _sqrt(a: Result) -> Result:
    x = as_number(a)
    if x < 0:
        raise NotKnown(f"sqrt({x})")
    return math.sqrt(x)


def _index(s: Result, e: Result) -> Result:
    for k, item in enumerate(as_tuple(s)):
        if are_equal(item, e):
            return k
    raise NotKnown(f"{show_result(e)} is not in {show_result(s)}")


def _contiguous(p: Result) -> Result:
    axes = [as_integer(i) for i in as_tuple(p)]
    return all(b == a + 1 for a, b in pairwise(axes))


@dataclass(frozen=True, slots=True)
class Function:
    """A function: its implementation, the number of its arguments, and its description."""

    evaluate: Callable[..., Result]
    min_args: int
    max_args: int
    description: str


FUNCTIONS: Mapping[str, Function] = MappingProxyType(
    {
        "const": Function(lambda x: is_const(as_value(x)), 1, 1, "x is computed from constants"),
        "rank": Function(lambda x: len(shape_of(x)), 1, 1, "the number of axes of x"),
        "shape": Function(lambda x: shape_of(x), 1, 1, "the shape of x"),
        "numel": Function(lambda x: product(shape_of(x)), 1, 1, "the number of elements of x"),
        "size": Function(lambda x, i: item_of(shape_of(x), i), 2, 2, "the extent of axis i of x"),
        "dtype": Function(lambda x: as_value(x).type.dtype, 1, 1, "the element type of x"),
        "value": Function(_value, 1, 1, "the number that all elements of constant x equal"),
        "items": Function(_items, 1, 1, "the numbers of x, a short constant vector of integers"),
        "all_equal": Function(
            lambda x: uniform_value(as_value(x)) is not None, 1, 1, "x is a constant with one value"
        ),
        "known": Function(lambda d: isinstance(d, int), 1, 1, "d is a number, not a symbol"),
        "len": Function(lambda s: len(as_tuple(s)), 1, 1, "the number of items of s"),
        "sum": Function(_sum, 1, 1, "the sum of the items of s"),
        "prod": Function(_product, 1, 1, "the product of the items of s"),
        "min": Function(lambda *a: _extreme("min", a), 1, 16, "the least item or argument"),
        "max": Function(lambda *a: _extreme("max", a), 1, 16, "the greatest item or argument"),
        "abs": Function(lambda a: abs(as_number(a)), 1, 1, "the magnitude of a number"),
        "sqrt": Function(_sqrt, 1, 1, "the square root of a number, a float"),
        "range": Function(_range, 1, 3, "the tuple of Python's range"),
        "tuple": Function(lambda s: as_tuple(s), 1, 1, "s itself"),
        "sorted": Function(
            lambda s: tuple(sorted(as_integer(i) for i in as_tuple(s))), 1, 1, "s in order"
        ),
        "reversed": Function(lambda s: as_tuple(s)[::-1], 1, 1, "s from the end"),
        "zip": Function(
            lambda *s: tuple(zip(*map(as_tuple, s), strict=False)), 2, 4, "tuples of items"
        ),
        "index": Function(_index, 2, 2, "the index of the first item of s that equals e"),
        "permute": Function(permute, 2, 2, "(s[p[0]], s[p[1]], ...)"),
        "compose": Function(
            lambda p, q: permute(_permutation(p), _permutation(q)),
            2,
            2,
            "the transposition by p, then by q, as one",
        ),
        "inverse": Function(
            lambda p: tuple(_permutation(p).index(i) for i in range(len(_permutation(p)))),
            1,
            1,
            "the transposition that undoes p",
        ),
        "is_identity": Function(
            lambda p: _permutation(p) == tuple(range(len(_permutation(p)))), 1, 1, "p moves nothing"
        ),
        "contiguous": Function(_contiguous, 1, 1, "each item is one more than the one before"),
        "drop": Function(_drop, 2, 2, "s without the item at i (or at each of a tuple i)"),
        "insert": Function(_insert, 3, 3, "s with d inserted before index i"),
        "replace": Function(_replace, 3, 3, "s with d in place of item i"),
        "positive": Function(
            lambda i, n: _checked_index(i, as_integer(n)), 2, 2, "axis i counted from 0"
        ),
        "broadcast": Function(_broadcast, 1, 8, "the shape that shapes broadcast to"),
    }
)
