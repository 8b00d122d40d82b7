"""Reduced-precision functions in values stored in 16 bits on a GPU. An erf, most of a GELU's cost,
takes 33 instructions otherwise, one of which costs as much as eight, and 20 so."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from superopt.kernels.gpu_functions import HALF, SHORT
from superopt.kernels.tile import For, Stmt, Store
from superopt.te.dtype import F32
from superopt.te.node import Apply, Const, Expr

# Functions that keep relative errors; and those that keep absolute ones, but not relative to 1 -
# erf(x). Casts between floats do, too.
RELATIVE = frozenset(("mul", "neg", "select", "max", "min", "abs"))
LINEAR = RELATIVE | {"add", "sub"}


def shortened(e: Expr, through: Collection[str] = RELATIVE) -> Expr:
    """Return a value stored in 16 bits with reduced-precision functions, where the enclosing
    `functions` preserve their accuracy."""
    match e:
        case Apply(fn, args, dtype) if fn in SHORT and dtype == F32:
            return Apply(SHORT[fn], args, dtype)
        case Apply("div", (x, Const() as by), dtype) if dtype.is_float:
            return Apply("div", (shortened(x, through), by), dtype)
        case Apply("cast", (x,), dtype) if dtype.is_float and x.dtype.is_float:
            return Apply("cast", (shortened(x, through),), dtype)
        case Apply(fn, args, dtype) if fn in through:
            return Apply(fn, tuple(shortened(x, through) for x in args), dtype)
    return e


def short(body: Sequence[Stmt]) -> tuple[Stmt, ...]:
    """Return the statements with narrowed 16-bit stores, for models whose floats were asked to be
    stored so: all intermediate values could be 16-bit, too."""
    out: list[Stmt] = []
    for s in body:
        match s:
            case For(_, inner):
                out.append(replace(s, body=short(inner)))
            case Store(buffer, _, value) if buffer.dtype in HALF:
                out.append(replace(s, value=shortened(value, LINEAR)))
            case _:
                out.append(s)
    return tuple(out)
