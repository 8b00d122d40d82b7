"""What a kernel of a CPU executes, counted on its tile-level form: vector instructions, steps of
loops, and bytes that caches of some size take in.

Loops that end at a value are counted by the value in the middle of the loops around; where data
decides, by the first choice of a `select`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from math import ceil, floor, prod

from superopt.kernels.llvm.operation_count import function_operations
from superopt.kernels.loops.tile import For, Kernel, Stmt, Store, Update, bound_value
from superopt.te.analysis import affine
from superopt.te.analysis.walk import index_axes, loads
from superopt.te.expr.dtype import INDEX
from superopt.te.expr.node import Apply, Axis, Const, Expr, Load
from superopt.te.expr.symbolic_int import hint
from superopt.te.expr.tensor import Tensor

MAX_EXACT_STEPS = 4  # of a loop that is counted step by step
MIN_FUNCTION_OPERATIONS = 4  # from here on a function is a polynomial, of FMAs
_FREE = ("select", "cast", "bitcast")
_INDEX_FUNCTIONS: Mapping[str, Callable[..., float]] = {
    "add": lambda *some: sum(some), "mul": lambda *some: prod(some), "sub": operator.sub,
    "min": min, "max": max, "lt": operator.lt, "le": operator.le, "eq": operator.eq,
    "floordiv": lambda a, b: floor(a / b), "mod": operator.mod,
}  # fmt: skip


@dataclass(slots=True)
class KernelWork:
    """Vector FMAs; other vector instructions, of floats; loads, of vectors and of elements that are
    broadcast; stores; steps of loops that are not unrolled."""

    fmas: float = 0.0
    others: float = 0.0
    loads: float = 0.0
    stores: float = 0.0
    steps: float = 0.0

    def add(self, other: KernelWork, times: float = 1.0) -> None:
        """Add other work, so many times."""
        for f in fields(self):
            setattr(self, f.name, getattr(self, f.name) + times * getattr(other, f.name))


def count_work(kernel: Kernel, lanes: int) -> KernelWork:
    """Return the work of all threads. lanes: elements of a vector."""
    return _Counter(kernel, lanes).body(kernel.body, {})


@dataclass(slots=True)
class _Counter:
    kernel: Kernel
    lanes: int

    @property
    def registers(self) -> set[Tensor]:
        known = {t for t, scope in self.kernel.scratch if scope == "register"}
        return known | {t for t, _ in self.kernel.tables}

    def body(self, body: Sequence[Stmt], env: Mapping[Axis, float]) -> KernelWork:
        out = KernelWork()
        for s in body:
            out.add(self.loop(s, env) if isinstance(s, For) else self.statement(s))
        return out

    def loop(self, s: For, env: Mapping[Axis, float]) -> KernelWork:
        first, steps = loop_range(s, env)
        out = KernelWork()
        if steps <= 0:
            return out
        if bound_value(s) is None and s.kind != "unroll":
            out.steps = steps
        if steps <= MAX_EXACT_STEPS and s.kind != "unroll":
            for n in range(ceil(steps)):
                share = min(1.0, steps - n)
                out.add(self.body(s.body, {**env, s.axis: first + n}), share)
        else:
            out.add(self.body(s.body, {**env, s.axis: first + (steps - 1) / 2}), steps)
        return out

    def statement(self, s: Store | Update) -> KernelWork:
        """Return the work of a tile."""
        over = s.over if isinstance(s, Update) else ()
        axes = (*s.axes, *over)
        lane = (s.axes or over or (None,))[-1]
        vectors = self._vectors(axes, lane)
        out, registers = KernelWork(others=vectors * _instructions(s.value)), self.registers
        match s:
            case Update(fn="sum", value=Apply("mul")):
                out.others -= vectors
                out.fmas += vectors
            case Update():
                out.others += vectors
        for x in dict.fromkeys(loads(s.value)):
            if x.tensor not in registers:
                used = {a for i in x.index for a in index_axes(i)}
                out.loads += self._vectors([a for a in axes if a in used], lane)
        if s.buffer not in registers:
            out.stores += self._vectors(s.axes, lane)
            out.loads += out.stores if isinstance(s, Update) else 0
        return out

    def _vectors(self, axes: Sequence[Axis], lane: Axis | None) -> float:
        sizes = (ceil(hint(a.size) / self.lanes) if a == lane else hint(a.size) for a in axes)
        return prod(sizes)


def _instructions(e: Expr) -> float:
    """Return the vector instructions of an expression of floats."""
    match e:
        case Apply(fn, args) if args[0].dtype != INDEX:
            inner = sum(map(_instructions, args))
            if fn in _FREE:
                return inner
            n = function_operations(fn, args[0].dtype, len(args), e.dtype)
            return inner + (n / 2 if n >= MIN_FUNCTION_OPERATIONS else 1)
    return 0.0


def loop_range(s: For, env: Mapping[Axis, float]) -> tuple[float, float]:
    """Return the first value and the number of steps of a loop."""
    first = 0.0 if s.begin is None else _value(s.begin, env)
    end = float(hint(s.axis.size))
    if s.until is not None and (until := _value(s.until, env)) is not None:
        end = min(end, until)
    first = first or 0.0
    return first, end - first


def _value(e: Expr, env: Mapping[Axis, float]) -> float | None:
    """Return the value of an integer expression; None if data decides."""
    match e:
        case Const(v):
            return float(v)
        case Axis():
            return env.get(e)
        case Apply("cast", (x,)):
            return _value(x, env)
        case Apply("select", (guard, yes, no)):
            holds = _value(guard, env)
            return _value(no if holds == 0 else yes, env)
        case Apply(fn, args) if fn in _INDEX_FUNCTIONS:
            some = [_value(x, env) for x in args]
            known = [x for x in some if x is not None]
            return float(_INDEX_FUNCTIONS[fn](*known)) if len(known) == len(some) else None
    return None


@dataclass(frozen=True, slots=True)
class _Access:
    """An access of a buffer. steps: of the loops and tile axes that it depends on. moving: axes of
    one value that depend on some of these."""

    buffer: Tensor
    index: tuple[Expr, ...]
    steps: Mapping[Axis, float]
    moving: frozenset[Axis]


def cache_traffic(kernel: Kernel, capacity: float) -> float:
    """Return the bytes that a cache of `capacity` bytes takes in: what loops use again is there if
    all that a step uses fits. 0 if all that the kernel uses fits."""
    registers = {t for t, scope in kernel.scratch if scope == "register"}
    registers |= {t for t, _ in kernel.tables}
    accesses = _accesses(kernel.body, {}, registers, {})
    if _footprint(accesses) <= capacity:
        return 0.0
    return _traffic(kernel.body, {}, capacity, registers, {})


def _traffic(
    body: Sequence[Stmt], env: Mapping[Axis, float], capacity: float, registers: set[Tensor],
    bound: Mapping[Axis, set[Axis]],
) -> float:  # fmt: skip
    """Return what a cache takes in while statements run."""
    used = _accesses(body, env, registers, bound)
    if _footprint(used) <= capacity:
        return _footprint(used)
    total = 0.0
    for s in body:
        if not isinstance(s, For):
            total += _footprint(_accesses((s,), env, registers, bound))
            continue
        first, steps = loop_range(s, env)
        inner = {**env, s.axis: first + max(steps - 1, 0) / 2}
        within = _bind(s, bound)
        if _footprint(_accesses(s.body, inner, registers, within)) <= capacity:
            total += _footprint(_accesses((s,), env, registers, bound))
        else:
            total += max(steps, 0.0) * _traffic(s.body, inner, capacity, registers, within)
    return total


def _bind(s: For, bound: Mapping[Axis, set[Axis]]) -> Mapping[Axis, set[Axis]]:
    """Return the axes that those of one value depend on."""
    value = bound_value(s)
    if value is None:
        return bound
    axes = index_axes(value)
    return {**bound, s.axis: axes.union(*(bound.get(a, set()) for a in axes))}


def _accesses(
    body: Sequence[Stmt], env: Mapping[Axis, float], registers: set[Tensor],
    bound: Mapping[Axis, set[Axis]],
) -> list[_Access]:  # fmt: skip
    """Return the accesses of statements, with the loops among these."""

    def visit(
        some: Sequence[Stmt], env: Mapping[Axis, float], steps: Mapping[Axis, float],
        bound: Mapping[Axis, set[Axis]],
    ) -> Iterator[_Access]:  # fmt: skip
        for s in some:
            if isinstance(s, For):
                first, count = loop_range(s, env)
                if count > 0:
                    inner = {**env, s.axis: first + (count - 1) / 2}
                    yield from visit(s.body, inner, {**steps, s.axis: count}, _bind(s, bound))
                continue
            over = s.over if isinstance(s, Update) else ()
            own = {**steps, **{a: float(hint(a.size)) for a in (*s.axes, *over)}}
            place = Load(s.buffer, s.index, s.buffer.dtype)
            for x in (place, *loads(s.value)):
                if x.tensor not in registers:
                    yield _access(x, own, bound)

    return list(visit(body, env, {}, bound))


def _access(
    x: Load, steps: Mapping[Axis, float], bound: Mapping[Axis, set[Axis]]
) -> _Access:  # fmt: skip
    """Return an access in loops. bound: the axes that those of one value depend on."""
    used = {a for i in x.index for a in index_axes(i)}
    moving = frozenset(a for a in used if bound.get(a, set()) & steps.keys())
    used = used.union(*(bound[a] for a in moving))
    return _Access(x.tensor, x.index, {a: n for a, n in steps.items() if a in used}, moving)


def _footprint(accesses: Sequence[_Access]) -> float:
    """Return the bytes of different elements that are accessed."""
    found: dict[Tensor, float] = {}
    for x in accesses:
        size = prod(hint(n) for n in x.buffer.sizes)
        count = min(float(size), prod(x.steps.values()), _span(x))
        found[x.buffer] = max(found.get(x.buffer, 0.0), count)
    return sum(n * max(t.dtype.bits // 8, 1) for t, n in found.items())


def _span(x: _Access) -> float:
    """Return how many elements the ranges of the indices have: windows overlap."""
    out = 1.0
    for i, n in zip(x.index, x.buffer.sizes, strict=True):
        form, axes = affine.affine(i), index_axes(i)
        if form is None or axes & x.moving:
            out *= hint(n)
        else:
            reach = sum(abs(form.coefficient(a)) * (x.steps[a] - 1) for a in axes & x.steps.keys())
            out *= min(float(hint(n)), reach + 1)
    return out
