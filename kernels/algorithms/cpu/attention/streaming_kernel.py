"""Streaming attention (streaming.py) as a kernel in the tile-level form, built directly.

    for each head and block of query rows, in parallel
      for each block of keys, up to the last one that the block's rows see
        for each strip of rows
          scores  = register tiles of q k, up to the last key that the strip sees
          weights = exp(scores - most), in place; most and total by row
          sums    = sums * exp(old most - most) + register tiles of weights v
      y = sums / total

Every access is in range: the last register tile of keys or rows overlaps the one before, and
computes the same scores again.

Keys behind a causal mask are skipped if they have a weight of exactly 0 and products of 0 with
their values are 0: their scores are too small for any query of the block, and all values are
finite. Else a second pass over the keys (`turn`) computes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import inf

import numpy as np

from superopt.kernels.algorithms.causal_mask import CausalSkip, position_index
from superopt.kernels.algorithms.cpu.attention.blocks import (
    Blocks,
    ScratchBuffers,
    accumulate,
    ceil_div,
    first_unit_key,
    index_axis,
    larger_number,
    max_index,
    min_index,
    store,
)
from superopt.kernels.algorithms.online_attention import (
    MINUS_INFINITY,
    OnlineAttention,
    attention_result,
    finite_maximum,
)
from superopt.kernels.loops.layout import BufferView, Layout, ScatteredLayout
from superopt.kernels.loops.lower import buffer_view, load_buffers
from superopt.kernels.loops.substitution import replace_loads
from superopt.kernels.loops.tile import For, Kernel, Stmt, Store, Update, bind
from superopt.te.analysis.inline import substitute_axes
from superopt.te.expr import index as te_index
from superopt.te.expr.dtype import F32, I32, I64, INDEX
from superopt.te.expr.index import as_index
from superopt.te.expr.node import Apply, Axis, Const, Expr
from superopt.te.expr.tensor import Tensor, cast, compare, conjunction, const, select

# exp(-x) is 0 in kernels for x above 88 (kernels/llvm/math/vector_math.py); the rest is for scores
# and their bound, which are rounded.
EXP_UNDERFLOW = 200.0
FLOAT32_MAX = Fraction(float(np.finfo(np.float32).max))
SUM_ROUNDING_FACTOR = Fraction(101, 100)  # bound on a computed sum over its exact value
SUM_ROUNDING = Fraction(1, 1 << 20)  # relative, of the few terms that masks add to a score
ZERO = const(0, F32)
Layouts = Mapping[Tensor, Layout | ScatteredLayout]


@dataclass(slots=True)
class _Builder:
    """Builds the kernel. stored: views of the tensors in memory. bounds: of keys and values, see
    `operand_bounds`; None if no keys are skipped.

    Indices that depend on runtime values are axes: first_row, rows: of a block; first, height: of a
    strip of it; begin, end: the units of keys of a strip in a step.
    """

    a: OnlineAttention
    b: Blocks
    stored: dict[Tensor, BufferView]
    skip: CausalSkip | None
    bounds: Tensor | None
    made: ScratchBuffers = field(default_factory=ScratchBuffers)
    turn: Axis = field(default_factory=lambda: Axis("turn", 2))
    channel: Axis = field(init=False)
    block: Axis = field(init=False)
    step: Axis = field(init=False)
    strip: Axis = field(init=False)
    unit: Axis = field(init=False)
    first_row: Axis = field(init=False)
    rows: Axis = field(init=False)
    height: Axis = field(init=False)
    begin: Axis = field(init=False)
    end: Axis = field(init=False)
    length: Expr = field(init=False)
    unit_count: Expr = field(init=False)
    queries: Tensor = field(init=False)
    sums: Tensor = field(init=False)
    most: Tensor = field(init=False)
    total: Tensor = field(init=False)
    new: Tensor = field(init=False)
    factor: Tensor = field(init=False)
    limits: Tensor = field(init=False)
    scores: Tensor = field(init=False)

    def __post_init__(self) -> None:
        a, b, made = self.a, self.b, self.made
        self.length, count = as_index(a.j.extent), as_index(a.i.extent)
        self.unit_count = ceil_div(self.length, b.unit)
        self.channel = Axis("channel", a.c.extent)
        self.block = index_axis("block", ceil_div(count, b.rows))
        self.step = index_axis("step", ceil_div(self.length, b.keys))
        self.strip = Axis("strip", b.rows // b.strip)
        self.unit = index_axis("unit", self.unit_count)
        self.first_row, self.rows = index_axis("first_row", count), Axis("rows", b.rows + 1)
        self.height = Axis("height", b.strip + 1)
        self.begin, self.end = (index_axis(n, self.unit_count + 1) for n in ("begin", "end"))
        self.queries = made.local("queries", b.rows, a.c.size)
        self.sums = made.local("sums", b.rows, a.d.size)
        self.most = made.local("most", b.rows)
        self.total = made.local("total", b.rows)
        self.new = made.local("new", b.strip)
        self.factor = made.local("factor", b.strip)
        self.limits = made.local("limits", 3)
        # in front, for a tile that overlaps the step before; behind, for what no key has
        self.scores = made.local("scores", b.strip, b.keys + 2 * b.unit)

    def buffer_expr(self, e: Expr, env: Mapping[Axis, Expr]) -> Expr:
        """Return an expression of buffers at some values of axes."""
        ones: dict[Axis, Expr] = {x: as_index(0) for x in self.a.tensor.axes if x.extent == 1}
        return load_buffers(substitute_axes(e, {**ones, **env}), self.stored)

    def visible_units(self, last_row: Expr) -> Expr:
        """Return the number of units up to the last key that a row sees."""
        assert self.skip is not None
        seen = max_index(as_index(last_row + (self.skip.offset + 1)), 0)
        return min_index(ceil_div(seen, self.b.unit), self.unit_count)

    def block_body(self) -> tuple[Stmt, ...]:
        """Return the statements of one head and block of rows."""
        b, count = self.b, as_index(self.a.i.extent)
        here = as_index(self.block * b.rows)
        # the last block has as few tiles of rows as its rows need
        tiles = ceil_div(as_index(count - here), b.tile_rows)
        rows = min_index(b.rows, as_index(tiles * b.tile_rows))
        body = (*self._clear_sums(), *self._all_steps(), *self._store_result())
        first_row = min_index(here, as_index(count - self.rows))
        return (bind(self.rows, rows, bind(self.first_row, first_row, *body)),)

    def _all_steps(self) -> tuple[Stmt, ...]:
        strips = For(self.strip, self._strip_body(), until=ceil_div(self.rows, self.b.strip))
        if self.skip is None:
            return (For(self.step, (strips,)),)
        last = as_index(self.first_row + self.rows - 1)
        seen = ceil_div(self.visible_units(last), self.b.units)
        first_turn = compare("lt", self.turn, as_index(1))
        until = select(first_turn, cast(seen, I64), self._second_steps())
        steps = For(self.step, (strips,), until=until)
        return (For(self.turn, (*self._query_limits(), steps)),)

    def _clear_sums(self) -> tuple[Stmt, ...]:
        """Copy the queries, and clear the sums."""
        a, row = self.a, Axis("row", self.b.rows)
        query = self.buffer_expr(a.q, {a.i: as_index(self.first_row + row), a.c: self.channel})
        body = (
            store(self.queries[row, self.channel], query, self.channel),
            store(self.sums[row, a.d], ZERO, a.d),
            store(self.most[row], MINUS_INFINITY),
            store(self.total[row], ZERO),
        )
        return (For(row, body, until=self.rows),)

    def _query_limits(self) -> tuple[Stmt, ...]:
        """Compute the largest L1 norm of a query, the smallest maximum of a row, and the largest
        term of padding."""
        row = Axis("row", self.b.rows)
        norm, largest = self.made.register("norm"), self.made.register("largest")
        smallest = self.made.register("smallest")
        size = Apply("abs", (self.queries[row, self.channel],), F32)
        body = (
            store(norm, ZERO),
            accumulate(norm, "sum", size, (), self.channel),
            accumulate(largest, "max", norm),
            accumulate(smallest, "min", self.most[row]),
        )
        return (
            store(largest, ZERO),
            store(smallest, const(float("inf"), F32)),
            For(row, body, until=self.rows),
            store(self.limits[0,], largest),
            store(self.limits[1,], smallest),
            *self._padding_limit(),
        )

    def _padding_limit(self) -> tuple[Stmt, ...]:
        assert self.skip is not None
        if self.skip.padding is None:
            return ()
        lane, unit = Axis("lane", self.b.unit), self.unit
        largest, most = self.made.register("paddings", lane), self.made.register("padding")
        key = as_index(first_unit_key(unit, self.length, self.b) + lane)
        padding = narrow_comparisons(self.buffer_expr(self.skip.padding, {self.a.j: key}))
        return (
            store(largest, MINUS_INFINITY, lane),
            For(unit, (accumulate(largest, "max", padding, (lane,)),)),
            store(most, MINUS_INFINITY),
            accumulate(most, "max", largest, (), lane),
            store(self.limits[2,], most),
        )

    def _second_steps(self) -> Expr:
        """Return the steps of the second pass: none if all keys that are left can be skipped."""
        assert self.skip is not None
        assert self.bounds is not None
        rest = tuple(x for x in self.a.tensor.axes if x not in (self.a.i, self.a.d))
        ones = {x: as_index(0) for x in rest if x.extent == 1}
        held = self.stored[self.bounds].buffer
        keys, values = (held[(*(ones.get(x, x) for x in rest), n)] for n in range(2))
        scale = Fraction(abs(self.skip.scale)) * SUM_ROUNDING_FACTOR
        reach = self.limits[0,] * keys * Const(scale, F32)
        padding = None if self.skip.padding is None else self.limits[2,]
        finite = [x for x in (reach, values, padding) if x is not None]
        guards = [compare("le", x, Const(FLOAT32_MAX, F32)) for x in finite]
        if self.skip.least > -inf:
            largest = reach + const(self.skip.least, F32)
            largest = largest if padding is None else largest + padding
            rounding = Apply("abs", (largest,), F32) * Const(SUM_ROUNDING, F32)
            margin = rounding + Const(Fraction(EXP_UNDERFLOW), F32)
            guards.append(compare("le", margin, self.limits[1,] - largest))
        unseen = conjunction(*guards)
        return select(unseen, const(0, I64), cast(as_index(self.step.extent), I64))

    def _strip_body(self) -> tuple[Stmt, ...]:
        """Return the statements of a strip of rows and a step of keys."""
        b = self.b
        height = min_index(b.strip, as_index(self.rows - self.strip * b.strip))
        first = as_index(self.step * b.units)
        end = min_index(as_index(first + b.units), self.unit_count)
        begin = first
        if self.skip is not None:
            last = as_index(self.first_row + self.strip * b.strip + self.height - 1)
            seen = min_index(max_index(self.visible_units(last), first), end)
            # in the second pass from `seen` on, in the first one up to there
            begin = as_index(first + self.turn * (seen - first))
            end = as_index(seen + self.turn * (end - seen))
        body = (*self._score_tiles(), *self._softmax(), *self._value_tiles())
        inner = bind(self.begin, begin, bind(self.end, end, *body))
        return (bind(self.height, height, inner),)

    def _over_units(self, *body: Stmt) -> For:
        return For(self.unit, body, until=self.end, begin=self.begin)

    def _column(self, key: Expr) -> Expr:
        """Return the column of a key's scores."""
        return as_index(key - self.step * self.b.keys + self.b.unit)

    def _row_tiles(self, above: Axis, *body: Stmt) -> For:
        return For(above, body, until=ceil_div(self.height, self.b.tile_rows))

    def _score_tiles(self) -> tuple[Stmt, ...]:
        a, b = self.a, self.b
        i, v, lane = Axis("i", b.tile_rows), Axis("v", b.score_vectors), Axis("lane", b.lanes)
        held = self.made.register("score", i, v, lane)
        tile = Axis("tile", b.unit // (b.score_vectors * b.lanes))
        above = Axis("row_tile", b.strip // b.tile_rows)
        first_key = first_unit_key(self.unit, self.length, b)
        key = as_index(first_key + (tile * b.score_vectors + v) * b.lanes + lane)
        row = as_index(above * b.tile_rows + i)
        at_row = as_index(self.strip * b.strip + row)
        env = {a.i: as_index(self.first_row + at_row), a.j: key, a.c: self.channel}
        x = narrow_comparisons(replace_loads(self.buffer_expr(a.score, env), a.placeholder, held))
        term = self.queries[at_row, self.channel] * self.buffer_expr(a.k, env)
        tile_body = (
            store(held, ZERO, i, v, lane),
            _sum_loop(self.channel, b, accumulate(held, "sum", term, (i, v, lane))),
            store(self.scores[row, self._column(key)], x, i, v, lane),
        )
        tiles = self._over_units(For(tile, (self._row_tiles(above, *tile_body),)))
        return (*self._pad_scores(), tiles)

    def _pad_scores(self) -> tuple[Stmt, ...]:
        """Hide the columns behind the last key in its unit."""
        n = self.b.unit
        if te_index.mod(self.length, as_index(n)) == as_index(0):
            return ()
        row, lane = Axis("row", self.b.strip), Axis("pad", n)
        last = min_index(self.length, as_index((self.step + 1) * self.b.keys))
        behind = self.scores[row, as_index(self._column(last) + lane)]
        return (For(row, (store(behind, MINUS_INFINITY, lane),), until=self.height),)

    def _softmax(self) -> tuple[Stmt, ...]:
        """Turn the scores into weights, and update the maximum and the total of each row. The
        passes are separate, so that those of different rows overlap."""
        b, d, made = self.b, self.a.d, self.made
        row, lane = Axis("row", b.strip), Axis("lane", b.unit)
        tops, found, shares = (made.register(n, lane) for n in ("tops", "found", "shares"))
        at = as_index(self.strip * b.strip + row)
        most, total, sums = self.most[at], self.total[at], self.sums[at, d]
        new, factor = self.new[row], self.factor[row]
        x = self.scores[row, self._column(as_index(self.unit * b.unit + lane))]
        maxima = (
            store(tops, MINUS_INFINITY, lane),
            self._over_units(store(found, x, lane), store(tops, larger_number(found, tops), lane)),
            store(new, MINUS_INFINITY),
            accumulate(new, "max", tops, (), lane),
        )
        weights = (
            store(shares, ZERO, lane),
            self._over_units(
                store(found, Apply("exp_below", (x - new,), F32), lane),
                store(x, found, lane),
                store(shares, shares + found, lane),
            ),
            accumulate(total, "sum", shares, (), lane),
            store(sums, sums * factor, d),
        )
        return (
            For(row, maxima, until=self.height),
            store(new, larger_number(new, most), row),
            store(factor, Apply("exp_below", (most - finite_maximum(new),), F32), row),
            store(most, new, row),
            store(total, total * factor, row),
            store(new, finite_maximum(new), row),
            For(row, weights, until=self.height),
        )

    def _value_tiles(self) -> tuple[Stmt, ...]:
        a, b = self.a, self.b
        i, v, lane = Axis("i", b.tile_rows), Axis("w", b.value_vectors), Axis("lane", b.lanes)
        held = self.made.register("sum", i, v, lane)
        group = Axis("columns", a.d.size // (b.value_vectors * b.lanes))
        above, term = Axis("row_tile", b.strip // b.tile_rows), Axis("term", b.unit)
        row = as_index(above * b.tile_rows + i)
        d = as_index((group * b.value_vectors + v) * b.lanes + lane)
        key = as_index(self.unit * b.unit + term)
        value = self.buffer_expr(a.v, {a.j: key, a.d: d})
        weight = self.scores[row, self._column(key)]
        sums = self.sums[as_index(self.strip * b.strip + row), d]
        rest = te_index.mod(self.length, as_index(b.unit))
        left = None if rest == as_index(0) else as_index(self.length - self.unit * b.unit)
        body = (
            store(held, sums, i, v, lane),
            _sum_loop(term, b, accumulate(held, "sum", weight * value, (i, v, lane)), left),
            store(sums, held, i, v, lane),
        )
        return (self._over_units(For(group, (self._row_tiles(above, *body),))),)

    def _store_result(self) -> tuple[Stmt, ...]:
        a, row = self.a, Axis("row", self.b.rows)
        env: dict[Axis, Expr] = {x: as_index(0) for x in a.tensor.axes if x.extent == 1}
        env[a.i] = as_index(self.first_row + row)
        out = self.stored[a.tensor]
        place = out.buffer_index(tuple(env.get(x, x) for x in a.tensor.axes))
        sums, total = self.sums[row, a.d], self.total[row]
        result = attention_result(a, lambda e: self.buffer_expr(e, env), sums, total)
        return (For(row, (Store(out.buffer, place, result, (a.d,)),), until=self.rows),)


def narrow_comparisons(e: Expr) -> Expr:
    """Return `e` with positions compared in 32 bits, of which a vector has twice as many."""
    match e:
        case Apply("le" | "lt" as fn, (a, b)):
            x, y = position_index(a), position_index(b)
            if x is None or y is None:
                return e
            return compare(fn, cast(as_index(x - y), I32), const(0, I32))
        case Apply(fn, args, dtype) if dtype != INDEX:
            return Apply(fn, tuple(map(narrow_comparisons, args)), dtype)
    return e


def _sum_loop(axis: Axis, b: Blocks, update: Update, until: Expr | None = None) -> For:
    """Return the loop over the terms of a sum, unrolled if it has a fixed number of them."""
    n = b.unrolled_terms
    if until is not None or n == 1 or axis.size % n:
        return For(axis, (update,), until=until)
    outer, inner = Axis(f"{axis.name}.o", axis.size // n), Axis(f"{axis.name}.i", n)
    env: dict[Axis, Expr] = {axis: as_index(outer * n + inner)}
    update = replace(update, value=substitute_axes(update.value, env))
    return For(outer, (For(inner, (update,), "unroll"),))


def streaming_attention_kernel(
    a: OnlineAttention, inputs: Sequence[Tensor], layouts: Layouts, blocks: Blocks,
    skip: CausalSkip | None = None, bounds: Tensor | None = None,
) -> Kernel:  # fmt: skip
    """Return the kernel. inputs: in order; with `bounds`, if it is given. skip: which keys are
    behind the mask; None to compute all."""
    stored = {x: buffer_view(x.name, x, layouts.get(x)) for x in inputs}
    stored[a.tensor] = out = buffer_view(a.tensor.name, a.tensor, layouts.get(a.tensor))
    built = _Builder(a, blocks, stored, skip, bounds)
    body = built.block_body()
    rest = [x for x in a.tensor.axes if x not in (a.i, a.d)]
    for axis in reversed([*rest, built.block]):
        body = (For(axis, body, "parallel"),)
    params = (*(stored[x].buffer for x in inputs), out.buffer)
    return Kernel("kernel", params, body, tuple(built.made.scratch))
