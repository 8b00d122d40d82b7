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

from superopt.kernels.contraction import contraction, elements
from superopt.kernels.gpu_blocks import MEMORY, START
from superopt.kernels.gpu_products import matrix_of
from superopt.kernels.gpu_ranking import blocks
from superopt.kernels.problem import Problem
from superopt.te import index as ix
from superopt.te.expr import Tensor
from superopt.te.inline import Inlining, placed
from superopt.te.node import Apply, Axis, Const, Expr, Load, Reduce
from superopt.te.walk import axes_of, loads

WIDTH = 64  # of a vector; has no effect here
GAIN = 0.9  # of the time of separate products, at most
STEP = "step"


@dataclass(frozen=True, slots=True)
class _Slice:
    """A product of one slice of an operand: the slice `index` along dimension `d`."""

    t: Tensor
    read: Load
    d: int
    index: int


def at_once(
    current: Mapping[Tensor, Tensor], stay: Collection[Tensor], constants: Collection[Tensor],
    half: bool,
) -> dict[Tensor, Tensor]:  # fmt: skip
    """Return the definitions with slices batched. materialized: what must be in memory itself.
    fp16_operands: multiply 16-bit numbers."""
    groups: dict[object, list[_Slice]] = {}
    for t, now in current.items():
        found = None if t in stay else _slice(t, now, constants)
        if found is not None:
            groups.setdefault(_form(now, found), []).append(found)
    first: dict[Tensor, Tensor] = {}
    moved: dict[Tensor, Tensor] = {}
    place = {t: n for n, t in enumerate(current)}
    for some in (run for group in groups.values() for run in _runs(group)):
        begin, one = some[0].index, min(some, key=lambda s: place[s.t])
        now = current[one.t]
        whole, at = _whole(now, one, begin, len(some))
        if len(some) < 2 or not _pays(whole, now, len(some), constants, half):
            continue
        first[one.t] = whole
        for s in some:
            axes = current[s.t].axes
            index = (*axes[:at], ix.as_index(s.index - begin), *axes[at:])
            moved[s.t] = Tensor(s.t.name, now.dtype, now.shape, axes, Load(whole, index, now.dtype))
    change = Inlining(moved)
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


def _runs(group: Sequence[_Slice]) -> list[list[_Slice]]:
    """Return runs of adjacent slices, in order."""
    out: list[list[_Slice]] = []
    for s in sorted(group, key=lambda s: s.index):
        if out and s.index == out[-1][-1].index + 1:
            out[-1].append(s)
        else:
            out.append([s])
    return out


def _slice(t: Tensor, now: Tensor, constants: Collection[Tensor]) -> _Slice | None:
    """Return a product of a slice with a constant that reads nothing else but constants; else
    None."""
    c = contraction(now, constants)
    if c is None or now.body is None or c.b.tensor not in constants or not c.of_b:
        return None
    if any(x != c.a and x.tensor not in constants for x in loads(now.body)):
        return None
    known = [
        (d, i) for d, (i, n) in enumerate(zip(c.a.index, c.a.tensor.shape, strict=True))
        if isinstance(i, Const) and n != 1
    ]  # fmt: skip
    if c.a.tensor in constants or len(known) != 1:
        return None
    ((d, i),) = known
    return _Slice(t, c.a, d, int(i.value))


def _form(now: Tensor, s: _Slice) -> object:
    """Return what is equal for all products that can be batched."""
    env: dict[Axis, Expr] = {a: Axis(f"a{n}", a.extent) for n, a in enumerate(now.axes)}
    assert now.body is not None
    return now.shape, now.dtype, s.d, placed(_read(now.body, s, Axis(STEP, 1 << 30)), env)


def _read(e: Expr, s: _Slice, at: Expr) -> Expr:
    """Return `e` with another slice index."""
    match e:
        case Load(t, index, dtype) if e == s.read:
            return Load(t, (*index[: s.d], at, *index[s.d + 1 :]), dtype)
        case Apply(fn, args, dtype):
            return Apply(fn, tuple(_read(a, s, at) for a in args), dtype)
        case Reduce(fn, axes, body, dtype):
            return Reduce(fn, axes, _read(body, s, at), dtype)
    return e


def _whole(now: Tensor, s: _Slice, begin: int, count: int) -> tuple[Tensor, int]:
    """Return the products of `count` slices, and the position of their axis, which is that of the
    operand."""
    before = set[Axis]().union(*map(axes_of, s.read.index[: s.d]))
    at = 1 + max((n for n, a in enumerate(now.axes) if a in before), default=-1)
    step = Axis(STEP, count)
    axes = (*now.axes[:at], step, *now.axes[at:])
    assert now.body is not None
    body = _read(now.body, s, ix.as_index(step + begin))
    return Tensor("steps", now.dtype, tuple(a.extent for a in axes), axes, body), at


def _pays(
    whole: Tensor, one: Tensor, count: int, constants: Collection[Tensor], half: bool
) -> bool:
    """True if it is a matrix product that should be faster than `count` separate products."""
    together = _time(whole, constants, half)
    if together is None:
        return False
    c = contraction(one, constants)
    assert c is not None
    least = START + elements(c.b.tensor) * (2 if half else 4) / MEMORY
    return together < GAIN * count * (_time(one, constants, half) or least)


def _time(t: Tensor, constants: Collection[Tensor], half: bool) -> float | None:
    """Return the estimated time in ns; None if it is not a matrix product."""
    m = matrix_of(Problem(t, {}, constants, WIDTH))
    return None if m is None else min(time for time, _ in blocks(replace(m, half=half)))
