"""Fuse products of one operand that are combined elementwise into one kernel: a gated product, the
gates of a recurrent cell. Otherwise gates are written to memory and read again. Used on a GPU.

g[i, n] = f(sum(x[i, k] * a[k, n] for k))
y[i, n] = h(g[i, n], sum(x[i, k] * b[k, n] for k))      =>   g is computed in the kernel of y

If products of two operands are combined (input and state), the operand that is computed later
counts, since the products of the other one can run before. The target decides how many products are
one kernel (kernels/algorithms/gpu/gated_gemm.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from superopt.kernels.contraction import contraction
from superopt.kernels.factor import put
from superopt.kernels.gpu_gates import MOST, alike, gated_of, read_so, worth
from superopt.kernels.nest import put_for
from superopt.kernels.problem import Problem
from superopt.kernels.transform import reduction
from superopt.plan.phases import Written
from superopt.plan.rows import instead
from superopt.plan.within import needs
from superopt.te.expr import Tensor
from superopt.te.inline import placed
from superopt.te.node import Axis, Expr
from superopt.te.walk import loads

WIDTH = 64  # of a vector; has no effect here
Gates = Mapping[Tensor, Sequence[Tensor]]


def gates(
    current: Mapping[Tensor, Tensor], stay: Collection[Tensor], apart: Collection[Tensor],
    parts: Written, constants: Collection[Tensor], half: bool,
) -> tuple[dict[Tensor, Tensor], dict[Tensor, tuple[Tensor, ...]]]:  # fmt: skip
    """Return the definitions, and for each result its gates: computed before it and read by nothing
    else. materialized: what must be in memory. excluded: what is computed by rows, or has an image
    layout. parts: tensors written in parts, which are in memory. fp16_operands: multiply 16-bit
    numbers."""
    apart = {*apart, *(x.tensor for some in parts.values() for x in some)}
    readers: dict[Tensor, list[Tensor]] = {}
    for t, now in current.items():
        for x in needs(now, current):
            readers.setdefault(x, []).append(t)
    there = {t: n for n, t in enumerate(current)}
    there |= {t: max(there.get(x.tensor, -1) for x in some) for t, some in parts.items()}
    buffers = {x: Tensor(x.name, x.dtype, x.shape) for x in current}
    out: dict[Tensor, Tensor] = {}
    found: dict[Tensor, tuple[Tensor, ...]] = {}
    inside: set[Tensor] = set()
    for t, now in current.items():
        out[t] = now
        c = None if t in apart else contraction(now, constants)
        if c is None or not c.of_b or c.of_b[-1] != now.axes[-1]:
            # a product with permuted axes is separate from its epilogue (product_passes.py)
            continue
        known = {  # current definitions, which may contain another sum
            g: out[g] for g in _read(now)
            if g in out and g not in stay and g not in apart and g not in inside
            and readers[g] == [t] and read_so(now, g)
        }  # fmt: skip
        whole, product = _led(now, known, constants, there)
        read = _read(whole)
        some = [g for g in known if g in read and alike(whole, known[g], constants)][: MOST - 1]
        one = Problem(_whole(whole, some, out, buffers), {}, constants, WIDTH)
        made = gated_of(one) if some else None
        n = 1 if made is None else worth(made, half)
        if n > 1:
            found[t] = tuple(some[: n - 1])
            inside |= {t, *found[t]}
        if product is not None:
            for x in (t, *(g for g in known if g not in read)):
                del out[x]
            out |= {product: product, t: whole}
            buffers[product] = Tensor(product.name, product.dtype, product.shape)
    return out, found


def _read(t: Tensor) -> dict[Tensor, None]:
    """Return the tensors that `t` reads, in order."""
    return dict.fromkeys(x.tensor for x in loads(t.body)) if t.body is not None else {}


def gated(current: Mapping[Tensor, Tensor], found: Gates) -> dict[Tensor, Tensor]:
    """Return the definitions with gates inlined in their readers."""
    inside = {g for some in found.values() for g in some}
    return {
        t: _whole(now, found[t], current, {}) if t in found else now
        for t, now in current.items() if t not in inside
    }  # fmt: skip


def _led(
    now: Tensor, known: Mapping[Tensor, Tensor], constants: Collection[Tensor],
    there: Mapping[Tensor, int],
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Return the result with the sum of the operand that is computed last, and its own sum as a
    tensor if another one was exchanged for it."""

    def place(t: Tensor) -> int:
        c = contraction(t, constants)
        return -1 if c is None else there.get(c.a.tensor, -1)

    last = max(known, key=lambda g: place(_placed(known[g], now)), default=None)
    if last is None or place(_placed(known[last], now)) <= place(now):
        return now, None
    return _exchanged(now, last, known[last])


def _placed(gate: Tensor, now: Tensor) -> Tensor:
    """Return the gate with the axes of its reader."""
    assert gate.body is not None
    env: dict[Axis, Expr] = dict(zip(gate.axes, now.axes, strict=True))
    return Tensor(gate.name, gate.dtype, now.shape, now.axes, placed(gate.body, env))


def _exchanged(now: Tensor, g: Tensor, gate: Tensor) -> tuple[Tensor, Tensor]:
    """Return the result with the sum of a gate in place of its own one, which becomes a tensor.

    y = h(g, sum(a))   =>   p = sum(a), y = h(f(sum(b)), p)      where g = f(sum(b))
    """
    found = reduction(now)
    assert found is not None
    assert now.body is not None
    product = Tensor("product", found.dtype, now.shape, now.axes, found)
    inner = _placed(gate, now).body
    assert inner is not None
    body = put(put_for(now.body, found, product, now.axes), g, inner)
    return Tensor(now.name, now.dtype, now.shape, now.axes, body), product


def _whole(
    now: Tensor, some: Sequence[Tensor], current: Mapping[Tensor, Tensor],
    buffers: Mapping[Tensor, Tensor],
) -> Tensor:  # fmt: skip
    """Return the result with its gates inlined; other tensors are read from `buffers`."""
    stages = {}
    for g in some:
        gate = current[g]
        assert gate.body is not None
        body = instead(gate.body, buffers)
        stages[g] = Tensor(g.name, gate.dtype, gate.shape, gate.axes, body)
    assert now.body is not None
    return Tensor(
        now.name, now.dtype, now.shape, now.axes, instead(now.body, {**buffers, **stages})
    )
