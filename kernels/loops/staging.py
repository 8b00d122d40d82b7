"""Which tensors have loops: inlined ones have none (`inline`), copies of operands do
(`cache_read`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from superopt.kernels.loops.schedule import CacheRead, IllegalSchedule, Inline, Schedule
from superopt.te.analysis.inline import Inliner
from superopt.te.analysis.walk import computed_tensors, loads, reductions
from superopt.te.expr.node import Apply, Expr, Reduce
from superopt.te.expr.tensor import Tensor, compute


@dataclass(frozen=True, slots=True)
class StagedTensors:
    """The tensors with loops, in dependency order. replacements: of the given tensors. copies: by
    which primitive, and for which reader, they are made."""

    order: tuple[Tensor, ...]
    replacements: Mapping[Tensor, Tensor]
    copies: Mapping[Tensor, tuple[CacheRead, Tensor]] = field(default_factory=dict)

    def __str__(self) -> str:
        return "\n".join(map(equation, self.order))


def equation(t: Tensor) -> str:
    """Return a tensor's definition as text."""
    return f"{t.name}[{', '.join(a.name for a in t.axes)}]: {t.type} = {t.body}"


def stage_tensors(
    outputs: Sequence[Tensor], schedules: Mapping[Tensor, Schedule], tables: Collection[Tensor] = ()
) -> StagedTensors:
    """Return the tensors that `outputs` are computed from, and these. tables: tensors of
    compile-time constants. Raises IllegalSchedule."""
    order = computed_tensors(outputs)
    if not any(isinstance(p, Inline | CacheRead) for t in order for p in schedules.get(t, ())):
        return StagedTensors(tuple(order), {t: t for t in order})
    bodies: dict[Tensor, Tensor] = {}
    now: dict[Tensor, Tensor] = {}
    copies: dict[Tensor, tuple[CacheRead, Tensor]] = {}
    for t in order:
        steps = schedules.get(t, ())
        assert t.body is not None
        _check_guarded_sums(t, bodies)
        body = Inliner(bodies).expr(t.body)
        if any(isinstance(p, Inline) for p in steps):
            bodies[t] = inline_tensor(t, body, steps, outputs)
            continue
        made = []
        for p in steps:
            if isinstance(p, CacheRead):
                body, copy = cache_read_copy(t, body, p, tables)
                made.append((copy, p))
        now[t] = Tensor(t.name, t.dtype, t.shape, t.axes, body)
        bodies[t] = _alias_of(t, now[t])
        copies |= {copy: (p, now[t]) for copy, p in made}
    return StagedTensors(tuple(computed_tensors([now[o] for o in outputs])), now, copies)


def inline_tensor(t: Tensor, body: Expr, steps: Schedule, outputs: Collection[Tensor]) -> Tensor:
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


def cache_read_copy(
    t: Tensor, body: Expr, primitive: CacheRead, tables: Collection[Tensor]
) -> tuple[Expr, Tensor]:
    """Copy what `t` reads of a tensor inside a loop into a local buffer SOURCE.local first.

        for i < 4                     for i < 4
          for k < 8             =>      for k < 8
            y[i] += a[k, i]               a.local[k] = a[k, i]
                                        for k < 8
                                          y[i] += a.local[k]

    The region is inferred from the indices (region.py), as for compute_at.
    """
    read = {x.tensor: None for x in loads(body)}
    found = [x for x in read if x.name == primitive.source]
    if len(found) != 1:
        names = ", ".join(x.name for x in read) or "nothing"
        raise IllegalSchedule(
            f"{primitive}: {t.name} reads {names}; {len(found)} of these are {primitive.source}"
        )
    (source,) = found
    if source in tables:
        raise IllegalSchedule(
            f"{primitive}: {primitive.source} is a table of compile-time constants"
        )
    copy = compute(source.shape, lambda *i: source[i], name=f"{source.name}.local")
    return Inliner({source: _alias_of(source, copy)}).expr(body), copy


def _alias_of(t: Tensor, other: Tensor) -> Tensor:
    """Return a stand-in for `t` in expressions: the element of another tensor."""
    return compute(t.shape, lambda *i: other[i])


def _check_guarded_sums(reader: Tensor, bodies: Mapping[Tensor, Tensor]) -> None:
    assert reader.body is not None
    for t in _guarded_tensors(reader.body, False):
        if t in bodies and reductions(bodies[t].body):
            raise IllegalSchedule(
                f"inline(): {t.name} is a reduction, and {reader.name} reads it under a guard"
            )


def _guarded_tensors(e: Expr, is_guarded: bool) -> Iterator[Tensor]:
    """Yield the tensors that are read under a guard."""
    match e:
        case Apply("select", (condition, yes, no)):
            yield from _guarded_tensors(condition, is_guarded)
            yield from _guarded_tensors(yes, True)
            yield from _guarded_tensors(no, True)
        case Apply(_, args):
            for a in args:
                yield from _guarded_tensors(a, is_guarded)
        case Reduce(_, _, body):
            yield from _guarded_tensors(body, is_guarded)
        case _ if is_guarded:
            yield from (x.tensor for x in loads(e))
