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

from superopt.kernels.algorithms.contraction import match_contraction
from superopt.kernels.loops.loop_transforms import reduction
from superopt.plan.lowering.kernel_stages import kernel_inputs
from superopt.plan.lowering.polyphase import replace_reduction
from superopt.te.analysis.inline import substitute_axes
from superopt.te.analysis.walk import loads
from superopt.te.expr import index
from superopt.te.expr.functions import identity_element
from superopt.te.expr.node import Axis, Expr, Load, Reduce
from superopt.te.expr.tensor import Tensor, compare, conjunction, const, select

SPLITTABLE_REDUCTIONS = ("sum", "max", "min")
MIN_SPLIT_TERMS, MIN_PART_TERMS = (
    1024,
    64,
)  # terms of a reduction that is split, and of a part, at least
MIN_PARTS = 4  # parts
MAX_DIVISOR_SHORTFALL = (
    4  # split unevenly if fewer parts than the wanted ones over this divide the reduction
)


def split_reductions(
    current: Mapping[Tensor, Tensor],
    row_tensors: Collection[Tensor],
    constants: Collection[Tensor],
    materialized: Collection[Tensor],
    min_elements: int,
) -> dict[Tensor, Tensor]:
    """Return the definitions with long reductions split; partial reductions come before their
    readers. row_tensors: what is computed row by row. materialized: what must be in memory itself.
    min_elements: elements of a result that occupy all multiprocessors."""
    readers: dict[Tensor, set[Tensor]] = {}
    for t, now in current.items():
        for x in kernel_inputs(now, current):
            readers.setdefault(x, set()).add(t)
    out = dict(current)
    for t in current:
        now = out[t]  # it may read partial reductions by now
        total = reduction(now)
        if (
            t in row_tensors
            or total is None
            or total.fn not in SPLITTABLE_REDUCTIONS
            or _is_matmul(now, constants)
        ):
            continue
        made = _split_reduction(now, total, min_elements)
        if made is None:
            continue
        each, again = made
        (reader,) = some if len(some := readers.get(t, set())) == 1 else (None,)
        if now.body == total and reader not in (None, *row_tensors) and t not in materialized:
            whole = _merge_into_reader(out[reader], t, again)  # type: ignore[index]
            if whole is not None:
                out = _replace_entry(out, t, {each: each})
                out[reader] = whole  # type: ignore[index]
                continue
        assert now.body is not None
        body = replace_reduction(now.body, total, again)
        out = _replace_entry(
            out, t, {each: each, t: Tensor(now.name, now.dtype, now.shape, now.axes, body)}
        )
    return out


def _is_matmul(definition: Tensor, constants: Collection[Tensor]) -> bool:
    """True if it is a matrix product, which has a K-split of its own."""
    found = match_contraction(definition, constants, 1)
    if found is None:
        return False
    return any(a.size > 1 for a in (*found.a_axes, *found.b_axes))


def _split_reduction(t: Tensor, total: Reduce, min_elements: int) -> tuple[Tensor, Reduce] | None:
    """Return the partial reductions, and the reduction that combines them; None where there are too
    few parts."""
    terms = prod(a.size for a in total.axes)
    count = max(prod(a.size for a in t.axes), 1)
    if terms < MIN_SPLIT_TERMS or count >= min_elements:
        return None
    want = min(-(-min_elements // count), terms // MIN_PART_TERMS)
    cuts: list[tuple[Axis, int, int]] = []  # axis, number of its parts, and their extent
    for a in total.axes:
        many, size = _part_sizes(a.size, want)
        cuts.append((a, many, size))
        want = want // many if size == 1 else 1  # parts of later axes would not be contiguous
    count = prod(many for _, many, _ in cuts)
    if count < MIN_PARTS:
        return None
    part = Axis("part", count)
    env: dict[Axis, Expr] = {}
    rest: list[Axis] = []
    tests: list[Expr | bool] = []
    below = count
    for a, many, size in cuts:
        below //= many
        inner = Axis(f"{a.name}r", size)
        env[a] = index.as_index(part // below % many * inner.size + inner)
        rest += [inner] if inner.size > 1 else []
        if inner.size == 1:
            env[a] = index.as_index(part // below % many)
        if many * size > a.size:
            tests.append(compare("lt", env[a], a.size))
    axes = (part, *t.axes)
    nothing = const(identity_element(total.fn, total.dtype), total.body.dtype)
    term = select(conjunction(*tests), substitute_axes(total.body, env), nothing)
    body = Reduce(total.fn, tuple(rest), term, total.dtype)
    each = Tensor("parts", total.dtype, tuple(a.size for a in axes), axes, body)
    again = Axis("parts", count)
    read = Load(each, (again, *t.axes), total.dtype)
    return each, Reduce(total.fn, (again,), read, total.dtype)


def _part_sizes(n: int, max_parts: int) -> tuple[int, int]:
    """Return (number of parts, their size) for n terms and at most `want` parts. Where the divisors
    of n give far fewer parts, the last part reaches beyond n."""
    many = max(d for d in range(1, min(n, max_parts) + 1) if n % d == 0)
    if MAX_DIVISOR_SHORTFALL * many > max_parts:
        return many, n // many
    size = 1 << (-(-n // max_parts) - 1).bit_length()
    return -(-n // size), size


def _merge_into_reader(reader: Tensor, t: Tensor, final: Reduce) -> Tensor | None:
    """Return a reader that only reduces `t` further by the same function, with the parts in its
    place; else None."""
    total = reduction(reader)
    if total is None or total.fn != final.fn or not isinstance(total.body, Load):
        return None
    assert reader.body is not None
    if total.body.tensor is not t or sum(x.tensor is t for x in loads(reader.body)) != 1:
        return None
    own = substitute_axes(final.body, dict(zip(t.axes, total.body.index, strict=True)))
    whole = Reduce(final.fn, (*total.axes, *final.axes), own, final.dtype)
    body = replace_reduction(reader.body, total, whole)
    return Tensor(reader.name, reader.dtype, reader.shape, reader.axes, body)


def _replace_entry(
    current: Mapping[Tensor, Tensor], t: Tensor, others: Mapping[Tensor, Tensor]
) -> dict[Tensor, Tensor]:
    """Return the definitions with `others` in place of `t`."""
    out: dict[Tensor, Tensor] = {}
    for x, now in current.items():
        out |= others if x is t else {x: now}
    return out
