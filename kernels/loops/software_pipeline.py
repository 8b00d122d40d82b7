"""Software pipelining of copies in the tile-level form (double buffering)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from superopt.kernels.loops.loop_transforms import Loop
from superopt.kernels.loops.tile import For, Stmt
from superopt.te.analysis import affine
from superopt.te.expr import index as te_index
from superopt.te.expr.dtype import INDEX
from superopt.te.expr.node import Expr


def pipeline_loop(loop: Loop, copies: tuple[Stmt, ...], body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """Return the loop whose steps are `body`, with `copies` issued `stages` - 1 steps ahead.

    A prologue copies the data of the first `stages` - 1 steps. Each step copies that of the step as
    far ahead; past the end it copies the last step's once more.
    """
    last, early = loop.extent - 1, loop.stages - 1
    first = [k for k in range(early) if k <= last]
    soon = affine.rebuild(
        "min", (te_index.as_index(loop.axis + early), te_index.as_index(last)), INDEX
    )
    return (
        *(s for k in first for s in substitute_axes(copies, {loop.axis: te_index.as_index(k)})),
        For(loop.axis, (*substitute_axes(copies, {loop.axis: soon}), *body)),
    )


def substitute_axes(body: tuple[Stmt, ...], env: Mapping[Expr, Expr]) -> tuple[Stmt, ...]:
    """Return the statements with axes replaced as in `env`."""
    return tuple(_substitute_in(s, env) for s in body)


def _substitute_in(s: Stmt, env: Mapping[Expr, Expr]) -> Stmt:
    if isinstance(s, For):
        return replace(s, body=substitute_axes(s.body, env))
    index = tuple(affine.substitute(i, env) for i in s.index)
    return replace(s, index=index, value=affine.substitute(s.value, env))
