"""Values that a reduction and its readers both compute, stored once and read by all of them.

They are the shared row of a row kernel, and the exponentials of a softmax over an outer axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, partial

from superopt.rules.te.build import as_tuple
from superopt.rules.te.match import Condition, Context
from superopt.rules.te.rewrite import load_te_rules
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
    for x, stage in stages.items():
        conditions: dict[str, Condition] = {
            "selects_row": lambda *a: len(a) == batch_rank,
            "stage": cache(partial(_stage_row, stage)),
        }
        made = load_te_rules("rows", "share-row").rewrite(definition, Context({}, conditions))
        if made is not None:
            return SharedRow(made.stored[0], x)
    return None


def _stage_row(stage: Tensor, *axes: Axis) -> list[Expr]:
    """Return the expression of a stage with these axes as its first ones."""
    assert stage.body is not None
    return [substitute_axes(stage.body, dict(zip(stage.axes, axes, strict=False)))]


def share_exponentials(current: Mapping[Tensor, Tensor]) -> dict[Tensor, Tensor]:
    """Return the definitions with the exponentials of a softmax over an outer axis stored for the
    sum and the quotient (the rule hold-exponentials). Fused rows share them without this
    (`find_shared_row`)."""
    out = dict(current)
    for t, (total, readers) in _exponential_sums(current).items():
        for u in readers:
            body, axes = out[u].body, out[u].axes
            places = {x.index for x in loads(body) if x.tensor is t} if body is not None else set()
            place = places.pop()
            if places or not axes or axes[-1] not in place:
                continue
            rules = load_te_rules("rows", "hold-exponentials")
            made = rules.rewrite(out[u], Context({t: current[t]}))
            if made is None:
                continue
            (held,), inner = made.stored, as_tuple(made.env["i"])
            own = dict(zip((*place, *inner), (*current[t].axes, *total.axes), strict=True))
            if not own.keys() >= {*axes} or any(own[a].extent != a.extent for a in axes):
                continue  # of a pad of the softmax: no sum is over the exponentials beyond
            read = Load(held, tuple(own[a] for a in axes), held.dtype)
            now = Reduce("sum", total.axes, read, total.dtype)
            out[t] = replace(current[t], body=now)
            out[u] = made.tensor
            out = _insert_before(out, t, held)
            break
    return out


def _exponential_sums(
    current: Mapping[Tensor, Tensor],
) -> dict[Tensor, tuple[Reduce, list[Tensor]]]:
    """Return the tensors that are sums with exponentials, and their readers without reductions."""
    out: dict[Tensor, tuple[Reduce, list[Tensor]]] = {}
    for t, now in current.items():
        match now.body:
            case Reduce("sum", _, body) as total:
                some = (isinstance(x, Apply) and x.fn == "exp" for x in subexpressions(body))
                if any(some):
                    out[t] = total, []
    for u, now in current.items() if out else ():
        if now.body is not None and not reductions(now.body):
            for t in {x.tensor for x in loads(now.body)} & out.keys():
                out[t][1].append(u)
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
