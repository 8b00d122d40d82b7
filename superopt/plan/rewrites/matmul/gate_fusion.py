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

from superopt.kernels.algorithms.contraction import match_contraction
from superopt.kernels.algorithms.gpu.gated_gemm import (
    MAX_PRODUCTS,
    fused_product_count,
    have_same_operand,
    is_gated_product,
    match_gated,
)
from superopt.kernels.algorithms.problem import Problem
from superopt.plan.lowering.kernel_stages import kernel_inputs
from superopt.plan.lowering.polyphase import WrittenParts
from superopt.plan.rewrites.reductions.row_fusion import replace_tensors
from superopt.rules.te.match import Context
from superopt.rules.te.rewrite import load_te_rules
from superopt.te.analysis.inline import substitute_axes
from superopt.te.analysis.walk import loads
from superopt.te.expr.node import Axis, Expr
from superopt.te.expr.tensor import Tensor

VECTOR_BYTES = 64  # of a vector; has no effect here
Gates = Mapping[Tensor, Sequence[Tensor]]


def find_gates(
    current: Mapping[Tensor, Tensor],
    materialized: Collection[Tensor],
    excluded: Collection[Tensor],
    parts: WrittenParts,
    constants: Collection[Tensor],
    fp16_operands: bool,
) -> tuple[dict[Tensor, Tensor], dict[Tensor, tuple[Tensor, ...]]]:
    """Return the definitions, and for each result its gates: computed before it and read by nothing
    else. materialized: what must be in memory. excluded: what is computed by rows, or has an image
    layout. parts: tensors written in parts, which are in memory. fp16_operands: multiply 16-bit
    numbers."""
    excluded = {*excluded, *(x.tensor for some in parts.values() for x in some)}
    readers: dict[Tensor, list[Tensor]] = {}
    for t, now in current.items():
        for x in kernel_inputs(now, current):
            readers.setdefault(x, []).append(t)
    position = {t: n for n, t in enumerate(current)}
    position |= {t: max(position.get(x.tensor, -1) for x in some) for t, some in parts.items()}
    buffers = {x: Tensor(x.name, x.dtype, x.shape) for x in current}
    out: dict[Tensor, Tensor] = {}
    found: dict[Tensor, tuple[Tensor, ...]] = {}
    inside: set[Tensor] = set()
    for t, now in current.items():
        out[t] = now
        c = None if t in excluded else match_contraction(now, constants)
        if c is None or not c.b_axes or c.b_axes[-1] != now.axes[-1]:
            # a product with permuted axes is separate from its epilogue (product_passes.py)
            continue
        known = {  # current definitions, which may contain another sum
            g: out[g] for g in _tensors_read(now)
            if g in out and g not in materialized and g not in excluded and g not in inside
            and readers[g] == [t] and is_gated_product(now, g)
        }  # fmt: skip
        whole, product = _exchange_for_latest(now, known, constants, position)
        read = _tensors_read(whole)
        some = [g for g in known if g in read and have_same_operand(whole, known[g], constants)][
            : MAX_PRODUCTS - 1
        ]
        one = Problem(_with_gates(whole, some, out, buffers), {}, constants, VECTOR_BYTES)
        made = match_gated(one) if some else None
        n = 1 if made is None else fused_product_count(made, fp16_operands)
        if n > 1:
            found[t] = tuple(some[: n - 1])
            inside |= {t, *found[t]}
        if product is not None:
            for x in (t, *(g for g in known if g not in read)):
                del out[x]
            out |= {product: product, t: whole}
            buffers[product] = Tensor(product.name, product.dtype, product.shape)
    return out, found


def _tensors_read(t: Tensor) -> dict[Tensor, None]:
    """Return the tensors that `t` reads, in order."""
    return dict.fromkeys(x.tensor for x in loads(t.body)) if t.body is not None else {}


def fuse_gates(current: Mapping[Tensor, Tensor], found: Gates) -> dict[Tensor, Tensor]:
    """Return the definitions with gates inlined in their readers."""
    inside = {g for some in found.values() for g in some}
    return {
        t: _with_gates(now, found[t], current, {}) if t in found else now
        for t, now in current.items() if t not in inside
    }  # fmt: skip


def _exchange_for_latest(
    definition: Tensor, gate_definitions: Mapping[Tensor, Tensor], constants: Collection[Tensor],
    positions: Mapping[Tensor, int],
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Return the result with the sum of the operand that is computed last, and its own sum as a
    tensor if another one was exchanged for it."""

    def place(t: Tensor) -> int:
        c = match_contraction(t, constants)
        return -1 if c is None else positions.get(c.a.tensor, -1)

    last = max(
        gate_definitions,
        key=lambda g: place(_align_axes(gate_definitions[g], definition)),
        default=None,
    )
    if last is None or place(_align_axes(gate_definitions[last], definition)) <= place(definition):
        return definition, None
    return _exchange_products(definition, last, gate_definitions[last])


def _align_axes(gate: Tensor, reader: Tensor) -> Tensor:
    """Return the gate with the axes of its reader."""
    assert gate.body is not None
    env: dict[Axis, Expr] = dict(zip(gate.axes, reader.axes, strict=True))
    return Tensor(gate.name, gate.dtype, reader.shape, reader.axes, substitute_axes(gate.body, env))


def _exchange_products(definition: Tensor, g: Tensor, gate: Tensor) -> tuple[Tensor, Tensor]:
    """Return the result with the sum of a gate in place of its own one, which becomes a tensor.

    y = h(g, sum(a))   =>   p = sum(a), y = h(f(sum(b)), p)      where g = f(sum(b))
    """
    stored_product = load_te_rules("products", "store-product").rewrite(definition, Context())
    assert stored_product is not None
    rules = load_te_rules("products", "inline-gate")
    return rules.rewrite_fully(stored_product.tensor, Context({g: gate})), stored_product.stored[0]


def _with_gates(
    definition: Tensor, gates: Sequence[Tensor], current: Mapping[Tensor, Tensor],
    buffers: Mapping[Tensor, Tensor],
) -> Tensor:  # fmt: skip
    """Return the result with its gates inlined; other tensors are read from `buffers`."""
    stages = {}
    for g in gates:
        gate = current[g]
        assert gate.body is not None
        body = replace_tensors(gate.body, buffers)
        stages[g] = Tensor(g.name, gate.dtype, gate.shape, gate.axes, body)
    assert definition.body is not None
    return Tensor(
        definition.name,
        definition.dtype,
        definition.shape,
        definition.axes,
        replace_tensors(definition.body, {**buffers, **stages}),
    )
