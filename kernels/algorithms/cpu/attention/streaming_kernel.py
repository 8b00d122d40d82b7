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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np

from superopt.kernels.algorithms.causal_mask import CausalSkip
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
from superopt.te.expr.node import Apply, Axis, Const, Dim, Expr, Load
from superopt.te.expr.tensor import Tensor, cast, compare, conjunction, const, select

# exp(-x) of the CPU's kernels is 0 in float32 for x above this (llvm/vector_math.py); scores are
# rounded, and so is their bound.
EXP_UNDERFLOW = 200.0
FLOAT32_MAX = Fraction(float(np.finfo(np.float32).max))
SUM_ROUNDING_FACTOR = Fraction(101, 100)  # bound on a computed sum over its exact value
ZERO = const(0, F32)
Layouts = Mapping[Tensor, Layout | ScatteredLayout]


@dataclass(frozen=True, slots=True)
class Blocks:
    """Sizes of blocks. rows: of a parallel part; strip: rows whose scores stay in L1; keys: of a
    step of the online softmax; unit: of keys that a causal mask bounds, and whose values stay in L1
    for all rows of a strip; tile_rows, score_vectors, value_vectors: of the register tiles of both
    products; lanes: of a vector; unrolled_terms: of a sum."""

    rows: int
    strip: int
    keys: int
    unit: int
    tile_rows: int
    score_vectors: int
    value_vectors: int
    lanes: int
    unrolled_terms: int = 1

    @property
    def units(self) -> int:
        """The units of a step."""
        return self.keys // self.unit


def _index(e: Dim | Expr) -> Expr:
    return te_index.as_index(e)


def _min(a: Dim | Expr, b: Dim | Expr) -> Expr:
    return te_index.apply("min", (_index(a), _index(b)), INDEX)


def _max(a: Dim | Expr, b: Dim | Expr) -> Expr:
    return te_index.apply("max", (_index(a), _index(b)), INDEX)


def _ceil_div(e: Expr, n: int) -> Expr:
    return _index(_index(e + (n - 1)) // n)


def _axis(name: str, extent: Dim | Expr) -> Axis:
    return Axis(name, te_index.dim(_index(extent)))


@dataclass(slots=True)
class _Scratch:
    """The buffers of a kernel."""

    scratch: list[tuple[Tensor, str]] = field(default_factory=list)

    def local(self, name: str, *shape: int) -> Tensor:
        return self._add(name, shape, "local")

    def register(self, name: str, *axes: Axis) -> Load:
        return Load(self._add(name, [a.extent for a in axes], "register"), axes, F32)

    def _add(self, name: str, shape: Sequence[Dim], scope: str) -> Tensor:
        t = Tensor(name, F32, tuple(shape))
        self.scratch.append((t, scope))
        return t


def _store(x: Load, value: Expr, *axes: Axis) -> Store:
    return Store(x.tensor, x.index, value, axes)


def _larger(x: Expr, y: Expr) -> Expr:
    """Return the larger number, y if x is NaN; a NaN among scores makes the total NaN."""
    return select(compare("lt", y, x), x, y)


def _accumulate(x: Load, fn: str, value: Expr, axes: Iterable[Axis] = (), *over: Axis) -> Update:
    return Update(x.tensor, x.index, fn, value, tuple(axes), over)


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
    made: _Scratch = field(default_factory=_Scratch)
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
        self.length, count = _index(a.j.extent), _index(a.i.extent)
        self.unit_count = _ceil_div(self.length, b.unit)
        self.channel = Axis("channel", a.c.extent)
        self.block = _axis("block", _ceil_div(count, b.rows))
        self.step = _axis("step", _ceil_div(self.length, b.keys))
        self.strip = Axis("strip", b.rows // b.strip)
        self.unit = _axis("unit", self.unit_count)
        self.first_row, self.rows = _axis("first_row", count), Axis("rows", b.rows + 1)
        self.height = Axis("height", b.strip + 1)
        self.begin, self.end = (_axis(n, self.unit_count + 1) for n in ("begin", "end"))
        self.queries = made.local("queries", b.rows, a.c.size)
        self.sums = made.local("sums", b.rows, a.d.size)
        self.most = made.local("most", b.rows)
        self.total = made.local("total", b.rows)
        self.new = made.local("new", b.strip)
        self.factor = made.local("factor", b.strip)
        self.limits = made.local("limits", 2)
        # in front, for a tile that overlaps the step before; behind, for what no key has
        self.scores = made.local("scores", b.strip, b.keys + 2 * b.unit)

    def at(self, e: Expr, env: Mapping[Axis, Expr]) -> Expr:
        """Return an expression of buffers at some values of axes."""
        ones: dict[Axis, Expr] = {x: _index(0) for x in self.a.tensor.axes if x.extent == 1}
        return load_buffers(substitute_axes(e, {**ones, **env}), self.stored)

    def visible_units(self, last_row: Expr) -> Expr:
        """Return the number of units up to the last key that a row sees."""
        assert self.skip is not None
        seen = _max(_index(last_row + (self.skip.offset + 1)), 0)
        return _min(_ceil_div(seen, self.b.unit), self.unit_count)

    def block_body(self) -> tuple[Stmt, ...]:
        """Return the statements of one head and block of rows."""
        b, count = self.b, _index(self.a.i.extent)
        here = _index(self.block * b.rows)
        # the last block has as few tiles of rows as its rows need
        tiles = _ceil_div(_index(count - here), b.tile_rows)
        rows = _min(b.rows, _index(tiles * b.tile_rows))
        body = (*self._clear_sums(), *self._all_steps(), *self._store_result())
        first_row = _min(here, _index(count - self.rows))
        return (bind(self.rows, rows, bind(self.first_row, first_row, *body)),)

    def _all_steps(self) -> tuple[Stmt, ...]:
        strips = For(self.strip, self._strip_body(), until=_ceil_div(self.rows, self.b.strip))
        if self.skip is None:
            return (For(self.step, (strips,)),)
        last = _index(self.first_row + self.rows - 1)
        seen = _ceil_div(self.visible_units(last), self.b.units)
        first_turn = compare("lt", self.turn, _index(1))
        until = select(first_turn, cast(seen, I64), self._second_steps())
        steps = For(self.step, (strips,), until=until)
        return (For(self.turn, (*self._query_limits(), steps)),)

    def _clear_sums(self) -> tuple[Stmt, ...]:
        """Copy the queries, and clear the sums."""
        a, row = self.a, Axis("row", self.b.rows)
        query = self.at(a.q, {a.i: _index(self.first_row + row), a.c: self.channel})
        body = (
            _store(self.queries[row, self.channel], query, self.channel),
            _store(self.sums[row, a.d], ZERO, a.d),
            _store(self.most[row], MINUS_INFINITY),
            _store(self.total[row], ZERO),
        )
        return (For(row, body, until=self.rows),)

    def _query_limits(self) -> tuple[Stmt, ...]:
        """Compute the largest L1 norm of a query, and the smallest maximum of a row."""
        row = Axis("row", self.b.rows)
        norm, largest = self.made.register("norm"), self.made.register("largest")
        smallest = self.made.register("smallest")
        size = Apply("abs", (self.queries[row, self.channel],), F32)
        body = (
            _store(norm, ZERO),
            _accumulate(norm, "sum", size, (), self.channel),
            _accumulate(largest, "max", norm),
            _accumulate(smallest, "min", self.most[row]),
        )
        return (
            _store(largest, ZERO),
            _store(smallest, const(float("inf"), F32)),
            For(row, body, until=self.rows),
            _store(self.limits[0,], largest),
            _store(self.limits[1,], smallest),
        )

    def _second_steps(self) -> Expr:
        """Return the steps of the second pass: none if all keys that are left can be skipped."""
        assert self.skip is not None
        assert self.bounds is not None
        rest = tuple(x for x in self.a.tensor.axes if x not in (self.a.i, self.a.d))
        ones = {x: _index(0) for x in rest if x.extent == 1}
        held = self.stored[self.bounds].buffer
        keys, values = (held[(*(ones.get(x, x) for x in rest), n)] for n in range(2))
        scale = Fraction(abs(self.skip.scale)) * SUM_ROUNDING_FACTOR
        reach = self.limits[0,] * keys * Const(scale, F32)
        largest = reach + const(self.skip.least, F32)
        unseen = conjunction(
            compare("le", largest + Const(Fraction(EXP_UNDERFLOW), F32), self.limits[1,]),
            compare("le", reach, Const(FLOAT32_MAX, F32)),
            compare("le", values, Const(FLOAT32_MAX, F32)),
        )
        return select(unseen, const(0, I64), cast(_index(self.step.extent), I64))

    def _strip_body(self) -> tuple[Stmt, ...]:
        """Return the statements of a strip of rows and a step of keys."""
        b = self.b
        height = _min(b.strip, _index(self.rows - self.strip * b.strip))
        first = _index(self.step * b.units)
        end = _min(_index(first + b.units), self.unit_count)
        begin = first
        if self.skip is not None:
            last = _index(self.first_row + self.strip * b.strip + self.height - 1)
            seen = _min(_max(self.visible_units(last), first), end)
            # in the second pass from `seen` on, in the first one up to there
            begin = _index(first + self.turn * (seen - first))
            end = _index(seen + self.turn * (end - seen))
        body = (*self._score_tiles(), *self._softmax(), *self._value_tiles())
        inner = bind(self.begin, begin, bind(self.end, end, *body))
        return (bind(self.height, height, inner),)

    def _over_units(self, *body: Stmt) -> For:
        return For(self.unit, body, until=self.end, begin=self.begin)

    def _column(self, key: Expr) -> Expr:
        """Return the column of a key's scores."""
        return _index(key - self.step * self.b.keys + self.b.unit)

    def _row_tiles(self, above: Axis, *body: Stmt) -> For:
        return For(above, body, until=_ceil_div(self.height, self.b.tile_rows))

    def _score_tiles(self) -> tuple[Stmt, ...]:
        a, b = self.a, self.b
        i, v, lane = Axis("i", b.tile_rows), Axis("v", b.score_vectors), Axis("lane", b.lanes)
        held = self.made.register("score", i, v, lane)
        tile = Axis("tile", b.unit // (b.score_vectors * b.lanes))
        above = Axis("row_tile", b.strip // b.tile_rows)
        first_key = first_unit_key(self.unit, self.length, b)
        key = _index(first_key + (tile * b.score_vectors + v) * b.lanes + lane)
        row = _index(above * b.tile_rows + i)
        at_row = _index(self.strip * b.strip + row)
        env = {a.i: _index(self.first_row + at_row), a.j: key, a.c: self.channel}
        x = narrow_comparisons(replace_loads(self.at(a.score, env), a.placeholder, held))
        term = self.queries[at_row, self.channel] * self.at(a.k, env)
        tile_body = (
            _store(held, ZERO, i, v, lane),
            _sum_loop(self.channel, b, _accumulate(held, "sum", term, (i, v, lane))),
            _store(self.scores[row, self._column(key)], x, i, v, lane),
        )
        tiles = self._over_units(For(tile, (self._row_tiles(above, *tile_body),)))
        return (*self._pad_scores(), tiles)

    def _pad_scores(self) -> tuple[Stmt, ...]:
        """Hide the columns behind the last key in its unit."""
        n = self.b.unit
        if te_index.mod(self.length, _index(n)) == _index(0):
            return ()
        row, lane = Axis("row", self.b.strip), Axis("pad", n)
        last = _min(self.length, _index((self.step + 1) * self.b.keys))
        behind = self.scores[row, _index(self._column(last) + lane)]
        return (For(row, (_store(behind, MINUS_INFINITY, lane),), until=self.height),)

    def _softmax(self) -> tuple[Stmt, ...]:
        """Turn the scores into weights, and update the maximum and the total of each row. The
        passes are separate, so that those of different rows overlap."""
        b, d, made = self.b, self.a.d, self.made
        row, lane = Axis("row", b.strip), Axis("lane", b.unit)
        tops, found, shares = (made.register(n, lane) for n in ("tops", "found", "shares"))
        at = _index(self.strip * b.strip + row)
        most, total, sums = self.most[at], self.total[at], self.sums[at, d]
        new, factor = self.new[row], self.factor[row]
        x = self.scores[row, self._column(_index(self.unit * b.unit + lane))]
        maxima = (
            _store(tops, MINUS_INFINITY, lane),
            self._over_units(_store(found, x, lane), _store(tops, _larger(found, tops), lane)),
            _store(new, MINUS_INFINITY),
            _accumulate(new, "max", tops, (), lane),
        )
        weights = (
            _store(shares, ZERO, lane),
            self._over_units(
                _store(found, Apply("exp_below", (x - new,), F32), lane),
                _store(x, found, lane),
                _store(shares, shares + found, lane),
            ),
            _accumulate(total, "sum", shares, (), lane),
            _store(sums, sums * factor, d),
        )
        return (
            For(row, maxima, until=self.height),
            _store(new, _larger(new, most), row),
            _store(factor, Apply("exp_below", (most - finite_maximum(new),), F32), row),
            _store(most, new, row),
            _store(total, total * factor, row),
            _store(new, finite_maximum(new), row),
            For(row, weights, until=self.height),
        )

    def _value_tiles(self) -> tuple[Stmt, ...]:
        a, b = self.a, self.b
        i, v, lane = Axis("i", b.tile_rows), Axis("w", b.value_vectors), Axis("lane", b.lanes)
        held = self.made.register("sum", i, v, lane)
        group = Axis("columns", a.d.size // (b.value_vectors * b.lanes))
        above, term = Axis("row_tile", b.strip // b.tile_rows), Axis("term", b.unit)
        row = _index(above * b.tile_rows + i)
        d = _index((group * b.value_vectors + v) * b.lanes + lane)
        key = _index(self.unit * b.unit + term)
        value = self.at(a.v, {a.j: key, a.d: d})
        weight = self.scores[row, self._column(key)]
        sums = self.sums[_index(self.strip * b.strip + row), d]
        rest = te_index.mod(self.length, _index(b.unit))
        left = None if rest == _index(0) else _index(self.length - self.unit * b.unit)
        body = (
            _store(held, sums, i, v, lane),
            _sum_loop(term, b, _accumulate(held, "sum", weight * value, (i, v, lane)), left),
            _store(sums, held, i, v, lane),
        )
        return (self._over_units(For(group, (self._row_tiles(above, *body),))),)

    def _store_result(self) -> tuple[Stmt, ...]:
        a, row = self.a, Axis("row", self.b.rows)
        env: dict[Axis, Expr] = {x: _index(0) for x in a.tensor.axes if x.extent == 1}
        env[a.i] = _index(self.first_row + row)
        out = self.stored[a.tensor]
        place = out.buffer_index(tuple(env.get(x, x) for x in a.tensor.axes))
        sums, total = self.sums[row, a.d], self.total[row]
        result = attention_result(a, lambda e: self.at(e, env), sums, total)
        return (For(row, (Store(out.buffer, place, result, (a.d,)),), until=self.rows),)


def narrow_comparisons(e: Expr) -> Expr:
    """Return `e` with positions compared in 32 bits, of which a vector has twice as many."""
    match e:
        case Apply("le" | "lt" as fn, (x, y)) if x.dtype == y.dtype == INDEX:
            return compare(fn, cast(_index(x - y), I32), const(0, I32))
        case Apply(fn, args, dtype) if dtype != INDEX:
            return Apply(fn, tuple(map(narrow_comparisons, args)), dtype)
    return e


def _sum_loop(axis: Axis, b: Blocks, update: Update, until: Expr | None = None) -> For:
    """Return the loop over the terms of a sum, unrolled if it has a fixed number of them."""
    n = b.unrolled_terms
    if until is not None or n == 1 or axis.size % n:
        return For(axis, (update,), until=until)
    outer, inner = Axis(f"{axis.name}.o", axis.size // n), Axis(f"{axis.name}.i", n)
    env: dict[Axis, Expr] = {axis: _index(outer * n + inner)}
    update = replace(update, value=substitute_axes(update.value, env))
    return For(outer, (For(inner, (update,), "unroll"),))


def first_unit_key(unit: Axis, length: Expr, b: Blocks) -> Expr:
    """Return the first key of a unit; the last one overlaps the one before, by whole vectors where
    keys are in these."""
    if te_index.mod(length, _index(b.unit)) == _index(0):
        return _index(unit * b.unit)
    n = b.lanes if te_index.mod(length, _index(b.lanes)) == _index(0) else 1
    last = _index(_index(length // n) - b.unit // n)
    return _index(_min(_index(unit * (b.unit // n)), last) * n)


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


def operand_bounds(a: OnlineAttention) -> Tensor:
    """Return the tensor of the largest magnitudes of keys and values of each head; NaN if one of
    them is NaN. Its body records what is read."""
    rest = tuple(x for x in a.tensor.axes if x not in (a.i, a.d))
    axes = (*rest, Axis("operand", 2))
    value = substitute_axes(a.v, {a.j: _index(0), a.d: _index(0)})
    body = Apply("mul", (a.k, value), F32)
    return Tensor("bounds", F32, tuple(x.extent for x in axes), axes, body)


def operand_bounds_kernel(
    a: OnlineAttention, t: Tensor, inputs: Sequence[Tensor], layouts: Layouts, blocks: Blocks
) -> Kernel:
    """Return the kernel of `operand_bounds`."""
    stored = {x: buffer_view(x.name, x, layouts.get(x)) for x in inputs}
    out = stored[t] = buffer_view(t.name, t, None)
    made, b = _Scratch(), blocks
    rest = tuple(x for x in a.tensor.axes if x not in (a.i, a.d))
    ones: dict[Axis, Expr] = {x: _index(0) for x in a.tensor.axes if x.extent == 1}
    lane, length = Axis("lane", b.unit), _index(a.j.extent)
    unit, term = _axis("unit", _ceil_div(length, b.unit)), Axis("channel", a.c.extent)
    keys, values = made.register("keys", lane), made.register("values", a.d)
    largest = made.register("largest")
    env = {a.j: _index(first_unit_key(unit, length, b) + lane), a.c: term}

    def size(e: Expr, env: Mapping[Axis, Expr]) -> Expr:
        return Apply("abs", (load_buffers(substitute_axes(e, {**ones, **env}), stored),), F32)

    def write(column: int, x: Load, axis: Axis) -> tuple[Stmt, ...]:
        place = (*(ones.get(y, y) for y in rest), _index(column))
        return (
            _store(largest, ZERO),
            _accumulate(largest, "max", x, (), axis),
            Store(out.buffer, place, largest),
        )

    body: tuple[Stmt, ...] = (
        _store(keys, ZERO, lane),
        For(unit, (For(term, (_accumulate(keys, "max", size(a.k, env), (lane,)),)),)),
        *write(0, keys, lane),
        _store(values, ZERO, a.d),
        For(a.j, (_accumulate(values, "max", size(a.v, {}), (a.d,)),)),
        *write(1, values, a.d),
    )
    for axis in reversed(rest):
        body = (For(axis, body, "parallel"),)
    params = (*(stored[x].buffer for x in inputs), out.buffer)
    return Kernel("kernel", params, body, tuple(made.scratch))
