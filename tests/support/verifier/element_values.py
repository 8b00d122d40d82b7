"""Normal forms computed at a point by the definitions of their factors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from itertools import product

from superopt.te.eval.domain import wrap
from superopt.te.expr.dtype import I64
from superopt.verifier.elements import normal
from superopt.verifier.elements.intervals import INTEGER_TYPES
from superopt.verifier.elements.normal import NF, Factor, Piece, Term
from superopt.verifier.poly.guards import Guard
from superopt.verifier.poly.polynomial import Var, atom_poly
from tests.support.verifier.integers import Point, guard_holds, value_at

# Of an element: its name and its index.
Elements = Callable[[str, tuple[int, ...]], float]
REAL_FUNCTIONS: dict[str, Callable[..., float]] = {
    "exp": math.exp, "log": math.log, "sqrt": math.sqrt, "abs": abs, "neg": lambda x: -x,
    "floor": math.floor, "ceil": math.ceil, "round": round, "tanh": math.tanh,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)), "sign": lambda x: (x > 0) - (x < 0),
    "erf": math.erf, "sin": math.sin, "cos": math.cos, "tan": math.tan, "atan": math.atan,
    "asin": math.asin, "sinh": math.sinh, "cosh": math.cosh, "asinh": math.asinh,
    "atanh": math.atanh, "acos": math.acos,
    "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y, "max": max, "min": min, "pow": math.pow,
    "div of integers": lambda x, y: math.trunc(Fraction(int(x), int(y))),
    "mod of integers": lambda x, y: int(x) % int(y),
    "sign of integers": lambda x: (x > 0) - (x < 0),
    **{f"wrap in {d}": lambda x, d=d: wrap(int(x), d) for d in INTEGER_TYPES},
    "wrap in any integer": lambda x: wrap(int(x), I64),
}  # fmt: skip


def form_value(a: NF, point: Point, elements: Elements) -> float:
    return math.fsum(term_value(t, point, elements) for t in a.terms)


def term_value(t: Term, point: Point, elements: Elements) -> float:
    values = (
        math.prod(_factor_value(f, at, elements) ** float(e) for f, e in t.powers)
        for at in _assignments(t.bound, t.guards, point)
    )
    return float(t.coefficient) * math.fsum(values)


def _assignments(
    bound: tuple[Var, ...], guards: frozenset[Guard], point: Point
) -> Iterator[Mapping[object, int]]:
    """Each value of bound variables that satisfies the guards."""
    extents = [range(value_at(v.extent, point)) for v in bound]
    for values in product(*extents):
        at = {**point, **dict(zip(bound, values, strict=True))}
        if all(guard_holds(g, at) for g in guards):
            yield at


def piece_values(p: Piece, point: Point, elements: Elements) -> Iterator[float]:
    for at in _assignments(p.bound, p.guards, point):
        yield form_value(p.value, at, elements)


def _factor_value(f: Factor, point: Point, elements: Elements) -> float:
    match f:
        case normal.Read():
            return elements(f.name, tuple(value_at(p, point) for p in f.index))
        case normal.Num():
            return value_at(atom_poly(f.atom), point)
        case normal.Fn(name="number"):
            return form_value(f.args[0], point, elements)
        case normal.Fn(name="inf"):
            return math.inf
        case normal.Fn():
            return REAL_FUNCTIONS[f.name](*(form_value(a, point, elements) for a in f.args))
        case normal.Exp():
            return math.exp(form_value(f.argument, point, elements))
        case normal.Sum():
            return form_value(f.argument, point, elements)
        case normal.Max():
            values = (v for p in f.pieces for v in piece_values(p, point, elements))
            return max(values, default=-math.inf)
        case normal.Truth():
            n = form_value(f.argument, point, elements)
            return float({"lt": n < 0, "eq": n == 0, "is": bool(n)}[f.fn])
        case normal.Prod():
            return math.prod(piece_values(f.piece, point, elements))
        case _:
            raise ValueError(f)
