"""Split long reductions with few results, such as the mean of an image, into partial reductions and
a kernel that combines these (split-K).

m[c] = f(sum(x[c, h, w] for h, w))
=>  s[p, c] = sum(x[c, p // q, p % q * d + r] for r)
m[c] = f(sum(s[p, c] for p))

Used on a GPU, where the programs that compute m would leave most multiprocessors idle. The first
axes of the reduction become the axis of the parts, so that each part reads contiguous memory.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from math import prod

from superopt.kernels.algorithms.contraction import match_contraction
from superopt.kernels.loops.loop_transforms import reduction
from superopt.plan.lowering.kernel_stages import kernel_inputs
from superopt.rules.te.match import Context
from superopt.rules.te.rewrite import load_te_rules
from superopt.te.analysis.walk import loads
from superopt.te.expr.tensor import Tensor

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
        count = max(prod(a.size for a in now.axes), 1)
        sizes = partial(_cuts, count=count, min_elements=min_elements)
        made = load_te_rules("reductions", "split-").rewrite(
            now, Context(conditions={"part_sizes": lambda *n, sizes=sizes: sizes(n)})
        )
        if made is None:
            continue
        (each,) = made.stored
        parts = {each: load_te_rules("reductions", "unit-").rewrite_fully(each, Context())}
        (reader,) = some if len(some := readers.get(t, set())) == 1 else (None,)
        if now.body == total and reader not in (None, *row_tensors) and t not in materialized:
            whole = _merge_into_reader(out[reader], t, made.tensor)  # type: ignore[index]
            if whole is not None:
                out = _replace_entry(out, t, parts)
                out[reader] = whole  # type: ignore[index]
                continue
        out = _replace_entry(out, t, parts | {t: made.tensor})
    return out


def _is_matmul(definition: Tensor, constants: Collection[Tensor]) -> bool:
    """True if it is a matrix product, which has a K-split of its own."""
    found = match_contraction(definition, constants, 1)
    if found is None:
        return False
    return any(a.extent != 1 for a in (*found.a_axes, *found.b_axes))


def _cuts(extents: Sequence[int], count: int, min_elements: int) -> list[Sequence[Sequence[int]]]:
    """Return the numbers of parts of the axes of a reduction and their sizes; nothing where there
    are too few parts. count: elements of the result."""
    terms = prod(extents)
    if terms < MIN_SPLIT_TERMS or count >= min_elements:
        return []
    want = min(-(-min_elements // count), terms // MIN_PART_TERMS)
    cuts: list[tuple[int, int]] = []
    for n in extents:
        many, size = _part_sizes(n, want)
        cuts.append((many, size))
        want = want // many if size == 1 else 1  # parts of later axes would not be contiguous
    return [tuple(zip(*cuts, strict=True))] if prod(p for p, _ in cuts) >= MIN_PARTS else []


def _part_sizes(n: int, max_parts: int) -> tuple[int, int]:
    """Return (number of parts, their size) for n terms and at most `want` parts. Where the divisors
    of n give far fewer parts, the last part reaches beyond n."""
    many = max(d for d in range(1, min(n, max_parts) + 1) if n % d == 0)
    if MAX_DIVISOR_SHORTFALL * many > max_parts:
        return many, n // many
    size = 1 << (-(-n // max_parts) - 1).bit_length()
    return -(-n // size), size


def _merge_into_reader(reader: Tensor, t: Tensor, split: Tensor) -> Tensor | None:
    """Return a reader that only reduces `t` further by the same function, with the parts in its
    place; else None."""
    assert reader.body is not None
    if sum(x.tensor is t for x in loads(reader.body)) != 1:
        return None
    made = load_te_rules("reductions", "merge-").rewrite(reader, Context({t: split}))
    return None if made is None else made.tensor


def _replace_entry(
    current: Mapping[Tensor, Tensor], t: Tensor, others: Mapping[Tensor, Tensor]
) -> dict[Tensor, Tensor]:
    """Return the definitions with `others` in place of `t`."""
    out: dict[Tensor, Tensor] = {}
    for x, now in current.items():
        out |= others if x is t else {x: now}
    return out
