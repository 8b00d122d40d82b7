"""Values that a reduction and its readers both compute, stored once and read by all of them.

They are the shared row of a row kernel, and the exponentials of a softmax over an outer axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from superopt.te.analysis.inline import substitute_axes
from superopt.te.analysis.walk import loads, reductions, subexpressions
from superopt.te.expr.node import Apply, Axis, Expr, Load, Reduce
from superopt.te.expr.tensor import Tensor


@dataclass(frozen=True, slots=True)
class SharedRow:
    """A row that is reduced, and that readers of the reduction recompute. first: the reduction."""

    tensor: Tensor
    first: Tensor


def find_shared_row(
    stages: Mapping[Tensor, Tensor], batch_rank: int, definition: Tensor
) -> SharedRow | None:
    """Return the row that a stage reduces and the result computes again; None if there is none.
    batch_rank: the number of leading axes that select a row."""
    assert definition.body is not None
    for x, stage in stages.items():
        for r in reductions(stage.body):
            if isinstance(r.body, Load) or len(r.axes) != definition.rank - batch_rank:
                continue
            body = substitute_axes(r.body, _axis_map(stage, r, definition, batch_rank))
            if _contains(definition.body, body):
                return SharedRow(
                    Tensor("shared", r.body.dtype, definition.shape, definition.axes, body), x
                )
    return None


def _axis_map(stage: Tensor, r: Reduce, definition: Tensor, batch_rank: int) -> dict[Axis, Expr]:
    """Return the map from the axes of a reduction to those of the result."""
    own = zip((*stage.axes[:batch_rank], *r.axes), definition.axes, strict=True)
    return {a: b for a, b in own}  # noqa: C416


def share_exponentials(current: Mapping[Tensor, Tensor]) -> dict[Tensor, Tensor]:
    """Return the definitions with the exponentials of a softmax over an outer axis stored for the
    sum and the quotient. Fused rows share them without this (`find_shared_row`)."""
    out = dict(current)
    for t, now in current.items():
        found = now.body
        if not isinstance(found, Reduce) or not isinstance(found.body, Apply) or found.fn != "sum":
            continue
        if not any(isinstance(e, Apply) and e.fn == "exp" for e in subexpressions(found.body)):
            continue
        for u, quotient in list(out.items()):
            if (env := _match_elementwise_reader(t, now, found, quotient)) is None:
                continue
            assert quotient.body is not None
            body = substitute_axes(found.body, env)
            if not _contains(quotient.body, body):
                continue
            held = Tensor("held", body.dtype, quotient.shape, quotient.axes, body)
            back = {b: a for a, b in env.items()}
            read = Load(held, tuple(back[a] for a in quotient.axes), body.dtype)
            total = Reduce(found.fn, found.axes, read, found.dtype)
            rest = _replace_expr(quotient.body, body, Load(held, quotient.axes, body.dtype))
            out[t] = Tensor(now.name, now.dtype, now.shape, now.axes, total)
            out[u] = Tensor(quotient.name, quotient.dtype, quotient.shape, quotient.axes, rest)
            out = _insert_before(out, t, held)
            break
    return out


def _insert_before(
    current: Mapping[Tensor, Tensor], t: Tensor, new: Tensor
) -> dict[Tensor, Tensor]:
    out: dict[Tensor, Tensor] = {}
    for x, now in current.items():
        if x is t:
            out[new] = new
        out[x] = now
    return out


def _match_elementwise_reader(
    t: Tensor, definition: Tensor, found: Reduce, reader: Tensor
) -> dict[Axis, Axis] | None:
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
    return dict(zip((*definition.axes, *found.axes), (*own, *rest), strict=True))


def _contains(e: Expr, subexpression: Expr) -> bool:
    return e == subexpression or (
        isinstance(e, Apply) and any(_contains(a, subexpression) for a in e.args)
    )


def read_shared_row(
    e: Expr, t: Tensor, batch_rank: int, shared: SharedRow, replacements: Mapping[Tensor, Tensor]
) -> Expr:
    """Return `e` with the shared row read where it was computed."""
    held = replacements.get(shared.tensor)
    if held is None:
        return e
    s = shared.tensor
    assert s.body is not None
    for r in reductions(t.body):
        if len(r.axes) == s.rank - batch_rank:
            env = dict(zip(s.axes, (*t.axes[:batch_rank], *r.axes), strict=True))
            e = _replace_expr(
                e, substitute_axes(s.body, env), Load(held, tuple(env.values()), held.dtype)
            )
    if t.rank == s.rank:
        env = dict(zip(s.axes, t.axes, strict=True))
        e = _replace_expr(e, substitute_axes(s.body, env), Load(held, tuple(t.axes), held.dtype))
    return e


def _replace_expr(e: Expr, old: Expr, new: Expr) -> Expr:
    if e == old:
        return new
    match e:
        case Apply(fn, args, dtype):
            return Apply(fn, tuple(_replace_expr(a, old, new) for a in args), dtype)
        case Reduce(fn, axes, body, dtype):
            return Reduce(fn, axes, _replace_expr(body, old, new), dtype)
    return e
