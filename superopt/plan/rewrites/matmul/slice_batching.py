"""Batch products of slices of one tensor with the same constant into one product: the input
products of an unrolled recurrent network. Used on a GPU; for CPUs see batched_gemm.py.

p[i, n] = sum(x[i, 1, k] * a[k, n])
q[i, n] = sum(x[i, 2, k] * a[k, n])     =>   y[i, s, n] = sum(x[i, s + 1, k] * a[k, n])

The constant is read once, and the rows of several slices fill blocks that those of one slice do
not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from superopt.kernels.algorithms.contraction import element_count, match_contraction
from superopt.kernels.algorithms.gpu.blocks import LAUNCH_NS, MEMORY_BYTES_PER_NS
from superopt.kernels.algorithms.gpu.gemm_cost_model import block_times
from superopt.kernels.algorithms.gpu.matrix_product import match_matrix_product
from superopt.kernels.algorithms.problem import Problem
from superopt.te.analysis.inline import Inliner, substitute_axes
from superopt.te.analysis.walk import index_axes, loads
from superopt.te.expr import index as te_index
from superopt.te.expr.node import Apply, Axis, Const, Expr, Load, Reduce
from superopt.te.expr.tensor import Tensor

VECTOR_BYTES = 64  # of a vector; has no effect here
MAX_TIME_RATIO = 0.9  # of the time of separate products, at most
STEP_AXIS = "step"


@dataclass(frozen=True, slots=True)
class _Slice:
    """A product of one slice of an operand: the slice `index` along dimension `d`."""

    t: Tensor
    read: Load
    d: int
    index: int


def batch_slices(
    current: Mapping[Tensor, Tensor],
    materialized: Collection[Tensor],
    constants: Collection[Tensor],
    fp16_operands: bool,
) -> dict[Tensor, Tensor]:
    """Return the definitions with slices batched. materialized: what must be in memory itself.
    fp16_operands: multiply 16-bit numbers."""
    groups: dict[object, list[_Slice]] = {}
    for t, now in current.items():
        found = None if t in materialized else _match_slice(t, now, constants)
        if found is not None:
            groups.setdefault(_product_key(now, found), []).append(found)
    first: dict[Tensor, Tensor] = {}
    moved: dict[Tensor, Tensor] = {}
    place = {t: n for n, t in enumerate(current)}
    for some in (run for group in groups.values() for run in _adjacent_runs(group)):
        begin, one = some[0].index, min(some, key=lambda s: place[s.t])
        now = current[one.t]
        whole, at = _batched_product(now, one, begin, len(some))
        if len(some) < 2 or not _is_batched_faster(whole, now, len(some), constants, fp16_operands):
            continue
        first[one.t] = whole
        for s in some:
            axes = current[s.t].axes
            index = (*axes[:at], te_index.as_index(s.index - begin), *axes[at:])
            moved[s.t] = Tensor(s.t.name, now.dtype, now.shape, axes, Load(whole, index, now.dtype))
    change = Inliner(moved)
    out: dict[Tensor, Tensor] = {}
    for t, now in current.items():
        if t in first:
            out[first[t]] = first[t]
        elif t not in moved:
            assert now.body is not None
            body = change.expr(now.body)
            new = Tensor(now.name, now.dtype, now.shape, now.axes, body)
            out[t] = now if body == now.body else new
    return out


def _adjacent_runs(group: Sequence[_Slice]) -> list[list[_Slice]]:
    """Return runs of adjacent slices, in order."""
    out: list[list[_Slice]] = []
    for s in sorted(group, key=lambda s: s.index):
        if out and s.index == out[-1][-1].index + 1:
            out[-1].append(s)
        else:
            out.append([s])
    return out


def _match_slice(t: Tensor, definition: Tensor, constants: Collection[Tensor]) -> _Slice | None:
    """Return a product of a slice with a constant that reads nothing else but constants; else
    None."""
    c = match_contraction(definition, constants)
    if c is None or definition.body is None or c.b.tensor not in constants or not c.b_axes:
        return None
    if any(x != c.a and x.tensor not in constants for x in loads(definition.body)):
        return None
    known = [
        (d, i) for d, (i, n) in enumerate(zip(c.a.index, c.a.tensor.shape, strict=True))
        if isinstance(i, Const) and n != 1
    ]  # fmt: skip
    if c.a.tensor in constants or len(known) != 1:
        return None
    ((d, i),) = known
    return _Slice(t, c.a, d, int(i.value))


def _product_key(definition: Tensor, s: _Slice) -> object:
    """Return what is equal for all products that can be batched."""
    env: dict[Axis, Expr] = {a: Axis(f"a{n}", a.extent) for n, a in enumerate(definition.axes)}
    assert definition.body is not None
    return (
        definition.shape,
        definition.dtype,
        s.d,
        substitute_axes(_with_slice_index(definition.body, s, Axis(STEP_AXIS, 1 << 30)), env),
    )


def _with_slice_index(e: Expr, s: _Slice, slice_index: Expr) -> Expr:
    """Return `e` with another slice index."""
    match e:
        case Load(t, index, dtype) if e == s.read:
            return Load(t, (*index[: s.d], slice_index, *index[s.d + 1 :]), dtype)
        case Apply(fn, args, dtype):
            return Apply(fn, tuple(_with_slice_index(a, s, slice_index) for a in args), dtype)
        case Reduce(fn, axes, body, dtype):
            return Reduce(fn, axes, _with_slice_index(body, s, slice_index), dtype)
    return e


def _batched_product(
    definition: Tensor, s: _Slice, first_index: int, count: int
) -> tuple[Tensor, int]:
    """Return the products of `count` slices, and the position of their axis, which is that of the
    operand."""
    before = set[Axis]().union(*map(index_axes, s.read.index[: s.d]))
    at = 1 + max((n for n, a in enumerate(definition.axes) if a in before), default=-1)
    step = Axis(STEP_AXIS, count)
    axes = (*definition.axes[:at], step, *definition.axes[at:])
    assert definition.body is not None
    body = _with_slice_index(definition.body, s, te_index.as_index(step + first_index))
    return Tensor("steps", definition.dtype, tuple(a.extent for a in axes), axes, body), at


def _is_batched_faster(
    batched: Tensor, single: Tensor, count: int, constants: Collection[Tensor], fp16_operands: bool
) -> bool:
    """True if it is a matrix product that should be faster than `count` separate products."""
    together = _estimated_ns(batched, constants, fp16_operands)
    if together is None:
        return False
    c = match_contraction(single, constants)
    assert c is not None
    least = (
        LAUNCH_NS + element_count(c.b.tensor) * (2 if fp16_operands else 4) / MEMORY_BYTES_PER_NS
    )
    return together < MAX_TIME_RATIO * count * (
        _estimated_ns(single, constants, fp16_operands) or least
    )


def _estimated_ns(t: Tensor, constants: Collection[Tensor], fp16_operands: bool) -> float | None:
    """Return the estimated time in ns; None if it is not a matrix product."""
    m = match_matrix_product(Problem(t, {}, constants, VECTOR_BYTES))
    return (
        None
        if m is None
        else min(
            time for time, _ in block_times(replace(m, operand_bytes=2 if fp16_operands else 4))
        )
    )
