"""Bind the axes of patterns, and make axes for indices such as `g * m + c` and `unravel(k, *e)`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from superopt.rules.te.build import Value
from superopt.rules.te.term import AxisTerm, Lit, Rest, Var
from superopt.te.analysis.affine import affine
from superopt.te.analysis.inline import substitute_axes
from superopt.te.analysis.walk import subexpressions
from superopt.te.expr.index import as_index
from superopt.te.expr.node import Apply, Axis, Const, Expr, Load, Reduce


def bind_axes(
    patterns: Sequence[AxisTerm | Rest], axes: tuple[Axis, ...], env: dict[str, Value]
) -> Iterator[dict[str, Value]]:
    """Yield the extensions of `env` with the patterns bound to the axes, in order."""
    if not patterns:
        if not axes:
            yield env
        return
    first, *others = patterns
    if isinstance(first, Rest):
        for n in range(len(axes) + 1):
            yield from bind_axes(others, axes[n:], env)
        return
    counts = range(len(axes) + 1) if first.is_run else range(1, min(len(axes), 1) + 1)
    for n in counts:
        own = axes[:n]
        if not first.is_run and env.get(first.name, own[0]) != own[0]:
            continue
        more = env | {first.name: own if first.is_run else own[0]}
        match first.extent:
            case Var(name, None):
                extents = tuple(a.size for a in own)
                more[name] = extents if first.is_run else extents[0]
                if env.get(name, more[name]) != more[name]:
                    continue
            case Lit(v) if own[0].extent != v:
                continue
        yield from bind_axes(others, axes[n:], more)


def join_axes(e: Expr, index: Expr) -> tuple[Axis, Expr] | None:
    """Return an axis, and `e` with it in place of an index a * n + b for axes a and b < n; None for
    another index."""
    form = affine(index)
    if form is None or form.base or len(form.terms) != 2:
        return None
    (b, _), (a, n) = sorted(form.terms, key=lambda term: term[1])
    if form.coefficient(b) != 1 or n != b.size:
        return None
    one = Axis("joined", a.size * n)
    env: dict[Axis, Expr] = {a: as_index(one // n), b: as_index(one % n)}
    out = replace_index(substitute_axes(e, env), as_index(one // n * n + one % n), one)
    return one, out


def digit_axes(a: Axis, e: Expr) -> list[Axis]:
    """Return an axis for each digit by which `e` reads an axis, numbered from the last one; only
    the axis itself if `e` reads it otherwise."""
    cuts = _digit_boundaries(a, e)
    sizes = [high // low for low, high in pairwise(cuts)]
    return [Axis(f"{a.name}.{n}", sizes[n]) for n in reversed(range(len(sizes)))] or [a]


def _digit_boundaries(a: Axis, body: Expr) -> list[int]:
    """Return 1, ..., extent, where each divides the next: the divisors of the axis; an empty list
    if the axis is read otherwise."""
    cuts = {1}
    for e in subexpressions(body):
        match e:
            case Apply("floordiv", (x, Const(d))) if x == a:
                cuts.add(int(d))
            case Apply("mod", (x, Const(m))) if x == a:
                cuts.add(int(m))
            case Apply("mod", (Apply("floordiv", (x, Const(d))), Const(m))) if x == a:
                cuts |= {int(d), int(d) * int(m)}
    found = sorted(cuts)
    if found[-1] != a.size:
        found.append(a.size)
    return found if all(high % low == 0 for low, high in pairwise(found)) else []


def replace_index(e: Expr, index: Expr, replacement: Expr) -> Expr:
    """Return `e` with `replacement` in place of `index` in loads."""
    match e:
        case Load(t, at, dtype):
            return Load(t, tuple(replacement if i == index else i for i in at), dtype)
        case Apply(fn, args, dtype):
            return Apply(fn, tuple(replace_index(a, index, replacement) for a in args), dtype)
        case Reduce(fn, axes, body, dtype):
            return Reduce(fn, axes, replace_index(body, index, replacement), dtype)
    return e
