"""Shorter functions on a GPU, in what is stored as halves. An erf, most of what a GELU takes, is 33
instructions else, of which one takes as long as eight, and 20 so."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from superopt.kernels.gpu_functions import HALF, SHORT
from superopt.kernels.tile import For, Stmt, Store
from superopt.te.dtype import F32
from superopt.te.node import Apply, Const, Expr

# What keeps errors as small beside its result as they are; and what keeps them as small, but not
# beside what is left of 1 less an erf. Of casts those to floats do.
RELATIVE = frozenset(("mul", "neg", "select", "max", "min", "abs"))
LINEAR = RELATIVE | {"add", "sub"}


def shortened(e: Expr, through: Collection[str] = RELATIVE) -> Expr:
    """What is stored as halves, with functions whose errors are no larger than those of halves,
    where what is made of them keeps them so."""
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
    """A kernel's, where halves are what was asked for in the place of floats: all between could be
    of these, too."""
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
