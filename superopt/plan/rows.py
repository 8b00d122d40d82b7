"""Fuse row computations: reductions over a row and elementwise operators on it, as one kernel.

A softmax takes the maximum of each row, subtracts it, sums the exponentials, and divides by the
sum. One kernel does all of it while the row is in cache. The same holds for layer norm, RMS norm
and everything else of this form.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from superopt.plan.few_rows import few_and_long
from superopt.plan.within import needs
from superopt.te.expr import Tensor, compute
from superopt.te.inline import placed
from superopt.te.node import Apply, Axis, Const, Expr, Load, Reduce
from superopt.te.walk import axes_of, loads, parts, reductions

ROOM = 1 << 18  # of a row, and of intermediate results for it


@dataclass(slots=True)
class Group:
    """A row kernel. root: the result. batch_rank: the number of its leading axes that select a row.
    stages: the tensors inlined in it, with their definitions."""

    root: Tensor
    lead: int
    stages: dict[Tensor, Tensor] = field(default_factory=dict)


def rows(
    current: Mapping[Tensor, Tensor],
    stay: Collection[Tensor],
    pictures: Collection[Tensor],
    spread: bool = False,
) -> tuple[dict[Tensor, Tensor], dict[Tensor, int]]:
    """Return the definitions with rows fused, and the number of leading axes that select a row of
    each fused tensor.

    materialized: the tensors that must be in memory. image_tensors: those not stored row by row.
    parallel_rows: each row is one of many programs, so that few long rows are not fused.
    """
    readers: dict[Tensor, set[Tensor]] = {}
    for t, now in current.items():
        for x in needs(now, current):
            readers.setdefault(x, set()).add(t)
    out = dict(current)
    leads: dict[Tensor, int] = {}
    for t in reversed(list(current)):
        if t not in out or t.rank < 2 or t in pictures:
            continue
        group = grown(t, out, {*stay, *pictures}, readers, spread=spread)
        if group is not None and not (spread and few_and_long(group.root.shape, group.lead)):
            out[t] = fused(group, current[t])
            leads[t] = group.lead
            for x in group.stages:
                del out[x]
    return out, leads


def read(t: Tensor) -> set[Tensor]:
    return set() if t.body is None else {x.tensor for x in loads(t.body)}


def grown(
    t: Tensor,
    current: Mapping[Tensor, Tensor],
    stay: Collection[Tensor],
    readers: Mapping[Tensor, set[Tensor]],
    loose: bool = False,
    spread: bool = False,
) -> Group | None:
    """Return the row group of a result; None if it has no reduction over its rows. allow_unit_axes:
    row scalars may have other unit axes than the result's. parallel_rows: see `fuse_rows`;
    intermediate results need not fit into a cache then."""
    now = current[t]
    if reductions(now.body):
        return None
    found = (_lead(x, current, t, loose) for x in read(now))
    lead = next((n for n in found if n is not None), None)
    if not lead:
        return None
    group = Group(t, lead)
    more = True
    while more:
        more = False
        inside = {t, *group.stages}
        for x in {u for v in inside for u in read(current[v])} - inside:
            if x in stay or x not in current or not readers[x] <= inside:
                continue
            if _is_row(x, current[x], t, lead, loose) and all(
                _by_rows(current[v], x, lead) for v in readers[x]
            ):
                group.stages[x] = current[x]
                more = True
    group.stages = {x: now for x, now in current.items() if x in group.stages}
    kept = sum(prod(_sizes(x)[lead:]) * max(x.dtype.bits // 8, 1) for x in group.stages)
    summed = any(reductions(x.body) for x in group.stages.values())
    return group if summed and (spread or kept <= ROOM) else None


def _sizes(t: Tensor) -> list[int]:
    return [n for n in t.shape if isinstance(n, int)]


def _lead(x: Tensor, current: Mapping[Tensor, Tensor], root: Tensor, loose: bool) -> int | None:
    """Return how many leading axes of the result a reduction over its rows depends on."""
    if x not in current or len(reductions(current[x].body)) != 1:
        return None
    sizes, own = _sizes(root), _sizes(x)
    leads = range(len(sizes) - 1, 0, -1)
    some = (n for n in leads if _numbers(own, sizes, n, loose) and prod(sizes[n:]) > 1)
    return next(some, None)


def _numbers(own: list[int], sizes: list[int], lead: int, loose: bool) -> bool:
    """True if it has one number for each row."""
    rest = own[lead:]
    plain = own[:lead] == sizes[:lead] and all(n == 1 for n in rest)
    return plain and (loose or len(rest) in (0, len(sizes) - lead))


def _is_row(x: Tensor, now: Tensor, root: Tensor, lead: int, loose: bool) -> bool:
    """True for one number for each row, or one element for each element of the result."""
    found, sizes = reductions(now.body), _sizes(root)
    if not found and _sizes(x) == sizes:
        return True
    if not _numbers(_sizes(x), sizes, lead, loose):
        return False
    if not found:
        return True
    # A matrix product has a kernel of its own.
    return len(found) == 1 and (
        all(_along(e, now, lead) for e in loads(found[0].body))
        or all(
            _wherever(e, now, lead) for e in loads(found[0].body) if set(found[0].axes) & _axes(e)
        )
        or not _multiplied(found[0])
    )


def _multiplied(found: Reduce) -> bool:
    """True if both factors of a product vary along the reduced axes, as in a matrix product."""
    return any(
        e.fn == "mul" and all(set(found.axes) & {*axes_of(a), *_inside(a)} for a in e.args)
        for e in parts(found.body)
        if isinstance(e, Apply)
    )


def _inside(e: Expr) -> set[Expr]:
    return {a for x in loads(e) for a in _axes(x)}


def _along(e: Load, now: Tensor, lead: int) -> bool:
    """True if it reads the row's own element, or the same one for all rows."""
    own = zip(e.index, now.axes, e.tensor.shape, range(lead), strict=False)
    return all(i == a or n == 1 for i, a, n, _ in own) or not set(now.axes[:lead]) & _axes(e)


def _wherever(e: Load, now: Tensor, lead: int) -> bool:
    """True if it reads the row's own element in any layout, such as the channels of a pixel."""
    return {a for a in now.axes[:lead] if a.extent != 1} <= _axes(e)


def _by_rows(now: Tensor, x: Tensor, lead: int) -> bool:
    """True if it reads only its own row of `x`."""
    assert now.body is not None
    return all(
        all(
            i == a or n == 1
            for i, a, n in zip(e.index[:lead], now.axes[:lead], x.shape[:lead], strict=True)
        )
        for e in loads(now.body)
        if e.tensor is x
    )


def _axes(e: Load) -> set[Expr]:
    return {a for i in e.index for a in _inner(i)}


def _inner(e: Expr) -> Sequence[Expr]:
    match e:
        case Axis():
            return [e]
        case Apply(_, args):
            return [a for x in args for a in _inner(x)]
    return []


def fused(group: Group, now: Tensor) -> Tensor:
    """Return the result with its stages inlined, each reading the others."""
    done: dict[Tensor, Tensor] = {}
    shared = _shared(group, now)

    def made(t: Tensor) -> Tensor:
        assert t.body is not None
        body = t.body
        if shared is not None:
            body = _put(body, t, group.lead, shared, done)
        return Tensor(t.name, t.dtype, t.shape, t.axes, instead(body, done))

    for n, x in enumerate(group.stages):
        if shared is not None and shared.first is x:
            held = shared.tensor
            assert held.body is not None
            done[held] = Tensor(
                "shared", held.dtype, held.shape, held.axes, instead(held.body, done)
            )
        stage = made(group.stages[x])
        done[x] = Tensor(f"{x.name}{n}", x.dtype, x.shape, stage.axes, stage.body)
    out = made(now)
    assert out.body is not None
    body = _with_numbers(out.body, now, group.lead, {})
    return Tensor("row", out.dtype, out.shape, out.axes, body)


def _with_numbers(e: Expr, now: Tensor, lead: int, known: dict[Expr, Tensor]) -> Expr:
    """Return `e` with values that are equal for a whole row computed once. Division by such a value
    becomes multiplication by its finite reciprocal, which differs in the last bit."""
    axes = now.axes[:lead]

    def number(x: Expr) -> Expr:
        if x not in known:
            new = compute(now.shape[:lead], lambda *i: placed(x, dict(zip(axes, i, strict=True))),
                          name=f"number{len(known)}")  # fmt: skip
            known[x] = new
        return Load(known[x], axes, x.dtype)

    def once(x: Expr) -> bool:
        some = any(load.tensor.body is not None for load in loads(x))
        return some and x.dtype.is_float and axes_of(x) <= set(axes)

    match e:
        case Apply("div", (x, by), dtype) if once(by) and not once(x) and _has_inverse(by):
            return Apply("mul", (_with_numbers(x, now, lead, known), number(1 / by)), dtype)
        case Apply(fn, args, dtype):
            if once(e):
                return number(e)
            return Apply(fn, tuple(_with_numbers(a, now, lead, known) for a in args), dtype)
    return e


LEAST = 1e-30  # reciprocals of this number and its neighbours are finite


def _has_inverse(e: Expr) -> bool:
    """True if a divisor is 0 or not too small to invert: a number plus a constant (the variance
    plus epsilon under a root), or the sum of a softmax, which is at least 1."""
    match _behind(e):
        case Apply("add" | "max", (_, Const(c)) | (Const(c), _)):
            return bool(abs(float(c)) >= LEAST)
        case Apply("sqrt" | "abs" | "neg", (x,)):
            return _has_inverse(x)
        case Reduce("sum", _, body):
            match _behind(body):
                case Apply("exp", (x,)):
                    gap = _behind(x)
                    less = gap.args[1] if isinstance(gap, Apply) and gap.fn == "sub" else x
                    most = _behind(less)
                    return isinstance(most, Reduce) and most.fn == "max"
    return False


def _behind(e: Expr) -> Expr:
    """Return the expression that a load reads, where it is computed inline."""
    while isinstance(e, Load) and e.tensor.body is not None:
        e = e.tensor.body
    return e


@dataclass(frozen=True, slots=True)
class _Shared:
    """A row that is reduced, and that readers of the reduction recompute. first: the reduction."""

    tensor: Tensor
    first: Tensor


def _shared(group: Group, now: Tensor) -> _Shared | None:
    lead = group.lead
    assert now.body is not None
    for x, stage in group.stages.items():
        for r in reductions(stage.body):
            if isinstance(r.body, Load) or len(r.axes) != now.rank - lead:
                continue
            body = placed(r.body, _env(stage, r, now, lead))
            if _within(now.body, body):
                return _Shared(Tensor("shared", r.body.dtype, now.shape, now.axes, body), x)
    return None


def _env(stage: Tensor, r: Reduce, now: Tensor, lead: int) -> dict[Axis, Expr]:
    """Return the map from the axes of a reduction to those of the result."""
    own = zip((*stage.axes[:lead], *r.axes), now.axes, strict=True)
    return {a: b for a, b in own}  # noqa: C416


def once(current: Mapping[Tensor, Tensor]) -> dict[Tensor, Tensor]:
    """Return the definitions with the exponentials of a softmax over an outer axis stored for the
    sum and the quotient. Fused rows share them without this (`_find_shared_row`)."""
    out = dict(current)
    for t, now in current.items():
        found = now.body
        if not isinstance(found, Reduce) or not isinstance(found.body, Apply) or found.fn != "sum":
            continue
        if not any(isinstance(e, Apply) and e.fn == "exp" for e in parts(found.body)):
            continue
        for u, quotient in list(out.items()):
            if (env := _spread(t, now, found, quotient)) is None:
                continue
            assert quotient.body is not None
            body = placed(found.body, env)
            if not _within(quotient.body, body):
                continue
            held = Tensor("held", body.dtype, quotient.shape, quotient.axes, body)
            back = {b: a for a, b in env.items()}
            read = Load(held, tuple(back[a] for a in quotient.axes), body.dtype)
            total = Reduce(found.fn, found.axes, read, found.dtype)
            rest = _exchanged(quotient.body, body, Load(held, quotient.axes, body.dtype))
            out[t] = Tensor(now.name, now.dtype, now.shape, now.axes, total)
            out[u] = Tensor(quotient.name, quotient.dtype, quotient.shape, quotient.axes, rest)
            out = _before(out, t, held)
            break
    return out


def _before(current: Mapping[Tensor, Tensor], t: Tensor, new: Tensor) -> dict[Tensor, Tensor]:
    out: dict[Tensor, Tensor] = {}
    for x, now in current.items():
        if x is t:
            out[new] = new
        out[x] = now
    return out


def _spread(t: Tensor, now: Tensor, found: Reduce, reader: Tensor) -> dict[Axis, Axis] | None:
    """Return the map from the axes of a sum and its terms to those of a reader that reads each of
    them once, elementwise; None where it does not, or where the last axis is reduced."""
    if reader.body is None or reductions(reader.body):
        return None
    places = {x.index for x in loads(reader.body) if x.tensor is t}
    if len(places) != 1:
        return None
    (place,) = places
    own = [i for i in place if isinstance(i, Axis)]
    rest = [a for a in reader.axes if a not in own]
    if len(own) != len(place) or len(set(own)) != len(own) or not set(own) <= set(reader.axes):
        return None
    if [a.extent for a in rest] != [a.extent for a in found.axes] or reader.axes[-1] in rest:
        return None
    return dict(zip((*now.axes, *found.axes), (*own, *rest), strict=True))


def _within(e: Expr, part: Expr) -> bool:
    return e == part or (isinstance(e, Apply) and any(_within(a, part) for a in e.args))


def _put(e: Expr, t: Tensor, lead: int, shared: _Shared, done: Mapping[Tensor, Tensor]) -> Expr:
    """Return `e` with the shared row read where it was computed."""
    held = done.get(shared.tensor)
    if held is None:
        return e
    s = shared.tensor
    assert s.body is not None
    for r in reductions(t.body):
        if len(r.axes) == s.rank - lead:
            env = dict(zip(s.axes, (*t.axes[:lead], *r.axes), strict=True))
            e = _exchanged(e, placed(s.body, env), Load(held, tuple(env.values()), held.dtype))
    if t.rank == s.rank:
        env = dict(zip(s.axes, t.axes, strict=True))
        e = _exchanged(e, placed(s.body, env), Load(held, tuple(t.axes), held.dtype))
    return e


def _exchanged(e: Expr, old: Expr, new: Expr) -> Expr:
    if e == old:
        return new
    match e:
        case Apply(fn, args, dtype):
            return Apply(fn, tuple(_exchanged(a, old, new) for a in args), dtype)
        case Reduce(fn, axes, body, dtype):
            return Reduce(fn, axes, _exchanged(body, old, new), dtype)
    return e


def instead(e: Expr, done: Mapping[Tensor, Tensor]) -> Expr:
    """Return `e` with loads of tensors redirected to their replacements."""
    match e:
        case Load(t, index, dtype):
            return Load(done.get(t, t), index, dtype)
        case Apply(fn, args, dtype):
            return Apply(fn, tuple(instead(a, done) for a in args), dtype)
        case Reduce(fn, axes, body, dtype):
            return Reduce(fn, axes, instead(body, done), dtype)
    return e
