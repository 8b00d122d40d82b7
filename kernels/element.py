"""Lower one element of a tensor at given loops: its expression over buffers, and the reductions to
run before it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import gcd

from superopt.kernels.below import below_zero
from superopt.kernels.layout import Stored
from superopt.kernels.schedule import IllegalSchedule
from superopt.kernels.tile import For, Pack, Stmt, Store, Update
from superopt.te import affine
from superopt.te import index as ix
from superopt.te.dtype import F32, INDEX, DType
from superopt.te.expr import Tensor, cast, const
from superopt.te.fn import unit
from superopt.te.node import Apply, Axis, Const, Dim, Expr, Index, Load, Reduce
from superopt.te.walk import axes_of

Env = Mapping[Expr, Expr]


@dataclass(slots=True)
class Nest:
    """The kernel under construction: where tensors are stored, scratch buffers, fresh names.

    packed: constants packed in loop order, once that is known, with the index that is read and the
    load. loop_order: the loops around, outermost first.
    """

    stored: dict[Tensor, Stored] = field(default_factory=dict)
    scratch: list[tuple[Tensor, str]] = field(default_factory=list)
    packed: dict[Tensor, tuple[Pack, tuple[Expr, ...], Load] | None] = field(default_factory=dict)
    order: tuple[Axis, ...] = ()
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def fresh(self, stem: str) -> str:
        return f"{stem}{next(self.numbers)}"


def value(nest: Nest, e: Expr, env: Env, axes: tuple[Axis, ...], before: list[Stmt]) -> Expr:
    """Return `e` with axes replaced as in `env` and loads of buffers; statements to run before go
    to `prologue`."""
    if e.dtype == INDEX:
        return index(nest, e, env, axes, before)
    match e:
        case Load(t, at, dtype):
            place = tuple(index(nest, i, env, axes, before) for i in at)
            if t in nest.packed:
                return _packed(nest, t, place)
            if t not in nest.stored:
                return Load(t, place, dtype)
            s = nest.stored[t]
            return Load(s.buffer, s.place(place), dtype)
        case Apply("select", (guard, Load(t, at) as inside, Const(0))) if _bordered(
            nest, t, guard, at, env
        ):
            return value(nest, inside, env, axes, before)
        case Apply(fn, args, dtype):
            if fn == "exp" and dtype == F32 and below_zero(args[0]):
                fn = "exp_below"
            return Apply(fn, tuple(value(nest, a, env, axes, before) for a in args), dtype)
        case Reduce(fn, over, body, dtype):
            total = summed(nest, e, tuple(a.extent for a in axes), "register")
            loops = [Axis(nest.fresh(f"{a.name}."), a.extent) for a in over]
            inner: list[Stmt] = []
            element = value(nest, body, {**env, **dict(zip(over, loops, strict=True))}, axes, inner)
            folded: tuple[Stmt, ...] = (*inner, Update(total, axes, fn, element, axes))
            for a in reversed(loops):
                folded = (For(a, folded),)
            before += (Store(total, axes, start(e), axes), *folded)
            return cast(total[axes], dtype)
        case _:
            return e


def _packed(nest: Nest, t: Tensor, place: tuple[Expr, ...]) -> Expr:
    """Return the load of a constant that is packed in the order of the loops it depends on. A
    masked-off load may read any element."""
    known = nest.packed[t]
    place = tuple(_kept_in(i, n) for i, n in zip(place, t.shape, strict=True))
    if known is None:
        inside = set().union(*map(axes_of, place)) if place else set()
        loops = [a for a in nest.order if a in inside]
        if len(loops) < len(inside):
            raise IllegalSchedule(f"{t.name} is packed, but read within a reduction without loops")
        same = _same(place)
        axes = tuple(same[a].axis if a in same else a for a in loops)
        buffer = Tensor(f"{t.name}.packed", t.dtype, tuple(a.extent for a in axes))
        index = tuple(next((x.axis for x in same.values() if x.read == i), i) for i in place)
        at = tuple(same[a].read if a in same else a for a in loops)
        known = nest.packed[t] = Pack(t, buffer, axes, index), place, Load(buffer, at, t.dtype)
    if known[1] != place:
        raise IllegalSchedule(f"{t.name} is packed, but read with two different indices")
    return known[2]


@dataclass(frozen=True, slots=True)
class _Same:
    """A loop whose last steps read the same element: the clamped index, and an axis of the distinct
    ones."""

    read: Expr
    axis: Axis


def _same(place: Sequence[Expr]) -> dict[Axis, _Same]:
    """Return the loops whose last steps read one element, min(axis, n); it is packed once."""
    out = {}
    for i in place:
        match i:
            case Apply("min", (Axis() as a, Const(n)) | (Const(n), Axis() as a)):
                if sum(a in axes_of(x) for x in place) == 1:
                    out[a] = _Same(i, Axis(a.name, int(n) + 1))
    return out


def _kept_in(i: Expr, n: Dim) -> Expr:
    """Return the index clamped to [0, n)."""
    assert isinstance(n, int)
    where = affine.interval(i)
    if where is not None and where[0] >= 0 and where[1] < n:
        return i
    top = ix.apply("min", (i, ix.as_index(n - 1)), INDEX)
    return ix.apply("max", (top, ix.as_index(0)), INDEX)


def _bordered(nest: Nest, t: Tensor, guard: Expr, at: Sequence[Expr], env: Env) -> bool:
    """True if the guard only tests that the index is in range, and the buffer's zero border covers
    what is beyond."""
    if t not in nest.stored or not all(_in_range(g, t, at) for g in _conjuncts(guard)):
        return False
    kept = nest.stored[t]
    for d, (i, n) in enumerate(zip(at, t.shape, strict=True)):
        where = affine.interval(ix.substitute(i, env))
        border = kept.border(d)
        assert isinstance(n, int)
        if where is None or where[0] < -border or where[1] >= n + border:
            return False
    return True


def ranged_read(guard: Expr, load: Load, otherwise: Expr) -> bool:
    """True if the guard only tests that the load is in range, with zero otherwise."""
    zero = isinstance(otherwise, Const) and otherwise.value == 0
    return zero and all(_in_range(g, load.tensor, load.index) for g in _conjuncts(guard))


def _conjuncts(e: Expr) -> list[Expr]:
    if isinstance(e, Apply) and e.fn == "and":
        return [c for a in e.args for c in _conjuncts(a)]
    return [e]


def _in_range(g: Expr, t: Tensor, at: Sequence[Expr]) -> bool:
    match g:
        case Apply("le", (Const(0), i)):
            return i in at
        case Apply("lt", (i, Const(n))):
            return any(i == a and n == d for a, d in zip(at, t.shape, strict=True))
    return False


def summed(nest: Nest, e: Reduce, shape: tuple[Dim, ...], scope: str) -> Tensor:
    """Return a new accumulator buffer of a reduction: float32 for narrower floats, as in
    te/domain.py."""
    total = Tensor(nest.fresh(e.fn), _wide(e.dtype), shape)
    nest.scratch.append((total, scope))
    return total


def start(e: Reduce) -> Expr:
    """Return the identity of a reduction."""
    return const(unit(e.fn, e.dtype), _wide(e.dtype))


def _wide(dtype: DType) -> DType:
    return F32 if dtype.is_float and dtype.bits < 32 else dtype


def index(nest: Nest, e: Expr, env: Env, axes: tuple[Axis, ...], before: list[Stmt]) -> Expr:
    """Return an index with axes replaced as in `env`."""
    match e:
        case Axis():
            return env.get(e, e)
        case Index(element, bound):
            at = value(nest, element, env, axes, before)
            return Index(at, index(nest, bound, env, axes, before))
        case Apply(fn, args, dtype):
            moved = (index(nest, a, env, axes, before) for a in args)
            return _folded(fn, tuple(moved), dtype)
        case _:
            return e


def _folded(fn: str, args: tuple[Expr, ...], dtype: DType) -> Expr:
    out = args[0]
    if fn in ("add", "mul"):
        for a in args[1:]:
            out = ix.apply(fn, (out, a), dtype)
        return out
    match fn, args:
        case (("floordiv" | "mod"), (x, Const(n))) if (parts := _coarse(x, int(n))) is not None:
            high, low, step = parts
            out = ix.apply(fn, (high, ix.as_index(int(n) // step)), dtype)
            return out if fn == "floordiv" else ix.as_index(out * step + low)
    return ix.apply(fn, args, dtype)


def _coarse(x: Expr, n: int) -> tuple[Expr, Expr, int] | None:
    """Return x as (high, low, step) with x = high * step + low, 0 <= low < step, and step dividing
    n: the position within a block does not affect the block's number."""
    terms = ix.polynomial(x)
    for step in sorted({gcd(c, n) for c in terms.values()}, reverse=True):
        low = ix.from_polynomial({t: c for t, c in terms.items() if c % step})
        within = affine.interval(low)
        if step > 1 and within is not None and within[0] >= 0 and within[1] < step:
            high = {t: c // step for t, c in terms.items() if not c % step}
            return ix.from_polynomial(high), low, step
    return None
