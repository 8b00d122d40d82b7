"""Reduced-precision functions in values stored in 16 bits on a GPU. An erf, most of a GELU's cost,
takes 33 instructions otherwise, one of which costs as much as eight, and 20 so."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from superopt.kernels.loops.tile import For, Stmt, Store
from superopt.kernels.triton.functions import FLOAT16_DTYPES, REDUCED_PRECISION_FUNCTIONS
from superopt.te.expr.dtype import F32
from superopt.te.expr.node import Apply, Const, Expr

# Functions that keep relative errors; and those that keep absolute ones, but not relative to 1 -
# erf(x). Casts between floats do, too.
RELATIVE_ERROR_FUNCTIONS = frozenset(("mul", "neg", "select", "max", "min", "abs"))
ABSOLUTE_ERROR_FUNCTIONS = RELATIVE_ERROR_FUNCTIONS | {"add", "sub"}


def narrow_value(e: Expr, functions: Collection[str] = RELATIVE_ERROR_FUNCTIONS) -> Expr:
    """Return a value stored in 16 bits with reduced-precision functions, where the enclosing
    `functions` preserve their accuracy."""
    match e:
        case Apply(fn, args, dtype) if fn in REDUCED_PRECISION_FUNCTIONS and dtype == F32:
            return Apply(REDUCED_PRECISION_FUNCTIONS[fn], args, dtype)
        case Apply("div", (x, Const() as by), dtype) if dtype.is_float:
            return Apply("div", (narrow_value(x, functions), by), dtype)
        case Apply("cast", (x,), dtype) if dtype.is_float and x.dtype.is_float:
            return Apply("cast", (narrow_value(x, functions),), dtype)
        case Apply(fn, args, dtype) if fn in functions:
            return Apply(fn, tuple(narrow_value(x, functions) for x in args), dtype)
    return e


def narrow_stores(body: Sequence[Stmt]) -> tuple[Stmt, ...]:
    """Return the statements with narrowed 16-bit stores, for models whose floats were asked to be
    stored so: all intermediate values could be 16-bit, too."""
    out: list[Stmt] = []
    for s in body:
        match s:
            case For(_, inner):
                out.append(replace(s, body=narrow_stores(inner)))
            case Store(buffer, _, value) if buffer.dtype in FLOAT16_DTYPES:
                out.append(replace(s, value=narrow_value(value, ABSOLUTE_ERROR_FUNCTIONS)))
            case _:
                out.append(s)
    return tuple(out)
