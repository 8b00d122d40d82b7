"""Forms that put another computation in the place of a sum of products (Winograd's, Strassen's):
what one consists of, and what stands in a computation at other indices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from superopt.kernels.layout import Scatter
from superopt.kernels.schedule import Schedule
from superopt.te import index as ix
from superopt.te.affine import rebuild
from superopt.te.expr import Tensor, select
from superopt.te.node import Apply, Axis, Const, Expr, Load


@dataclass(frozen=True, slots=True)
class Form:
    """A sum of products by another computation: what computes it, where that lies, and what is
    known of it.

    kernel: the constant, transformed. first: the other operand, transformed, where that is a kernel
    of its own, and the buffer from which it is read then.
    """

    root: Tensor
    first: tuple[Tensor, Tensor] | None
    lies: Scatter
    schedules: Mapping[Tensor, Schedule]
    tables: Mapping[Tensor, np.ndarray]
    kernel: Tensor


def placed(e: Expr, env: Mapping[Expr, Expr]) -> Expr:
    """`e` with axes replaced; conditions that are known then are decided."""
    match e:
        case Axis():
            return env.get(e, e)
        case Load(t, index, dtype):
            return Load(t, tuple(ix.as_index(placed(i, env)) for i in index), dtype)
        case Apply("select", (guard, yes, no)):
            g = placed(guard, env)
            if isinstance(g, Const):
                return placed(yes if g.value else no, env)
            return select(g, placed(yes, env), placed(no, env))
        case Apply(fn, args, dtype):
            return rebuild(fn, tuple(placed(a, env) for a in args), dtype)
    return e


def put(e: Expr, held: Tensor, total: Expr) -> Expr:
    """`e` with `total` for its loads of `held`."""
    match e:
        case Load(t) if t is held:
            return total
        case Apply(fn, args, dtype):
            return Apply(fn, tuple(put(a, held, total) for a in args), dtype)
    return e
