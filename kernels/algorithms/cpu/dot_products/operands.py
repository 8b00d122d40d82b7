"""A contraction with its operands in groups of terms, as instructions for bfloat16 and uint8 take
them. For bfloat16:

    y[.., m, n] = sum(a[.., m, k] * b[k, n] for k)

    a16[.., q, m, r]     = bf16(a[.., m, 32 q + r])            0 beyond the last k
    b16[n', q, p, n, r]  = bf16(b[32 q + 2 p + r, 16 n' + n])
    y[.., m, n] = sum(f32(a16[.., q, m, 2 p + r]) * f32(b16[n // 16, q, p, n % 16, r])
                      for q, p < 16, r < 2)

In memory b16 is in panels of some n', which the kernel reads one after the other. a16 is computed
by a kernel of its own before, with the zeros around an image, so that rows of 32 terms are
contiguous and neighbouring pixels have one distance. b16 is computed ahead of time. Terms of a
window are loops between q and p. Both are rounded to the nearest, ties to even.

Operands of integers are the same with uint8, int8 and int32, in groups r < 4, or with int16 and
int32 in pairs. Their rows have 64 terms for AMX, and fewer for vector instructions if there are
fewer.

Where an image has few channels k, a row of the window is summed with them, as terms k' f + k with
k' a multiple of 4. Rows of neighbouring pixels then overlap in memory:

    y[.., w] = sum(a[.., s w + f, k] * b[f, k] for f, k)
    a8[.., k' v + k] = a[.., v, k]                                 0 beyond k, and behind the last v
    y[.., w] = sum(a8[.., s k' w + 64 q + 4 p + r] * b8[q, p, r])  b8 is 0 beyond the last term
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from superopt.kernels.algorithms.contraction import Contraction
from superopt.kernels.llvm.dot_products.products import LANES, DotType
from superopt.kernels.loops.loop_nest import replace_reduction
from superopt.kernels.loops.loop_transforms import reduction
from superopt.kernels.loops.substitution import replace_loads, substitute_and_fold
from superopt.te.expr import index as te_index
from superopt.te.expr.dtype import to_numpy
from superopt.te.expr.node import Axis, Const, Dim, Expr
from superopt.te.expr.tensor import Tensor, cast, compute, const, reduce_sum, select


@dataclass(frozen=True, slots=True)
class Dimension:
    """A dimension of a that the summed axis k does not index, as a dimension of a16: a's index is
    first + step * (a16's index), and f more if it is `folded`. index: the second one, over the
    result's and the window's axes; f: the folded axis."""

    number: int
    size: Dim
    first: int
    step: int
    index: Expr
    folded: bool = False


@dataclass(frozen=True, slots=True)
class DotOperands:
    """The parts of a contraction. block_terms: of a block of a's row. k: the axis that is summed in
    blocks; folded: one that is summed with it where k is short; window: others that are summed.
    blocks_at: the dimension of a16 that is k's blocks, if none is folded. in_place: the factor that
    reads the terms of a block from where they are, one after the other; None if a16 is needed."""

    type: DotType
    block_terms: int
    contraction: Contraction
    n: Axis
    k: Axis
    folded: Axis | None
    window: tuple[Axis, ...]
    dimensions: tuple[Dimension, ...]
    blocks_at: int
    factor: Expr
    free_axes: Mapping[int, Axis]
    in_place: Expr | None

    @property
    def channel_stride(self) -> int:
        """The terms from one element of the folded axis to the next."""
        group = self.type.group
        return self.k.size if self.folded is None else -(-self.k.size // group) * group

    @property
    def terms(self) -> int:
        """The terms that are summed in blocks."""
        return self.k.size if self.folded is None else self.channel_stride * self.folded.size

    @property
    def block_count(self) -> int:
        return -(-self.terms // self.block_terms)

    @property
    def row(self) -> Dimension:
        """The dimension that the folded axis indexes."""
        return next(d for d in self.dimensions if d.folded)

    @property
    def row_length(self) -> int:
        """The pixels of a row of overlapping terms that are read."""
        assert self.folded is not None
        assert isinstance(self.row.size, int)
        return self.row.step * (self.row.size - 1) + self.folded.size

    @property
    def shape(self) -> tuple[Dim, ...]:
        """The shape of a16, or of a8."""
        if self.folded is not None:
            others = [d.size for d in self.dimensions if not d.folded]
            unread = self.block_count * self.block_terms - self.terms
            return (*others, self.row_length * self.channel_stride + unread)
        sizes = [d.size for d in self.dimensions]
        at = self.blocks_at
        return (*sizes[:at], self.block_count, *sizes[at:], self.block_terms)

    def grouped_input(self) -> Tensor:
        """Return a16, or a8."""
        if self.folded is not None:
            return compute(self.shape, self._overlapping_element, name=f"a{self.type.a.bits}")

        def element(*axes: Expr) -> Expr:
            *outer, inner = axes
            block = outer.pop(self.blocks_at)
            k = te_index.as_index(block * self.block_terms + inner)
            env: dict[Expr, Expr] = {self.k: k}
            for d, i in zip(self.dimensions, outer, strict=True):
                env[self.free_axes[d.number]] = te_index.as_index(i * d.step + d.first)
            body = substitute_and_fold(self.factor, env)
            if self.k.size % self.block_terms:
                body = select(k < self.k.size, body, const(0, body.dtype))
            return cast(body, self.type.a)

        return compute(self.shape, element, name=f"a{self.type.a.bits}")

    def _overlapping_element(self, *axes: Expr) -> Expr:
        """Return an element of a8."""
        *outer, inner = axes
        pixel = te_index.as_index(inner // self.channel_stride)
        k = te_index.as_index(inner % self.channel_stride)
        env: dict[Expr, Expr] = {
            self.k: k,
            self.free_axes[self.row.number]: te_index.as_index(pixel + self.row.first),
        }
        for d, i in zip((d for d in self.dimensions if not d.folded), outer, strict=True):
            env[self.free_axes[d.number]] = te_index.as_index(i * d.step + d.first)
        body = substitute_and_fold(self.factor, env)
        if self.channel_stride > self.k.size:
            body = select(k < self.k.size, body, const(0, body.dtype))
        if self.shape[-1] != self.row_length * self.channel_stride:
            body = select(pixel < self.row_length, body, const(0, body.dtype))
        return cast(body, self.type.a)

    def _row_index(self, block: Expr, env: Mapping[Expr, Expr], term: Expr) -> tuple[Expr, ...]:
        """Return the index of a term of a block in a16, or in a8."""
        at = [te_index.substitute(d.index, env) for d in self.dimensions if not d.folded]
        if self.folded is None:
            at.insert(self.blocks_at, block)
            return (*at, te_index.as_index(term))
        pixel = te_index.substitute(self.row.index, env) * self.row.step
        begin = pixel * self.channel_stride + block * self.block_terms
        return (*at, te_index.as_index(begin + term))

    def product(self, t: Tensor, a16: Tensor | None, b16: Tensor, vectors: int) -> Tensor:
        """Return `t`, with its sum over the grouped operands. a16: None if a is read in place;
        vectors: in a panel of b16."""
        found = reduction(t)
        assert found is not None
        assert t.body is not None

        def term(block: Expr, *rest: Expr) -> Expr:
            *window, p, r = rest
            group, total = self.type.group, self.type.total
            env: dict[Expr, Expr] = dict(zip(self.window, window, strict=True))
            if a16 is None:
                assert self.in_place is not None
                env[self.k] = te_index.as_index(block * self.block_terms + p * group + r)
                a = substitute_and_fold(self.in_place, env)
            else:
                a = a16[self._row_index(block, env, p * group + r)]
            panel = te_index.as_index(self.n // (LANES * vectors))
            vector = te_index.as_index(self.n // LANES % vectors)
            lane = te_index.as_index(self.n % LANES)
            b = b16[(panel, block, *window, vector, p, lane, r)]
            return cast(a, total) * cast(b, total)

        sizes = [x.size for x in self.window]
        groups = self.block_terms // self.type.group
        total = reduce_sum((self.block_count, *sizes, groups, self.type.group), term)
        held = Tensor("sum", self.type.total, ())
        body = replace_loads(replace_reduction(t.body, found, held, ()), held, total)
        return Tensor(t.name, t.dtype, t.shape, t.axes, body)

    def constant(self, vectors: int) -> Tensor:
        """Return b16, in panels of so many vectors."""
        panels = self.n.size // (LANES * vectors)
        window = (x.size for x in self.window)
        kind = self.type
        inner = vectors, self.block_terms // kind.group, LANES, kind.group
        return Tensor(f"b{kind.b.bits}", kind.b, (panels, self.block_count, *window, *inner))

    def transform(self, vectors: int) -> partial[np.ndarray]:
        """Return the function that computes b16's array from b's."""
        b = self.contraction.b
        places = tuple(
            slice(i.size) if isinstance(i, Axis) else int(i.value)
            for i in b.index
            if isinstance(i, Axis | Const)
        )
        order = [i for i in b.index if isinstance(i, Axis)]
        folded = () if self.folded is None else (self.folded,)
        sources = tuple(order.index(x) for x in (self.n, *folded, self.k, *self.window))
        return partial(
            group_constant, self.type, self.block_terms, places, sources,
            self.channel_stride if folded else 0, vectors,
        )  # fmt: skip


def group_constant(
    kind: DotType,
    block_terms: int,
    places: tuple[slice | int, ...],
    sources: tuple[int, ...],
    channel_stride: int,
    vectors: int,
    b: np.ndarray,
) -> np.ndarray:
    """Return b16's array. places: the part of b that is read; sources: its dimensions of n, of the
    folded axis if `channel_stride` is not 0, of k and of the window; vectors: in a panel."""
    n_k_window = b[places].transpose(sources)
    if channel_stride:
        n, f, k, *window = n_k_window.shape
        spread = np.zeros((n, f, channel_stride, *window), b.dtype)
        spread[:, :, :k] = n_k_window
        n_k_window = spread.reshape(n, f * channel_stride, *window)
    n, k, *window = n_k_window.shape
    blocks = -(-k // block_terms)
    out = np.zeros((n, blocks * block_terms, *window), to_numpy(kind.b))
    out[:, :k] = n_k_window
    groups = block_terms // kind.group
    parts = out.reshape(-1, vectors, LANES, blocks, groups, kind.group, *window)
    taps = range(6, 6 + len(window))
    return np.ascontiguousarray(parts.transpose(0, 3, *taps, 1, 4, 2, 5))
