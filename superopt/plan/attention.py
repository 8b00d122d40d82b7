"""Fuse attention: a product whose operand is rows computed from another product, as one kernel.

On a CPU only where the scores between the products exceed the L2 cache; otherwise three kernels are
as fast. On a GPU always, because each launch has a cost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from math import prod

from superopt.kernels.attention import attention as found_in
from superopt.kernels.contraction import contraction, strides
from superopt.kernels.layout import Layout
from superopt.kernels.online import online
from superopt.kernels.transform import reduction
from superopt.plan.rows import instead
from superopt.plan.within import needs, within
from superopt.te.dtype import F32
from superopt.te.expr import Tensor
from superopt.te.walk import loads

LARGE = 1 << 20  # of the scores


@dataclass(frozen=True, slots=True)
class Fusing:
    """What a target can fuse. can_fuse: true if there is a kernel for these rows and this product
    of them. can_fuse_scores: true if the product that gives the scores belongs to the kernel, too.
    """

    fits: Callable[[Tensor, Tensor], bool]
    joins: Callable[[Tensor], bool] = lambda scores: True


def on_processor(constants: Collection[Tensor], width: int) -> Fusing:
    """vector_bytes: bytes of a vector register."""

    def fits(row: Tensor, product: Tensor) -> bool:
        large = product.dtype == F32 and prod(_sizes(row)) * 4 >= LARGE
        return large and found_in(product, constants, {}, width * 8 // F32.bits) is not None

    def joins(scores: Tensor) -> bool:
        c = contraction(scores, constants)
        return c is not None and (c.b.tensor in constants or strides(c.b, scores.axes[-1]) == 1)

    return Fusing(fits, joins)


def on_gpu(constants: Collection[Tensor], width: int) -> Fusing:
    """Fuse every product of queries and keys with its product with values."""
    return Fusing(lambda row, product: online(product) is not None)


def attention(
    current: Mapping[Tensor, Tensor],
    leads: Mapping[Tensor, int],
    stay: Collection[Tensor],
    lying: Mapping[Tensor, Layout],
    constants: Collection[Tensor],
    how: Fusing,
) -> tuple[dict[Tensor, Tensor], dict[Tensor, int]]:
    """Return the definitions with attention fused, and the number of leading axes that select a row
    of each tensor computed by rows.

    materialized: the tensors that must be in memory. layouts: those of image tensors.
    """
    readers: dict[Tensor, list[Tensor]] = {}
    for t, now in current.items():
        for x in needs(now, current):
            readers.setdefault(x, []).append(t)

    def only(x: Tensor, reader: Tensor) -> bool:
        """True if `reader` is the only reader."""
        return x not in stay and x not in lying and readers.get(x) == [reader]

    out, rows = dict(current), dict(leads)
    for t, now in current.items():
        c = contraction(now, constants)
        found = reduction(now)
        if c is None or t in lying or found is None or found.dtype != F32:
            continue
        if c.a.tensor not in leads:
            continue
        row = c.a.tensor
        if not only(row, t) or not _by_rows(now, row, leads[row]):
            continue
        scores = [x for x in needs(out[row], current) if only(x, row)]
        scores = [
            x for x in scores if _scores(current[x], row, constants) and how.joins(current[x])
        ]
        if len(scores) > 1:
            continue
        buffers = {x: Tensor(x.name, x.dtype, x.shape) for x in current}
        if how.fits(row, _fused(t, out, row, scores, buffers)):
            out[t], rows[t] = _fused(t, out, row, scores, {}), leads[row]
            for x in (row, *scores):
                del out[x]
    return out, rows


def _fused(
    t: Tensor, current: Mapping[Tensor, Tensor], row: Tensor, scores: Collection[Tensor],
    buffers: Mapping[Tensor, Tensor],
) -> Tensor:  # fmt: skip
    """Return the product with the rows inlined in it, and the scores in these; other tensors are
    read from `buffers`."""
    done = dict(buffers)
    for x in (*scores, row):
        for s in within(current[x], current):
            assert s.body is not None
            made = Tensor(s.name, s.dtype, s.shape, s.axes, instead(s.body, done))
            done[s] = made
        done[x] = done[current[x]]
    now = current[t]
    assert now.body is not None
    return Tensor("attention", now.dtype, now.shape, now.axes, instead(now.body, done))


def _by_rows(now: Tensor, row: Tensor, lead: int) -> bool:
    """True if each element of the product reads one row, which all of its axes but the last
    select."""
    assert now.body is not None
    found = reduction(now)
    some = [x for x in loads(now.body) if x.tensor is row]
    if found is None or len(found.axes) != 1 or len(some) != 1 or lead != row.rank - 1:
        return False
    *own, last = some[0].index
    axes = [i for i, n in zip(own, row.shape, strict=False) if n != 1]
    others = [a for a in now.axes[:-1] if a.extent != 1]
    return last == found.axes[0] and len(set(axes)) == len(axes) and set(axes) == set(others)


def _scores(now: Tensor, row: Tensor, constants: Collection[Tensor]) -> bool:
    """True if it is a product that gives these rows."""
    c = contraction(now, constants)
    if c is None or now.shape != row.shape or not c.of_b or c.of_b[-1] != now.axes[-1]:
        return False
    return now.axes[-2].extent == 1 or now.axes[-2] in c.of_a


def _sizes(t: Tensor) -> list[int]:
    return [n for n in t.shape if isinstance(n, int)]
