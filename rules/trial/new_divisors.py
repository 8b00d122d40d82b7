"""Divisors that a rule introduces.

x * y = x / (1 / y) holds for every y but 0, and even there, as 1 / 0 is infinite and x / inf is 0:
so the trial finds nothing. But the next rewrite meets a new infinity: z + x / (1 / y) = (z / y + x)
/ (1 / y) holds wherever both are defined, and is NaN at y = 0. Such a rule is true, and may derive
an equality; it never rewrites a model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

from superopt.rules.lang.printer import show
from superopt.rules.lang.rule import Rule
from superopt.rules.lang.term import App, Fill, Number, Scalar, Term, walk
from superopt.rules.lang.unrounded import positive_operands

ZERO_COMMUTES = frozenset(("Add", "Mul", "Sub"))  # x - y is zero where y - x is
SAME_ZEROS = frozenset(
    (
        "Neg", "Abs", "Sqrt", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Expand",
        "Identity", "Slice", "Gather", "Split", "Tile", "Div", "Pow",
    )
)  # fmt: skip
POSITIVE = frozenset(("Exp", "Sigmoid", "Softmax", "Softplus", "Cosh"))
REDUCTIONS = frozenset(("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"))
NONNEGATIVE = frozenset(
    ("Abs", "Relu", "Sqrt", "ReduceSumSquare", "ReduceL1", "ReduceL2", *POSITIVE)
)


@lru_cache(maxsize=1 << 13)  # each request asks it of each of the library's 2,292 rules
def new_divisors(rule: Rule) -> tuple[str, ...]:
    """Return the terms that the right side requires to be nonzero and the left side does not, as
    text. A divisor of the result itself is left out: the trial covers it."""
    found = {
        key: show(t)
        for side in rule.rhs
        for d in _divisors(side, nested_only=True)
        for key, t in _zero_factors(d)
    }
    if not found:
        return ()
    before = {key for side in rule.lhs for key in _nonzero_keys(side)}
    positive = positive_operands(rule)
    return tuple(t for key, t in found.items() if key not in before and t not in positive)


def _nonzero_keys(side: Term) -> Iterator[str]:
    """Yield keys of terms that are nonzero where a side has a value."""
    for d in _divisors(side):
        yield from (key for key, _ in _zero_factors(d))
    for t in walk(side):
        if isinstance(t, App) and t.op.name == "BatchNormalization":
            epsilon = dict(t.attrs).get("epsilon")
            if epsilon is not None:
                yield _commuted_key("Add", (t.operands[4], Scalar(epsilon)))


def _divisors(side: Term, nested_only: bool = False) -> Iterator[Term]:
    """Yield divisors and arguments of logarithms of a side. nested_only: without those of the
    root."""
    for t in walk(side):
        if not isinstance(t, App) or (nested_only and t is side):
            continue
        match t.op.name:
            case "Div":
                yield t.operands[1]
            case "Reciprocal" | "Log":
                yield t.operands[0]
            case "Pow" if isinstance(by := t.operands[1], Number) and by.value < 0:
                yield t.operands[0]


def _zero_factors(t: Term) -> Iterator[tuple[str, Term]]:
    """Yield terms that are all nonzero if and only if `t` is, with keys that ignore operand
    order."""
    if _is_positive(t) or (isinstance(t, Number) and t.value != 0):
        return
    if isinstance(t, App):
        name, given = t.op.name, t.operands
        if name in ("Mul", "Concat"):
            for operand in given:
                yield from _zero_factors(operand)
            return
        if name == "Reciprocal":
            return
        if name == "Sub" and given[0] == Number(0):
            yield from _zero_factors(given[1])
            return
        if name in SAME_ZEROS or (name == "Add" and given[0] == given[1]):
            yield from _zero_factors(given[0])  # a quotient's own divisor is handled elsewhere
            return
    yield _zero_key(t), t


def _is_positive(t: Term) -> bool:
    """True if `t` is positive for any operands (up to underflow)."""
    if isinstance(t, Number):
        return t.value > 0
    if isinstance(t, Scalar):
        return True  # an attribute: a size, a number of elements, an epsilon
    if isinstance(t, Fill):
        return t.kind == "ones"
    if not isinstance(t, App):
        return False
    name, given = t.op.name, t.operands
    if name in POSITIVE:
        return True
    if name in ("Mul", "Div", "Concat"):
        return all(map(_is_positive, given))
    if name in REDUCTIONS or name in SAME_ZEROS:
        return name != "Neg" and _is_positive(given[0])
    if name in ("Add", "Max"):
        some = any(map(_is_positive, given))
        return some and (name == "Max" or all(map(_is_nonnegative, given)))
    return False


def _is_nonnegative(t: Term) -> bool:
    if _is_positive(t) or (isinstance(t, Number) and t.value >= 0):
        return True
    if not isinstance(t, App):
        return False
    name, given = t.op.name, t.operands
    if name in NONNEGATIVE or (name == "Mul" and given[0] == given[1]):
        return True
    if name == "Pow" and isinstance(given[1], Number):
        return given[1].value % 2 == 0
    if name in REDUCTIONS or name in SAME_ZEROS - {"Neg", "Div"}:
        return _is_nonnegative(given[0])
    return name in ("Add", "Mul", "Div", "Concat") and all(map(_is_nonnegative, given))


def _zero_key(t: Term) -> str:
    """Return a term's text, with operands sorted where order does not affect zeros."""
    if isinstance(t, App) and t.op.name in ZERO_COMMUTES and not t.attrs:
        return _commuted_key(t.op.name, t.operands)
    return show(t)


def _commuted_key(name: str, operands: Iterable[Term]) -> str:
    return f"{name}({', '.join(sorted(map(_zero_key, operands)))})"
