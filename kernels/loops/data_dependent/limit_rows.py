"""End the loops of a row kernel that run along its rows where the elements of the rows are masked.

max over t of s[t], sum over t of exp(s[t] - max): from `end` on, s is -inf and exp(s - max) is 0
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from superopt.kernels.loops.data_dependent.limit_loops import all_axes
from superopt.kernels.loops.tile import For, Kernel, Stmt, Store, Update, flat_statements
from superopt.te.analysis.walk import index_axes, loads
from superopt.te.expr.dtype import I64
from superopt.te.expr.node import Axis, Const, Dim, Expr, Load
from superopt.te.expr.tensor import Tensor, apply, cast, compare, const, select

# What masked elements are in reductions.
NEUTRAL: Mapping[str, float] = {"sum": 0.0, "max": float("-inf")}


def limit_rows(kernel: Kernel, extent: Dim, end: Expr, rows: Collection[Tensor]) -> Kernel:
    """Return the kernel without elements of its rows from `end` on, where its loops allow it.

    extent: of rows, which no other axis has that its stages have last. end: an i64 expression of
    axes whose loops are not split. rows: its parameters that are rows. What stages have behind the
    end is not computed, and not read by reductions; other statements may read it.
    """
    stages = {t for t, scope in kernel.scratch if scope == "local" and t.rank > 1}
    stages = {t for t in stages if t.shape[-1] == extent}
    sizes = {a.name: a.extent for a in all_axes(kernel.body)}
    change = _RowLimit(end, stages, {*stages, *rows}, sizes)
    body = tuple(change.stmt(s, {}) for s in kernel.body)
    return replace(kernel, body=body) if change.is_found else kernel


@dataclass(slots=True)
class _RowLimit:
    """stages: rows that the kernel computes. rows: these and its parameters. sizes: of axes by
    name. is_found: true if a loop ends earlier."""

    end: Expr
    stages: Collection[Tensor]
    rows: Collection[Tensor]
    sizes: Mapping[str, Dim]
    is_found: bool = False

    def stmt(self, s: Stmt, loops: Mapping[str, Axis], is_limited: bool = False) -> Stmt:
        """Return a statement with limits. loops: those around it. is_limited: one of these ends
        where the rows do, to the element."""
        is_known = all(loops.get(a.name) == a for a in index_axes(self.end))
        if not isinstance(s, For):
            return s if is_limited or not is_known else self.guard(s)
        within = {**loops, s.axis.name: s.axis}
        runs_along = any(s.axis in index_axes(i) for i in self.row_indices(s))
        is_limited |= runs_along and s.until is not None
        tile = self.tile_elements(s.axis.name)
        is_outer = s.kind == "serial" and s.until is None and is_known and tile is not None
        if not (runs_along and is_outer):
            return replace(s, body=tuple(self.stmt(x, within, is_limited) for x in s.body))
        assert tile is not None
        self.is_found = True
        steps = apply("div", self.end + const(tile - 1, I64), const(tile, I64))
        return replace(s, body=tuple(self.guard_inside(x) for x in s.body), until=steps)

    def row_indices(self, s: Stmt) -> Iterator[Expr]:
        """Yield the last indices at which statements access rows."""
        for x in flat_statements((s,)):
            if x.buffer in self.rows:
                yield x.index[-1]
            yield from (load.index[-1] for load in loads(x.value) if load.tensor in self.rows)

    def tile_elements(self, name: str) -> int | None:
        """Return how many elements an iteration of a loop has; None if that is not known."""
        tile = 1
        while name.endswith(".o"):
            name = name.removesuffix(".o")
            inner = self.sizes.get(f"{name}.i")
            if not isinstance(inner, int):
                return None
            tile *= inner
        return tile

    def guard_inside(self, s: Stmt) -> Stmt:
        if isinstance(s, For) and s.until is not None:
            return s
        if isinstance(s, For):
            return replace(s, body=tuple(map(self.guard_inside, s.body)))
        return self.guard(s)

    def guard(self, s: Store | Update) -> Store | Update:
        """Return a reduction that reads no element of a stage behind the end."""
        found: list[Load] = [x for x in loads(s.value) if x.tensor in self.stages]
        if not isinstance(s, Update) or not found:
            return s
        (at,) = {x.index[-1] for x in found}
        is_valid = compare("lt", cast(at, I64), self.end)
        neutral = Const(NEUTRAL[s.fn], s.value.dtype)
        return replace(s, value=select(is_valid, s.value, neutral))
