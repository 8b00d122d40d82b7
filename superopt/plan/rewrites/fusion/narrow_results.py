"""Quantized results of products that are stored.

    y = quantize(dequantize(p) + dequantize(q))     p = quantize(x * w), q = quantize(u * v)

One product is computed with y as its epilogue; of the other's results y could read the sums, of 32
bits, or q, of 8. Stored are all but the last.
"""

from __future__ import annotations

from collections.abc import Mapping

from superopt.te.analysis.walk import loads, reductions
from superopt.te.expr.node import Apply
from superopt.te.expr.tensor import Tensor

NARROW_BITS = 8


def narrow_results(current: Mapping[Tensor, Tensor]) -> set[Tensor]:
    """Return the quantized results of products that an expression reads beside another one's.

    current: the definitions, producers first.
    """
    readers: dict[Tensor, list[Tensor]] = {}
    for t, now in current.items():
        for x in dict.fromkeys(x.tensor for x in loads(now.body)):
            readers.setdefault(x, []).append(t)
    ends: dict[Tensor, Tensor] = {}  # where the elementwise chain from a tensor ends
    for t in reversed([*current]):
        (only, *more) = readers.get(t, [t])
        chained = not more and only is not t and not reductions(current[only].body)
        ends[t] = ends[only] if chained else t
    groups: dict[Tensor, list[Tensor]] = {}
    of_products: set[Tensor] = set()
    for t, now in current.items():
        if any(isinstance(r.body, Apply) and r.body.fn == "mul" for r in reductions(now.body)):
            of_products.add(t)
            continue
        before = {x.tensor for x in loads(now.body)} & of_products
        if not before or reductions(now.body) or any(len(readers[x]) > 1 for x in before):
            continue
        if now.dtype.bits > NARROW_BITS:
            of_products.add(t)
        else:
            groups.setdefault(ends[t], []).append(t)
    return {t for some in groups.values() for t in some[:-1]}
