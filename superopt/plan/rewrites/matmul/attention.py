"""Fuse attention: a product whose operand is rows computed from another product, as one kernel.

On a CPU where it streams over blocks of keys, or where the scores between the products exceed the
L2 cache; otherwise three kernels are as fast. On a GPU always, because each launch has a cost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from math import prod

from superopt.kernels.algorithms.contraction import axis_stride, match_contraction
from superopt.kernels.algorithms.cpu.attention.complete_rows import match_attention
from superopt.kernels.algorithms.cpu.attention.streaming import fits_streaming
from superopt.kernels.algorithms.online_attention import match_online_attention
from superopt.kernels.loops.layout import Layout
from superopt.kernels.loops.loop_transforms import reduction
from superopt.plan.lowering.kernel_stages import kernel_inputs, kernel_stages
from superopt.plan.rewrites.reductions.row_fusion import replace_tensors
from superopt.te.analysis.bind_sizes import Binding
from superopt.te.analysis.walk import loads
from superopt.te.expr.dtype import F32
from superopt.te.expr.symbolic_int import example_sizes, is_symbolic
from superopt.te.expr.tensor import Tensor

MIN_SCORE_BYTES = 1 << 20  # of the scores


@dataclass(frozen=True, slots=True)
class AttentionFusion:
    """What a target can fuse. can_fuse: true if there is a kernel for these rows and this product
    of them. can_fuse_scores: true if the product that gives the scores belongs to the kernel, too.
    """

    can_fuse: Callable[[Tensor, Tensor], bool]
    can_fuse_scores: Callable[[Tensor], bool] = lambda scores: True


def cpu_attention_fusion(constants: Collection[Tensor], width: int) -> AttentionFusion:
    """vector_bytes: bytes of a vector register."""

    def fits(row: Tensor, product: Tensor) -> bool:
        if product.dtype != F32:
            return False
        known, lanes = Binding(example_sizes()), width * 8 // F32.bits
        at_hints = known.tensor(product)
        if not _may_be_large(row) and not fits_streaming(at_hints, lanes):
            return False
        fixed = {known.tensor(t) for t in constants}
        return match_attention(at_hints, fixed, {}, lanes) is not None

    def joins(scores: Tensor) -> bool:
        c = match_contraction(scores, constants)
        return c is not None and (c.b.tensor in constants or axis_stride(c.b, scores.axes[-1]) == 1)

    return AttentionFusion(fits, joins)


def gpu_attention_fusion(constants: Collection[Tensor], width: int) -> AttentionFusion:
    """Fuse every product of queries and keys with its product with values."""
    return AttentionFusion(lambda row, product: match_online_attention(product) is not None)


def fuse_attention(
    current: Mapping[Tensor, Tensor],
    batch_ranks: Mapping[Tensor, int],
    materialized: Collection[Tensor],
    layouts: Mapping[Tensor, Layout],
    constants: Collection[Tensor],
    fusion: AttentionFusion,
) -> tuple[dict[Tensor, Tensor], dict[Tensor, int]]:
    """Return the definitions with attention fused, and the number of leading axes that select a row
    of each tensor computed by rows.

    materialized: the tensors that must be in memory. layouts: those of image tensors.
    """
    readers: dict[Tensor, list[Tensor]] = {}
    for t, now in current.items():
        for x in kernel_inputs(now, current):
            readers.setdefault(x, []).append(t)

    def only(x: Tensor, reader: Tensor) -> bool:
        """True if `reader` is the only reader."""
        return x not in materialized and x not in layouts and readers.get(x) == [reader]

    out, rows = dict(current), dict(batch_ranks)
    for t, now in current.items():
        c = match_contraction(now, constants)
        found = reduction(now)
        if c is None or t in layouts or found is None or found.dtype != F32:
            continue
        if c.a.tensor not in batch_ranks:
            continue
        row = c.a.tensor
        if not only(row, t) or not _reads_one_row(now, row, batch_ranks[row]):
            continue
        scores = [x for x in kernel_inputs(out[row], current) if only(x, row)]
        scores = [
            x
            for x in scores
            if _is_score_product(current[x], row, constants) and fusion.can_fuse_scores(current[x])
        ]
        if len(scores) > 1:
            continue
        buffers = {x: Tensor(x.name, x.dtype, x.shape) for x in current}
        if fusion.can_fuse(row, _fuse_rows(t, out, row, scores, buffers)):
            out[t], rows[t] = _fuse_rows(t, out, row, scores, {}), batch_ranks[row]
            for x in (row, *scores):
                del out[x]
    return out, rows


def _fuse_rows(
    t: Tensor, current: Mapping[Tensor, Tensor], row: Tensor, scores: Collection[Tensor],
    buffers: Mapping[Tensor, Tensor],
) -> Tensor:  # fmt: skip
    """Return the product with the rows inlined in it, and the scores in these; other tensors are
    read from `buffers`."""
    done = dict(buffers)
    for x in (*scores, row):
        for s in kernel_stages(current[x], current):
            assert s.body is not None
            made = Tensor(s.name, s.dtype, s.shape, s.axes, replace_tensors(s.body, done))
            done[s] = made
        done[x] = done[current[x]]
    now = current[t]
    assert now.body is not None
    return Tensor("attention", now.dtype, now.shape, now.axes, replace_tensors(now.body, done))


def _reads_one_row(definition: Tensor, row: Tensor, batch_rank: int) -> bool:
    """True if each element of the product reads one row, which all of its axes but the last
    select."""
    assert definition.body is not None
    found = reduction(definition)
    some = [x for x in loads(definition.body) if x.tensor is row]
    if found is None or len(found.axes) != 1 or len(some) != 1 or batch_rank != row.rank - 1:
        return False
    *own, last = some[0].index
    axes = [i for i, n in zip(own, row.shape, strict=False) if n != 1]
    others = [a for a in definition.axes[:-1] if a.extent != 1]
    return last == found.axes[0] and len(set(axes)) == len(axes) and set(axes) == set(others)


def _is_score_product(definition: Tensor, row: Tensor, constants: Collection[Tensor]) -> bool:
    """True if it is a product that gives these rows."""
    c = match_contraction(definition, constants)
    if (
        c is None
        or definition.shape != row.shape
        or not c.b_axes
        or c.b_axes[-1] != definition.axes[-1]
    ):
        return False
    return definition.axes[-2].extent == 1 or definition.axes[-2] in c.a_axes


def _may_be_large(scores: Tensor) -> bool:
    """True if the scores exceed the L2 cache, or do so for some of many sizes."""
    return is_symbolic(scores.sizes[-1]) or prod(scores.sizes) * 4 >= MIN_SCORE_BYTES
