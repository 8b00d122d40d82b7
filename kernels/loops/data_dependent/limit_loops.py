"""End loops of a kernel where a value in memory says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from superopt.kernels.loops.tile import For, Kernel, Stmt, Store, Update, flat_statements
from superopt.te.analysis.inline import substitute_axes
from superopt.te.analysis.walk import index_axes, loads
from superopt.te.expr import index as te_index
from superopt.te.expr.dtype import I64
from superopt.te.expr.node import Axis, Dim, Expr
from superopt.te.expr.tensor import Tensor, apply, cast, compare, const, select

BLOCK_ELEMENTS = 64  # of a parallel loop over elements, for each part of a thread


def limit_loops(
    kernel: Kernel, axis: Axis, end: Expr, *, is_summed: bool = False, reads: Tensor | None = None
) -> Kernel | None:
    """Return the kernel without the elements along `axis` from `end` on; None if its loops do not
    allow it. Tiles of a result are computed whole.

    end: an i64 expression of axes whose loops are not split. The tensors that it loads become
    parameters, before the result. is_summed: the axis is that of a reduction. reads: None for the
    kernel's result; for a stage a tensor that no other stage reads.
    """
    sizes = {a.name: a.extent for a in all_axes(kernel.body)}

    def tile_of(s: For) -> Dim | None:
        """Return how many elements an iteration has; None if the loop is not limited."""
        prefix, name = "" if reads is None else s.axis.name.partition(".")[0] + ".", axis.name
        tile: Dim = 1
        while (inner := sizes.get(f"{prefix}{name}.i")) is not None:
            if tile != 1 if is_summed else not isinstance(inner, int):
                return None
            tile, name = te_index.dim(te_index.as_index(inner) * tile), f"{name}.o"
        if s.axis.name != f"{prefix}{name}":
            return None
        found = flat_statements(s.body)
        is_owner = reads is None or any(x.tensor is reads for y in found for x in loads(y.value))
        return tile if is_owner else None

    body = _limit_body(kernel.body, tile_of, end, {}, is_summed)
    if body is None:
        return None
    new = dict.fromkeys(x.tensor for x in loads(end) if x.tensor not in kernel.params)
    return replace(kernel, body=body, params=(*kernel.params[:-1], *new, kernel.params[-1]))


def all_axes(body: Sequence[Stmt]) -> Iterator[Axis]:
    """Yield the axes of loops and tiles."""
    for s in body:
        match s:
            case For(axis, inner):
                yield axis
                yield from all_axes(inner)
            case Store():
                yield from s.axes
            case Update():
                yield from (*s.axes, *s.over)


def _limit_body(
    body: tuple[Stmt, ...],
    tile_of: Callable[[For], Dim | None],
    end: Expr,
    loops: Mapping[str, Axis],
    is_summed: bool,
) -> tuple[Stmt, ...] | None:
    """Return the statements with a loop limited; None if there is none, or the end is not known
    there."""
    out: list[Stmt] = []
    found = False
    for s in body:
        if not isinstance(s, For):
            out.append(s)
            continue
        if (tile := tile_of(s)) is not None:
            made = _limit_loop(s, tile, end, loops, is_summed)
        else:
            within = {**loops, s.axis.name: s.axis}
            inner = _limit_body(s.body, tile_of, end, within, is_summed)
            made = None if inner is None else replace(s, body=inner)
        found |= made is not None
        out.append(s if made is None else made)
    return tuple(out) if found else None


def _limit_loop(
    s: For, tile: Dim, end: Expr, loops: Mapping[str, Axis], is_summed: bool
) -> For | None:
    """Return a loop over tiles without those that begin at `end` or later."""
    if s.kind not in ("serial", "parallel") or any(loops.get(a.name) != a for a in index_axes(end)):
        return None
    if tile == 1 and s.kind == "serial":
        return replace(s, until=end)
    if tile == 1 and not is_summed:
        return _limit_parallel_loop(s, end)
    begin = cast(te_index.as_index(s.axis * tile), I64)
    if is_summed:  # blocks of terms do not overlap, and each ends where all do
        body = _limit_block(s.body, f"{s.axis.name.removesuffix('.o')}.i", end - begin)
        return None if body is None else replace(s, body=body)
    once = select(compare("lt", begin, end), const(1, I64), const(0, I64))
    return replace(s, body=(For(Axis(f"{s.axis.name}.if", 1), s.body, until=once),))


def _limit_parallel_loop(s: For, end: Expr) -> For:
    """Return a parallel loop over blocks, each of which ends where all do: threads take fewer and
    larger parts, and a block behind the end costs one comparison."""
    name, extent = s.axis.name, te_index.as_index(s.axis.extent)
    block = Axis(f"{name}.b", te_index.dim(-(-extent // BLOCK_ELEMENTS)))
    each = Axis(f"{name}.e", BLOCK_ELEMENTS)
    begin = te_index.as_index(block * BLOCK_ELEMENTS)
    at: dict[Axis, Expr] = {s.axis: te_index.as_index(begin + each)}
    last = apply("min", end, cast(extent, I64))
    inner = For(each, tuple(_substitute(x, at) for x in s.body), until=last - cast(begin, I64))
    return For(block, (inner,), s.kind)


def _substitute(s: Stmt, at: Mapping[Axis, Expr]) -> Stmt:
    """Return a statement with expressions in place of axes."""

    def expr(e: Expr) -> Expr:
        return substitute_axes(e, at)

    if isinstance(s, For):
        until, begin = (None if e is None else expr(e) for e in (s.until, s.begin))
        return replace(s, body=tuple(_substitute(x, at) for x in s.body), until=until, begin=begin)
    limits = tuple((expr(i), expr(n)) for i, n in s.limits)
    return replace(s, index=tuple(map(expr, s.index)), value=expr(s.value), limits=limits)


def _limit_block(body: tuple[Stmt, ...], name: str, end: Expr) -> tuple[Stmt, ...] | None:
    """Return the statements with the serial loop of this name limited; None if there is none."""
    out: list[Stmt] = []
    found = False
    for s in body:
        made: For | None = None
        if isinstance(s, For) and s.axis.name == name and s.kind == "serial":
            made = replace(s, until=end)
        elif isinstance(s, For) and (inner := _limit_block(s.body, name, end)) is not None:
            made = replace(s, body=inner)
        found |= made is not None
        out.append(s if made is None else made)
    return tuple(out) if found else None
