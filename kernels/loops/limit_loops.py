"""End loops of a kernel where a value in memory says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from superopt.kernels.loops.schedule import Schedule, Split
from superopt.kernels.loops.tile import For, Kernel, Stmt, flat_statements
from superopt.te.analysis.walk import index_axes, loads
from superopt.te.expr import index as te_index
from superopt.te.expr.dtype import I64
from superopt.te.expr.node import Axis, Expr
from superopt.te.expr.tensor import Tensor, cast, compare, const, select


def limit_loops(
    kernel: Kernel, schedule: Schedule, axis: Axis, end: Expr, reads: Tensor | None = None
) -> Kernel | None:
    """Return the kernel without the elements along `axis` from `end` on, in whole tiles; None if
    its loops do not allow it.

    schedule: of the tensor with this axis. end: an i64 expression of axes whose loops are not
    split. The tensors that it loads become parameters, before the result. reads: None for the
    kernel's result; for a stage a tensor that no other stage reads.
    """
    tile, name = 1, axis.name
    splits = {s.axis: s.factor for s in schedule if isinstance(s, Split)}
    while name in splits:
        tile, name = tile * splits[name], f"{name}.o"

    def is_limited(s: For) -> bool:
        if reads is None:
            return s.axis.name == name
        is_stage = s.axis.name.partition(".")[2] == name  # the first part is the stage's buffer
        return is_stage and any(
            x.tensor is reads for inner in flat_statements(s.body) for x in loads(inner.value)
        )

    body = _limit_body(kernel.body, is_limited, tile, end, {})
    if body is None:
        return None
    new = dict.fromkeys(x.tensor for x in loads(end) if x.tensor not in kernel.params)
    return replace(kernel, body=body, params=(*kernel.params[:-1], *new, kernel.params[-1]))


def _limit_body(
    body: tuple[Stmt, ...],
    is_limited: Callable[[For], bool],
    tile: int,
    end: Expr,
    loops: Mapping[str, Axis],
) -> tuple[Stmt, ...] | None:
    """Return the statements with a loop limited; None if there is none, or the end is not known
    there."""
    out: list[Stmt] = []
    found = False
    for s in body:
        if not isinstance(s, For):
            out.append(s)
            continue
        if is_limited(s):
            made = _limit_loop(s, tile, end, loops)
        else:
            inner = _limit_body(s.body, is_limited, tile, end, {**loops, s.axis.name: s.axis})
            made = None if inner is None else replace(s, body=inner)
        found |= made is not None
        out.append(s if made is None else made)
    return tuple(out) if found else None


def _limit_loop(s: For, tile: int, end: Expr, loops: Mapping[str, Axis]) -> For | None:
    """Return a loop over tiles without those that begin at `end` or later."""
    if s.kind not in ("serial", "parallel") or any(loops.get(a.name) != a for a in index_axes(end)):
        return None
    if tile == 1 and s.kind == "serial":
        return replace(s, until=end)
    begin = cast(te_index.as_index(s.axis * tile), I64)
    once = select(compare("lt", begin, end), const(1, I64), const(0, I64))
    return replace(s, body=(For(Axis(f"{s.axis.name}.if", 1), s.body, until=once),))
