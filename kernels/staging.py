"""Which tensors have loops: inlined ones have none (`inline`), copies of operands do
(`cache_read`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from superopt.kernels.schedule import CacheRead, IllegalSchedule, Inline, Schedule
from superopt.te.expr import Tensor, compute
from superopt.te.inline import Inlining
from superopt.te.node import Apply, Expr, Reduce
from superopt.te.walk import loads, reductions, stages


@dataclass(frozen=True, slots=True)
class Staged:
    """The tensors with loops, in dependency order. replacements: of the given tensors. copies: by
    which primitive, and for which reader, they are made."""

    order: tuple[Tensor, ...]
    now: Mapping[Tensor, Tensor]
    copies: Mapping[Tensor, tuple[CacheRead, Tensor]] = field(default_factory=dict)

    def __str__(self) -> str:
        return "\n".join(map(equation, self.order))


def equation(t: Tensor) -> str:
    """Return a tensor's definition as text."""
    return f"{t.name}[{', '.join(a.name for a in t.axes)}]: {t.type} = {t.body}"


def staged(
    outputs: Sequence[Tensor], schedules: Mapping[Tensor, Schedule], known: Collection[Tensor] = ()
) -> Staged:
    """Return the tensors that `outputs` are computed from, and these. tables: tensors of
    compile-time constants. Raises IllegalSchedule."""
    order = stages(outputs)
    if not any(isinstance(p, Inline | CacheRead) for t in order for p in schedules.get(t, ())):
        return Staged(tuple(order), {t: t for t in order})
    bodies: dict[Tensor, Tensor] = {}
    now: dict[Tensor, Tensor] = {}
    copies: dict[Tensor, tuple[CacheRead, Tensor]] = {}
    for t in order:
        steps = schedules.get(t, ())
        assert t.body is not None
        _checked(t, bodies)
        body = Inlining(bodies).expr(t.body)
        if any(isinstance(p, Inline) for p in steps):
            bodies[t] = inlined(t, body, steps, outputs)
            continue
        made = []
        for p in steps:
            if isinstance(p, CacheRead):
                body, copy = cached(t, body, p, known)
                made.append((copy, p))
        now[t] = Tensor(t.name, t.dtype, t.shape, t.axes, body)
        bodies[t] = _as(t, now[t])
        copies |= {copy: (p, now[t]) for copy, p in made}
    return Staged(tuple(stages([now[o] for o in outputs])), now, copies)


def inlined(t: Tensor, body: Expr, steps: Schedule, outputs: Collection[Tensor]) -> Tensor:
    """Compute a tensor where it is read, without loops of its own.

        t[i] = a[i] * 2         =>    y[i] = a[i] * 2 + a[i + 1] * 2
        y[i] = t[i] + t[i + 1]

    Not a result. A reduction may not be read under a guard: it would be computed where that fails.
    """
    if steps != (Inline(),):
        other = next((p for p in steps if p != Inline()), Inline())
        raise IllegalSchedule(f"inline(): {t.name} then has no loops for {other}")
    if t in outputs:
        raise IllegalSchedule(f"inline(): {t.name} is a result of the kernel")
    return Tensor(t.name, t.dtype, t.shape, t.axes, body)


def cached(t: Tensor, body: Expr, p: CacheRead, known: Collection[Tensor]) -> tuple[Expr, Tensor]:
    """Copy what `t` reads of a tensor inside a loop into a local buffer SOURCE.local first.

        for i < 4                     for i < 4
          for k < 8             =>      for k < 8
            y[i] += a[k, i]               a.local[k] = a[k, i]
                                        for k < 8
                                          y[i] += a.local[k]

    The region is inferred from the indices (region.py), as for compute_at.
    """
    read = {x.tensor: None for x in loads(body)}
    found = [x for x in read if x.name == p.source]
    if len(found) != 1:
        names = ", ".join(x.name for x in read) or "nothing"
        raise IllegalSchedule(f"{p}: {t.name} reads {names}; {len(found)} of these are {p.source}")
    (source,) = found
    if source in known:
        raise IllegalSchedule(f"{p}: {p.source} is a table of compile-time constants")
    copy = compute(source.shape, lambda *i: source[i], name=f"{source.name}.local")
    return Inlining({source: _as(source, copy)}).expr(body), copy


def _as(t: Tensor, other: Tensor) -> Tensor:
    """Return a stand-in for `t` in expressions: the element of another tensor."""
    return compute(t.shape, lambda *i: other[i])


def _checked(reader: Tensor, bodies: Mapping[Tensor, Tensor]) -> None:
    assert reader.body is not None
    for t in _guarded(reader.body, False):
        if t in bodies and reductions(bodies[t].body):
            raise IllegalSchedule(
                f"inline(): {t.name} is a reduction, and {reader.name} reads it under a guard"
            )


def _guarded(e: Expr, guard: bool) -> Iterator[Tensor]:
    """Yield the tensors that are read under a guard."""
    match e:
        case Apply("select", (condition, yes, no)):
            yield from _guarded(condition, guard)
            yield from _guarded(yes, True)
            yield from _guarded(no, True)
        case Apply(_, args):
            for a in args:
                yield from _guarded(a, guard)
        case Reduce(_, _, body):
            yield from _guarded(body, guard)
        case _ if guard:
            yield from (x.tensor for x in loads(e))
