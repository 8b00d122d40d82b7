"""L2 prefetch of constants before the previous launch has ended."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from superopt.kernels.llvm.address import flat_index
from superopt.kernels.triton import values
from superopt.kernels.triton.writer import Writer
from superopt.te.analysis.walk import index_axes
from superopt.te.expr import index
from superopt.te.expr.node import Axis, Expr
from superopt.te.expr.symbolic_int import hint
from superopt.te.expr.tensor import Tensor

PREFETCH_VARIABLE = "ahead"
# Bytes of a program's part of a constant, and programs that share it, at most; alignment of
# addresses; and requests at a time.
MAX_PART_BYTES, MAX_REQUESTS_PER_PART, ADDRESS_ALIGNMENT, MAX_REQUEST_LANES = 1 << 18, 4, 16, 128


def l2_prefetch_lines(
    w: Writer, axes: Sequence[Axis], constants: Mapping[Tensor, tuple[Expr, ...]]
) -> Iterator[str]:
    """Yield lines that prefetch each program's contiguous part of constants into L2 while the
    previous launch still runs. constants: each with the index at which it is read."""
    for t, at in constants.items():
        inside = [bool(index_axes(i) & set(axes)) for i in at]
        lead = sum(inside)
        part = math.prod(n for n in t.shape[lead:] if isinstance(n, int))
        if not part:
            continue
        size = part * t.dtype.bits // 8
        lanes = min(MAX_REQUEST_LANES, 1 << max(size // ADDRESS_ALIGNMENT, 1).bit_length() - 1)
        each = size // lanes // ADDRESS_ALIGNMENT * ADDRESS_ALIGNMENT
        whole = math.prod(n for n in t.shape if isinstance(n, int))
        # programs that request it
        again = math.prod(hint(a.size) for a in axes) * part // whole
        if (
            not all(inside[:lead])
            or not each
            or size % ADDRESS_ALIGNMENT
            or size > MAX_PART_BYTES
            or again > MAX_REQUESTS_PER_PART
        ):
            continue
        flat = values.emit_index(
            w, flat_index(t, (*at[:lead], *(index.as_index(0) for _ in at[lead:])))
        )
        step = each * 8 // t.dtype.bits
        yield f"{PREFETCH_VARIABLE} = {w.buffer(t)} + {flat.text} + tl.arange(0, {lanes}) * {step}"
        yield (
            f'tl.inline_asm_elementwise("cp.async.bulk.prefetch.L2.global [$1], {each}; // $0", '
            f'"=r,l", [tl.cast({PREFETCH_VARIABLE}, tl.int64)], dtype=tl.int32, '
            "is_pure=False, pack=1)"
        )
