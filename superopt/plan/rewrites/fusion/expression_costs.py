"""Which expressions are too long to inline, and which are cheap or expensive to recompute."""

from __future__ import annotations

from collections.abc import Mapping

from superopt.te.analysis.walk import loads, reductions
from superopt.te.analysis.walk import subexpressions as parts_of
from superopt.te.expr.node import Apply, Expr, Load, Reduce
from superopt.te.expr.tensor import Tensor

CHEAP_FUNCTIONS = (
    "add",
    "sub",
    "mul",
    "neg",
    "abs",
    "max",
    "min",
    "select",
    "cast",
    "lt",
    "le",
    "eq",
)
EXPENSIVE_FUNCTIONS = frozenset((
    "exp", "log", "erf", "tanh", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh",
    "asinh", "acosh", "atanh", "pow", "sigmoid",
))  # fmt: skip
MAX_EXPRESSION_FUNCTIONS = 150  # functions in an expression
MAX_INDEX_DIVISIONS = 12  # quotients and remainders in its indices
_DIVISIONS = ("floordiv", "mod")


def large_expressions(current: Mapping[Tensor, Tensor]) -> set[Tensor]:
    """Return tensors that are stored so that no expression becomes long or deep. An expression that
    reads an operand twice doubles with each inlining, and so do the indices of repeated reshapes. A
    reduction ends an expression, and so does what is computed and multiplied in one."""
    out: set[Tensor] = set()
    length: dict[Tensor, int] = {}
    folds: dict[Tensor, int] = {}
    factors = {
        x.tensor
        for now in current.values()
        for r in reductions(now.body)
        if isinstance(r.body, Apply) and r.body.fn == "mul"
        for x in loads(r.body)
    }
    for t, now in current.items():
        assert now.body is not None
        length[t] = _expression_length(now.body, length)
        folds[t] = sum(isinstance(e, Apply) and e.fn in _DIVISIONS for e in parts_of(now.body))
        folds[t] += max((folds.get(x.tensor, 0) for x in loads(now.body)), default=0)
        if length[t] > MAX_EXPRESSION_FUNCTIONS or folds[t] > MAX_INDEX_DIVISIONS:
            out.add(t)
        is_factor = t in factors and not isinstance(now.body, Load)
        if t in out or is_factor or reductions(now.body):
            length[t], folds[t] = 1, 0
    return out


def _expression_length(e: Expr, length: Mapping[Tensor, int]) -> int:
    match e:
        case Apply(_, args):
            return 1 + sum(_expression_length(a, length) for a in args)
        case Reduce(_, _, Apply("mul") as body):  # its operands are stored
            return 1 + _expression_length(body, {})
        case Reduce(_, _, body):
            return 1 + _expression_length(body, length)
        case Load(t, _):
            return length.get(t, 1)
    return 1


def has_expensive_function(e: Expr) -> bool:
    """True if it takes more than a few instructions for each element."""
    return any(isinstance(x, Apply) and x.fn in EXPENSIVE_FUNCTIONS for x in parts_of(e))


def is_cheap(e: Expr) -> bool:
    match e:
        case Apply(fn, args):
            return fn in CHEAP_FUNCTIONS and all(map(is_cheap, args))
        case Reduce(_, _, body):
            return is_cheap(body)
    return True
