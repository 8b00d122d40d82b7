"""L2 prefetch of constants before the previous launch has ended."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from superopt.kernels import gpu_values as gv
from superopt.kernels.address import flat_index
from superopt.kernels.gpu_values import Writer
from superopt.te import index as ix
from superopt.te.expr import Tensor
from superopt.te.node import Axis, Expr
from superopt.te.walk import axes_of

AHEAD = "ahead"
# Bytes of a program's part of a constant, and programs that share it, at most; alignment of
# addresses; and requests at a time.
PART, AGAIN, ALIGNED, LANES = 1 << 18, 4, 16, 128


def asked(
    w: Writer, axes: Sequence[Axis], fixed: Mapping[Tensor, tuple[Expr, ...]]
) -> Iterator[str]:
    """Yield lines that prefetch each program's contiguous part of constants into L2 while the
    previous launch still runs. constants: each with the index at which it is read."""
    for t, at in fixed.items():
        inside = [bool(axes_of(i) & set(axes)) for i in at]
        lead = sum(inside)
        part = math.prod(n for n in t.shape[lead:] if isinstance(n, int))
        if not part:
            continue
        size = part * t.dtype.bits // 8
        lanes = min(LANES, 1 << max(size // ALIGNED, 1).bit_length() - 1)
        each = size // lanes // ALIGNED * ALIGNED
        whole = math.prod(n for n in t.shape if isinstance(n, int))
        again = math.prod(a.size for a in axes) * part // whole  # programs that request it
        if not all(inside[:lead]) or not each or size % ALIGNED or size > PART or again > AGAIN:
            continue
        flat = gv.index(w, flat_index(t, (*at[:lead], *(ix.as_index(0) for _ in at[lead:]))))
        step = each * 8 // t.dtype.bits
        yield f"{AHEAD} = {w.buffer(t)} + {flat.text} + tl.arange(0, {lanes}) * {step}"
        yield (
            f'tl.inline_asm_elementwise("cp.async.bulk.prefetch.L2.global [$1], {each}; // $0", '
            f'"=r,l", [tl.cast({AHEAD}, tl.int64)], dtype=tl.int32, is_pure=False, pack=1)'
        )
