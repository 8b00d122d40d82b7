"""Split long reductions with few results, such as the mean of an image, into partial reductions and
a kernel that combines these (split-K).

m[c] = f(sum(x[c, h, w] for h, w))
=>  s[p, c] = sum(x[c, p // q, p % q * d + r] for r)
m[c] = f(sum(s[p, c] for p))

Used on a GPU, where the programs that compute m would leave most multiprocessors idle. The first
axes of the reduction become the axis of the parts, so that each part reads contiguous memory.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import prod

from superopt.kernels.contraction import contraction
from superopt.kernels.transform import reduction
from superopt.plan.phases import replaced
from superopt.plan.within import needs
from superopt.te import index as ix
from superopt.te.expr import Tensor, both, compare, const, select
from superopt.te.fn import unit
from superopt.te.inline import placed
from superopt.te.node import Axis, Expr, Load, Reduce
from superopt.te.walk import loads

FOLDS = ("sum", "max", "min")
LONG, SHORT = 1024, 64  # terms of a reduction that is split, and of a part, at least
LEAST = 4  # parts
POOR = 4  # split unevenly if fewer parts than the wanted ones over this divide the reduction


def in_parts(
    current: Mapping[Tensor, Tensor],
    leads: Collection[Tensor],
    constants: Collection[Tensor],
    stay: Collection[Tensor],
    wanted: int,
) -> dict[Tensor, Tensor]:
    """Return the definitions with long reductions split; partial reductions come before their
    readers. row_tensors: what is computed row by row. materialized: what must be in memory itself.
    min_elements: elements of a result that occupy all multiprocessors."""
    readers: dict[Tensor, set[Tensor]] = {}
    for t, now in current.items():
        for x in needs(now, current):
            readers.setdefault(x, set()).add(t)
    out = dict(current)
    for t in current:
        now = out[t]  # it may read partial reductions by now
        total = reduction(now)
        if t in leads or total is None or total.fn not in FOLDS or _multiplies(now, constants):
            continue
        made = _apart(now, total, wanted)
        if made is None:
            continue
        each, again = made
        (reader,) = some if len(some := readers.get(t, set())) == 1 else (None,)
        if now.body == total and reader not in (None, *leads) and t not in stay:
            whole = _into(out[reader], t, again)  # type: ignore[index]
            if whole is not None:
                out = _instead(out, t, {each: each})
                out[reader] = whole  # type: ignore[index]
                continue
        assert now.body is not None
        body = replaced(now.body, total, again)
        out = _instead(
            out, t, {each: each, t: Tensor(now.name, now.dtype, now.shape, now.axes, body)}
        )
    return out


def _multiplies(now: Tensor, constants: Collection[Tensor]) -> bool:
    """True if it is a matrix product, which has a K-split of its own."""
    found = contraction(now, constants, 1)
    if found is None:
        return False
    return any(a.size > 1 for a in (*found.of_a, *found.of_b))


def _apart(t: Tensor, total: Reduce, wanted: int) -> tuple[Tensor, Reduce] | None:
    """Return the partial reductions, and the reduction that combines them; None where there are too
    few parts."""
    terms = prod(a.size for a in total.axes)
    count = max(prod(a.size for a in t.axes), 1)
    if terms < LONG or count >= wanted:
        return None
    want = min(-(-wanted // count), terms // SHORT)
    cuts: list[tuple[Axis, int, int]] = []  # axis, number of its parts, and their extent
    for a in total.axes:
        many, size = _cut(a.size, want)
        cuts.append((a, many, size))
        want = want // many if size == 1 else 1  # parts of later axes would not be contiguous
    count = prod(many for _, many, _ in cuts)
    if count < LEAST:
        return None
    part = Axis("part", count)
    env: dict[Axis, Expr] = {}
    rest: list[Axis] = []
    tests: list[Expr | bool] = []
    below = count
    for a, many, size in cuts:
        below //= many
        inner = Axis(f"{a.name}r", size)
        env[a] = ix.as_index(part // below % many * inner.size + inner)
        rest += [inner] if inner.size > 1 else []
        if inner.size == 1:
            env[a] = ix.as_index(part // below % many)
        if many * size > a.size:
            tests.append(compare("lt", env[a], a.size))
    axes = (part, *t.axes)
    nothing = const(unit(total.fn, total.dtype), total.body.dtype)
    term = select(both(*tests), placed(total.body, env), nothing)
    body = Reduce(total.fn, tuple(rest), term, total.dtype)
    each = Tensor("parts", total.dtype, tuple(a.size for a in axes), axes, body)
    again = Axis("parts", count)
    read = Load(each, (again, *t.axes), total.dtype)
    return each, Reduce(total.fn, (again,), read, total.dtype)


def _cut(n: int, want: int) -> tuple[int, int]:
    """Return (number of parts, their size) for n terms and at most `want` parts. Where the divisors
    of n give far fewer parts, the last part reaches beyond n."""
    many = max(d for d in range(1, min(n, want) + 1) if n % d == 0)
    if POOR * many > want:
        return many, n // many
    size = 1 << (-(-n // want) - 1).bit_length()
    return -(-n // size), size


def _into(reader: Tensor, t: Tensor, again: Reduce) -> Tensor | None:
    """Return a reader that only reduces `t` further by the same function, with the parts in its
    place; else None."""
    total = reduction(reader)
    if total is None or total.fn != again.fn or not isinstance(total.body, Load):
        return None
    assert reader.body is not None
    if total.body.tensor is not t or sum(x.tensor is t for x in loads(reader.body)) != 1:
        return None
    own = placed(again.body, dict(zip(t.axes, total.body.index, strict=True)))
    whole = Reduce(again.fn, (*total.axes, *again.axes), own, again.dtype)
    body = replaced(reader.body, total, whole)
    return Tensor(reader.name, reader.dtype, reader.shape, reader.axes, body)


def _instead(
    current: Mapping[Tensor, Tensor], t: Tensor, others: Mapping[Tensor, Tensor]
) -> dict[Tensor, Tensor]:
    """Return the definitions with `others` in place of `t`."""
    out: dict[Tensor, Tensor] = {}
    for x, now in current.items():
        out |= others if x is t else {x: now}
    return out
