"""Lower one element of a tensor at given loops: its expression over buffers, and the reductions to
run before it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import gcd

from superopt.kernels.loops.layout import BufferView
from superopt.kernels.loops.non_positive import is_non_positive
from superopt.kernels.loops.schedule import IllegalSchedule
from superopt.kernels.loops.tile import For, Pack, Stmt, Store, Update
from superopt.te.analysis import affine
from superopt.te.analysis.walk import index_axes, operands, with_operands
from superopt.te.expr import index as te_index
from superopt.te.expr.dtype import F32, INDEX, DType
from superopt.te.expr.functions import identity_element
from superopt.te.expr.node import Apply, Axis, Const, Dim, Expr, Index, Load, Reduce
from superopt.te.expr.symbolic_int import is_in_range, is_nonnegative
from superopt.te.expr.tensor import Tensor, cast, const

AxisEnv = Mapping[Expr, Expr]


@dataclass(slots=True)
class KernelState:
    """The kernel under construction: where tensors are stored, scratch buffers, fresh names.

    packed: constants packed in loop order, once that is known, with the index that is read and the
    load. loop_order: the loops around, outermost first.
    """

    stored: dict[Tensor, BufferView] = field(default_factory=dict)
    scratch: list[tuple[Tensor, str]] = field(default_factory=list)
    packed: dict[Tensor, tuple[Pack, tuple[Expr, ...], Load] | None] = field(default_factory=dict)
    loop_order: tuple[Axis, ...] = ()
    counter: Iterator[int] = field(default_factory=lambda: count(1))

    def fresh(self, stem: str) -> str:
        return f"{stem}{next(self.counter)}"


def lower_value(
    nest: KernelState, e: Expr, env: AxisEnv, axes: tuple[Axis, ...], prologue: list[Stmt]
) -> Expr:
    """Return `e` with axes replaced as in `env` and loads of buffers; statements to run before go
    to `prologue`."""
    if e.dtype == INDEX:
        return lower_index(nest, e, env, axes, prologue)
    match e:
        case Load(t, at, dtype):
            place = tuple(lower_index(nest, i, env, axes, prologue) for i in at)
            if t in nest.packed and (packed := _packed_load(nest, t, place)) is not None:
                return packed
            if t not in nest.stored:
                return Load(t, place, dtype)
            s = nest.stored[t]
            return Load(s.buffer, s.buffer_index(place), dtype)
        case Apply("select", (guard, Load(t, at) as inside, Const(0))) if _reads_zero_border(
            nest, t, guard, at, env
        ):
            return lower_value(nest, inside, env, axes, prologue)
        case Apply(fn, args, dtype):
            if fn == "exp" and dtype == F32 and is_non_positive(args[0]):
                fn = "exp_below"
            return Apply(fn, tuple(lower_value(nest, a, env, axes, prologue) for a in args), dtype)
        case Reduce(fn, over, body, dtype):
            total = reduction_buffer(nest, e, tuple(a.extent for a in axes), "register")
            loops = [Axis(nest.fresh(f"{a.name}."), a.extent) for a in over]
            inner: list[Stmt] = []
            element = lower_value(
                nest, body, {**env, **dict(zip(over, loops, strict=True))}, axes, inner
            )
            folded: tuple[Stmt, ...] = (*inner, Update(total, axes, fn, element, axes))
            for a in reversed(loops):
                folded = (For(a, folded),)
            prologue += (Store(total, axes, reduction_identity(e), axes), *folded)
            return cast(total[axes], dtype)
        case _:
            return e


def _packed_load(nest: KernelState, t: Tensor, place: tuple[Expr, ...]) -> Expr | None:
    """Return the load of a constant that is packed in the order of the loops it depends on. A
    masked-off load may read any element. None if it is not packed: loops of symbolic extent read
    it."""
    known = nest.packed[t]
    place = tuple(_clamped_index(i, n) for i, n in zip(place, t.shape, strict=True))
    if known is None:
        inside = set().union(*map(index_axes, place)) if place else set()
        loops = [a for a in nest.loop_order if a in inside]
        if len(loops) < len(inside):
            raise IllegalSchedule(f"{t.name} is packed, but read within a reduction without loops")
        same = _clamped_loops(place)
        axes = tuple(same[a].axis if a in same else a for a in loops)
        if not all(isinstance(a.extent, int) for a in axes):
            del nest.packed[t]
            return None
        buffer = Tensor(f"{t.name}.packed", t.dtype, tuple(a.extent for a in axes))
        index = tuple(next((x.axis for x in same.values() if x.index == i), i) for i in place)
        at = tuple(same[a].index if a in same else a for a in loops)
        known = nest.packed[t] = Pack(t, buffer, axes, index), place, Load(buffer, at, t.dtype)
    if known[1] != place:
        raise IllegalSchedule(f"{t.name} is packed, but read with two different indices")
    return known[2]


@dataclass(frozen=True, slots=True)
class _ClampedLoop:
    """A loop whose last steps read the same element: the clamped index, and an axis of the distinct
    ones."""

    index: Expr
    axis: Axis


def _clamped_loops(place: Sequence[Expr]) -> dict[Axis, _ClampedLoop]:
    """Return the loops whose last steps read one element, min(axis, n); it is packed once."""
    out = {}
    for i in place:
        match i:
            case Apply("min", (Axis() as a, Const(n)) | (Const(n), Axis() as a)):
                if sum(a in index_axes(x) for x in place) == 1:
                    out[a] = _ClampedLoop(i, Axis(a.name, int(n) + 1))
    return out


def _clamp_loads(nest: KernelState, e: Expr) -> Expr:
    """Return an element that is used as an index, with loads within their buffers: they run also
    where a guard fails, as beyond the edge of a pad."""
    match e:
        case Load(t, index, dtype) if all(t is not x for x, _ in nest.scratch):
            return Load(t, tuple(map(_clamped_index, index, t.shape)), dtype)
        case Apply():
            return with_operands(e, [_clamp_loads(nest, x) for x in operands(e)])
    return e


def _clamped_index(i: Expr, n: Dim) -> Expr:
    """Return the index clamped to [0, n)."""
    where = affine.interval(i)
    if where is not None and isinstance(n, int) and where[0] >= 0 and where[1] < n:
        return i
    if is_in_range(i, n):
        return i
    top = te_index.apply("min", (i, te_index.as_index(n - 1)), INDEX)
    return te_index.apply("max", (top, te_index.as_index(0)), INDEX)


def _reads_zero_border(
    nest: KernelState, t: Tensor, guard: Expr, index: Sequence[Expr], env: AxisEnv
) -> bool:
    """True if the guard only tests that the index is in range, and the buffer's zero border covers
    what is beyond."""
    if t not in nest.stored or not all(_is_range_test(g, t, index) for g in _conjuncts(guard)):
        return False
    kept = nest.stored[t]
    for d, (i, n) in enumerate(zip(index, t.shape, strict=True)):
        border = kept.border(d)
        if not all(isinstance(size, int) for size in (n, *(a.extent for a in index_axes(i)))):
            if not _is_within(i, n, border, env):
                return False
            continue
        where = affine.interval(te_index.substitute(i, env))
        if where is None:
            return False
        if where[0] < -border or where[1] >= n + border:
            return False
    return True


def _is_within(i: Expr, n: Dim, border: int, env: AxisEnv) -> bool:
    """True if -border <= i < n + border, whatever the sizes. Loops stand for the axes of fixed
    extent, and do not pass the last element of the others."""
    fixed: dict[Expr, Expr] = {}
    for a in index_axes(i):
        at = env.get(a, a)
        if isinstance(a.extent, int):
            fixed[a] = at
        elif not is_nonnegative(te_index.as_index(te_index.as_index(a.extent) - 1 - at)):
            return False
    moved = te_index.as_index(te_index.substitute(i, fixed) + border)
    return is_in_range(moved, te_index.as_index(n + 2 * border))


def is_range_guard(guard: Expr, load: Load, otherwise: Expr) -> bool:
    """True if the guard only tests that the load is in range, with zero otherwise."""
    zero = isinstance(otherwise, Const) and otherwise.value == 0
    return zero and all(_is_range_test(g, load.tensor, load.index) for g in _conjuncts(guard))


def _is_equal(a: Expr, b: Expr) -> bool:
    """True also for equal sizes of different form, such as (n + 3) // 4 and (n - 1) // 4 + 1."""
    return a == b or (
        is_nonnegative(te_index.as_index(a - b)) and is_nonnegative(te_index.as_index(b - a))
    )


def _conjuncts(e: Expr) -> list[Expr]:
    if isinstance(e, Apply) and e.fn == "and":
        return [c for a in e.args for c in _conjuncts(a)]
    return [e]


def _is_range_test(g: Expr, t: Tensor, index: Sequence[Expr]) -> bool:
    match g:
        case Apply("le", (Const(0), i)):
            return i in index
        case Apply("lt", (i, n)):
            return any(
                i == a and _is_equal(n, te_index.as_index(d))
                for a, d in zip(index, t.shape, strict=True)
            )
    return False


def reduction_buffer(nest: KernelState, e: Reduce, shape: tuple[Dim, ...], scope: str) -> Tensor:
    """Return a new accumulator buffer of a reduction: float32 for narrower floats, as in
    te/eval/domain.py."""
    total = Tensor(nest.fresh(e.fn), _accumulator_dtype(e.dtype), shape)
    nest.scratch.append((total, scope))
    return total


def reduction_identity(e: Reduce) -> Expr:
    """Return the identity of a reduction."""
    return const(identity_element(e.fn, e.dtype), _accumulator_dtype(e.dtype))


def _accumulator_dtype(dtype: DType) -> DType:
    return F32 if dtype.is_float and dtype.bits < 32 else dtype


def lower_index(
    nest: KernelState, e: Expr, env: AxisEnv, axes: tuple[Axis, ...], prologue: list[Stmt]
) -> Expr:
    """Return an index with axes replaced as in `env`."""
    match e:
        case Axis():
            return env.get(e, e)
        case Index(element, bound):
            at = _clamp_loads(nest, lower_value(nest, element, env, axes, prologue))
            return Index(at, lower_index(nest, bound, env, axes, prologue))
        case Apply(fn, args, dtype):
            moved = (lower_index(nest, a, env, axes, prologue) for a in args)
            return _simplified_index(fn, tuple(moved), dtype)
        case _:
            return e


def _simplified_index(fn: str, args: tuple[Expr, ...], dtype: DType) -> Expr:
    out = args[0]
    if fn in ("add", "mul"):
        for a in args[1:]:
            out = te_index.apply(fn, (out, a), dtype)
        return out
    match fn, args:
        case (("floordiv" | "mod"), (x, Const(n))) if (
            parts := _split_by_step(x, int(n))
        ) is not None:
            high, low, step = parts
            out = te_index.apply(fn, (high, te_index.as_index(int(n) // step)), dtype)
            return out if fn == "floordiv" else te_index.as_index(out * step + low)
    return te_index.apply(fn, args, dtype)


def _split_by_step(x: Expr, n: int) -> tuple[Expr, Expr, int] | None:
    """Return x as (high, low, step) with x = high * step + low, 0 <= low < step, and step dividing
    n: the position within a block does not affect the block's number."""
    terms = te_index.polynomial(x)
    for step in sorted({gcd(c, n) for c in terms.values()}, reverse=True):
        low = te_index.from_polynomial({t: c for t, c in terms.items() if c % step})
        within = affine.interval(low)
        if step > 1 and within is not None and within[0] >= 0 and within[1] < step:
            high = {t: c // step for t, c in terms.items() if not c % step}
            return te_index.from_polynomial(high), low, step
    return None
