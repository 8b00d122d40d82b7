"""Find products whose exact zeros matter: normalising a zero vector leaves only rounding errors.

y[i, n] = t[i, n] / max(sqrt(sum(t[i, k] ** 2 for k)), 1e-12)        t a matrix product

Zero rows (the border of an image, padding tokens) give zeros. Strassen and Winograd add such rows
to others, which cancel except for the last bits; y would be a vector of length 1. Roots and
logarithms may then see negative numbers, too. Such products, and the products before them through
which zeros propagate, are computed directly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from math import prod

import numpy as np

from superopt.kernels.algorithms.contraction import match_contraction
from superopt.kernels.loops.loop_transforms import reduction
from superopt.plan.lowering.graph_tensors import GraphTensors
from superopt.te.analysis.walk import subexpressions
from superopt.te.eval.domain import Reals
from superopt.te.expr.dtype import F64, INDEX
from superopt.te.expr.node import Apply, Const, Expr, Load, Reduce
from superopt.te.expr.tensor import Tensor

# The argument at which a function is discontinuous at zero or undefined below it.
SENSITIVE_ARGUMENTS = {
    "div": 1, "sqrt": 0, "log": 0, "pow": 0, "floor": 0, "ceil": 0, "sign": 0, "eq": 0, "ne": 0,
}  # fmt: skip
ORDER_COMPARISONS = ("lt", "le")  # comparisons; harmless if both outcomes give the same result
MAX_EPSILON = 1e-8  # an epsilon that is added to a divisor is at most this
MIN_ZERO_SHARE = 1 / 8  # share of zeros in a bias from which on rows of the result may be zero
MAX_INSPECTED_ELEMENTS = 1 << 20  # elements of a bias whose values are inspected, at most

FLOAT64 = Reals(F64)


@dataclass(frozen=True, slots=True, eq=False)
class Constants:
    """Constant tensors. zero: those that were looked at, and whether they may be zero in places:
    a forest compares thousands of columns with the same constant."""

    arrays: Mapping[Tensor, Callable[[], np.ndarray]]
    zero: dict[Tensor, bool] = field(default_factory=dict)

    def __contains__(self, t: Tensor) -> bool:
        return t in self.arrays

    def may_be_zero(self, t: Tensor) -> bool:
        """True where UNBIASED of the elements are zero, and of tensors that are not looked at."""
        if t not in self.zero:
            large = prod(n for n in t.shape if isinstance(n, int)) > MAX_INSPECTED_ELEMENTS
            self.zero[t] = large or float(np.mean(self.arrays[t]() == 0)) >= MIN_ZERO_SHARE
        return self.zero[t]


def zero_sensitive_products(current: Mapping[Tensor, Tensor], tensors: GraphTensors) -> set[Tensor]:
    """Return the products on which a zero-sensitive function depends through operators that
    preserve zeros."""
    constants = Constants(tensors.constants)
    products = {
        t for t, now in current.items() if match_contraction(now, constants.arrays) is not None
    }
    out: set[Tensor] = set()
    seen: set[Tensor] = set()
    todo: list[Tensor] = []
    for t, now in current.items():
        found = [*_sensitive_operands(now, current, constants)]
        todo += [x for x in found if isinstance(x, Tensor)]
        if t in products and reduction(now) in found:
            out.add(t)
    while todo:
        t = todo.pop()
        now = current.get(t, t)
        if t not in seen:
            seen.add(t)
            todo += [x.tensor for x in tensors.parts.get(t, ())]
            some = [] if now.body is None else [*_zero_sources(now.body, constants)]
            todo += [x for x in some if isinstance(x, Tensor)]
            if t in products and reduction(now) in some:
                out.add(t)
    return out


def _sensitive_operands(
    definition: Tensor, current: Mapping[Tensor, Tensor], constants: Constants
) -> Iterator[Tensor | Reduce]:
    """Yield the operands of zero-sensitive functions in the definition and in the stages inlined in
    it."""
    inside = [definition]
    while inside:
        body = inside.pop().body
        if body is None:
            continue
        for e in subexpressions(body):
            match e:
                case Load(t) if t not in current:
                    inside.append(t)
                case Apply("pow", (_, Const(int(n)))) if n >= 0:
                    pass
                case Apply(fn, args) if fn in ORDER_COMPARISONS and args[0].dtype.is_float:
                    yield from _order_sensitive_operands(e, args, body, constants)
                case Apply(fn, args) if fn in SENSITIVE_ARGUMENTS and args[0].dtype.is_float:
                    yield from _zero_sources(args[SENSITIVE_ARGUMENTS[fn]], constants)
                case Apply("cast", (x,), dtype) if dtype.kind == "b" and x.dtype.is_float:
                    yield from _zero_sources(x, constants)


def _order_sensitive_operands(
    e: Expr, sides: tuple[Expr, ...], body: Expr, constants: Constants
) -> Iterator[Tensor | Reduce]:
    """Yield the sources of a value that is compared with zero, if `body` is discontinuous there."""
    for x, other in zip(sides, reversed(sides), strict=True):
        if isinstance(x, Const) or not _may_be_zero(other, constants):
            continue
        numbers: dict[Expr, np.ndarray] = {x: np.zeros(())}
        below, above = (_sample_value(body, numbers | {e: np.asarray(b)}) for b in (True, False))
        if not np.array_equal(below, above):
            yield from _zero_sources(x, constants)


def _sample_value(e: Expr, values_of: Mapping[Expr, np.ndarray]) -> np.ndarray:
    """Return the value of an expression with an arbitrary fixed number for each load and index; a
    reduction has one term."""
    if e in values_of:
        return values_of[e]
    match e:
        case Const(value, dtype) if dtype != INDEX:
            return FLOAT64.const(value, dtype)
        case Reduce(_, _, body):
            return _sample_value(body, values_of)
        case Apply(fn, args, dtype) if INDEX not in (dtype, args[0].dtype):
            with np.errstate(all="ignore"):
                values = [_sample_value(a, values_of) for a in args]
                return FLOAT64.apply(fn, values, [a.dtype for a in args], dtype)
    number = blake2b(str(e).encode(), digest_size=1).digest()[0]
    return np.asarray(number / 256 + 0.5).astype(FLOAT64.storage_dtype(e.dtype))


def _zero_sources(e: Expr, constants: Constants) -> Iterator[Tensor | Reduce]:
    """Yield the tensors and reductions whose zeros are zeros of the result."""
    match e:
        case Load(t):
            yield from () if t in constants else (t,)
        case Apply("add" | "sub" | "max" | "min" as fn, (x, y)):
            some = [[*_zero_sources(x, constants)], [*_zero_sources(y, constants)]]
            # A mean that is subtracted is zero where all is. An addend comes from another path.
            if (
                (fn == "sub" and all(some))
                or _may_be_zero(x, constants)
                or _may_be_zero(y, constants)
            ):
                yield from (t for each in some for t in each)
        case Apply("pow", (x, Const(n))):
            yield from _zero_sources(x, constants) if n > 0 else ()
        case Apply("select", (_, *some)):
            for x in some:
                yield from _zero_sources(x, constants)
        case Apply("mul" | "div" | "cast" | "neg" | "abs" | "sqrt", args):
            for x in args:
                yield from _zero_sources(x, constants)
        case Reduce("sum" | "max", _, body):
            yield e
            yield from _zero_sources(body, constants)


def _may_be_zero(e: Expr, constants: Constants) -> bool:
    """True for a constant that is zero, or is zero in some columns."""
    match e:
        case Const(value):
            return abs(float(value)) < MAX_EPSILON
        case Load(t) if t in constants:
            return constants.may_be_zero(t)
        case Apply("cast", (x,)):
            return _may_be_zero(x, constants)
    return False
