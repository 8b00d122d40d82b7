"""Transpose operands of products into the order in which kernels read them.

Vectors run along the last axis of a product's result. If neighbours along that axis are not
neighbours in the operand that has it (the keys of attention), that operand is copied in another
order first. If nothing else reads the operand and it is no reduction, its producer writes that
order directly. The values of attention are copied too, on processors where that pays, if their rows
lie far apart (heads interleaved): rows that are a multiple of 1 KiB apart map to a few sets of the
L1 cache, and each is in another page. Other products pack panels of such operands themselves
(kernels/algorithms/cpu/gemm.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import gcd

from superopt.kernels.algorithms.contraction import (
    MIN_REUSE_ROWS,
    Contraction,
    axis_stride,
    match_contraction,
)
from superopt.kernels.loops.layout import Layout, Part
from superopt.kernels.loops.loop_transforms import reduction
from superopt.kernels.processor import Processor
from superopt.rules.te.match import Context
from superopt.rules.te.rewrite import Rewrite, load_te_rules
from superopt.te.analysis.inline import substitute_axes
from superopt.te.analysis.walk import index_axes, loads, subexpressions
from superopt.te.expr.node import Apply, Axis, Load
from superopt.te.expr.symbolic_int import hint
from superopt.te.expr.tensor import Tensor, compute

TRANSPOSED_NAME = "turned"


SOFTMAX_SEARCH_DEPTH = 3  # tensors between a softmax and its reader, at most
MIN_READING_ROWS = 64  # result rows that read a matrix, from which on gathering its rows pays
CACHE_LINE_BYTES, CACHE_SETS, CACHE_WAYS = (
    64,
    64,
    8,
)  # an L1 cache: bytes of a line, sets, lines of a set


def transpose_operands(
    current: Mapping[Tensor, Tensor], constants: Collection[Tensor], processor: Processor
) -> tuple[dict[Tensor, Tensor], set[Tensor]]:
    """Return the definitions with such copies inserted, and the copies."""
    out: dict[Tensor, Tensor] = {}
    copies: set[Tensor] = set()
    for t, now in current.items():
        found = match_contraction(now, constants)
        far = (
            found is not None
            and processor.copies_values
            and _reads_softmax(found.a.tensor, current)
        )
        order = None if found is None else _transposed_axes(now, found, constants, far)
        made = None if found is None or order is None else _transpose_operand(now, found.b, order)
        if made is None:
            out[t] = now
            continue
        (copy,) = made.stored
        out[copy] = compute(
            copy.shape,
            lambda *i, copy=copy: substitute_axes(copy.body, dict(zip(copy.axes, i, strict=True))),
            name=TRANSPOSED_NAME,
        )
        copies.add(copy)
        out[t] = made.tensor
    return out, copies


def panel_layouts(current: Collection[Tensor], width: int) -> dict[Tensor, Layout]:
    """Return layouts in which these copies are read vector by vector: rows of a large power of two
    would all map to the same sets of the L1 cache."""
    out = {}
    for t in current:
        n, lanes = t.shape[-1] if t.rank else 0, max(width * 8 // t.dtype.bits, 1)
        if (
            t.name == TRANSPOSED_NAME
            and t.rank > 1
            and isinstance(n, int)
            and n % lanes == 0
            and n > lanes
        ):
            *others, row, last = range(t.rank)
            block = Part(last, lanes), Part(last, lanes, is_inner=True)
            out[t] = Layout((*map(Part, others), block[0], Part(row), block[1]))
    return out


def _transpose_operand(t: Tensor, operand: Load, order: tuple[Axis, ...]) -> Rewrite | None:
    choices = {"lanes_last": lambda e: [order] if e == operand else []}
    return load_te_rules("products", "transpose-").rewrite(t, Context(conditions=choices))


def _transposed_axes(
    t: Tensor, c: Contraction, constants: Collection[Tensor], softmax_operand: bool
) -> tuple[Axis, ...] | None:
    """Return the axes in the order in which an operand is copied; None if it is read as it is."""
    rows = [hint(a.size) for a in c.a_axes]
    if not c.b_axes or c.b.tensor in constants or max(rows, default=0) < MIN_REUSE_ROWS:
        return None
    lane = c.b_axes[-1]
    found = reduction(t)
    assert found is not None
    windows = t.rank > 2 and len(found.axes) > 1 and lane == t.axes[1]  # the channels of an image
    if not (windows or lane == t.axes[-1]):
        return None
    softmax_operand = (
        softmax_operand
        and max(rows, default=0) >= MIN_READING_ROWS
        and _has_cache_conflicts(c.b, found.axes)
    )
    if axis_stride(c.b, lane) == 1 and not softmax_operand:
        return None
    used = set[Axis]().union(*map(index_axes, c.b.index))
    over = (*c.batch_axes, *c.b_axes[:-1], *found.axes)
    if not used <= {*over, lane}:
        return None  # a block index of a grouped product depends on an axis of the other operand
    others = [a for a in over if a in used and a != lane]
    return (*others, lane)


def _reads_softmax(t: Tensor, current: Mapping[Tensor, Tensor]) -> bool:
    """True if `t` is the result of a softmax, searched over SOFTMAX_SEARCH_DEPTH tensors. Other
    products pack their panels themselves (`packing`)."""
    todo = [t]
    for _ in range(SOFTMAX_SEARCH_DEPTH):
        bodies = [current[x].body for x in todo if x in current]
        if any(
            isinstance(e, Apply) and e.fn == "exp" for b in bodies if b for e in subexpressions(b)
        ):
            return True
        todo = [x.tensor for b in bodies if b for x in loads(b)]
    return False


def _has_cache_conflicts(b: Load, reduced: Sequence[Axis]) -> bool:
    """True if more rows map to one set of the L1 cache than it holds."""
    apart = axis_stride(b, reduced[-1]) if len(reduced) == 1 else None
    if apart is None:
        return False
    size = apart * max(b.dtype.bits // 8, 1)
    places = (
        CACHE_SETS // gcd(size // CACHE_LINE_BYTES, CACHE_SETS)
        if size and size % CACHE_LINE_BYTES == 0
        else CACHE_SETS
    )
    return hint(reduced[-1].size) > places * CACHE_WAYS
