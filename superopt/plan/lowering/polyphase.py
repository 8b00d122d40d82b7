"""Split sums of which only every s-th term counts into several dense sums (polyphase
decomposition).

A transposed convolution of stride s adds to output o the terms k for which (o - k + pad) % s is 0.
For the outputs o = s i + r these are every s-th k, whatever i is: phase r is a convolution of
stride 1 by a part of the kernel (Vaidyanathan, Multirate systems and filter banks, 1993, section
4.3). Phases are written in place in the result; if the stride exceeds the kernel, some are empty
sums. The terms of a phase are those of the rule restrict-sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import gcd, prod

from superopt.rules.te.match import Context
from superopt.rules.te.rewrite import load_te_rules
from superopt.te.analysis.inline import substitute_axes
from superopt.te.analysis.walk import reductions
from superopt.te.expr import index
from superopt.te.expr.node import Apply, Axis, Dim, Expr, Reduce
from superopt.te.expr.tensor import Tensor

MAX_PHASES = 64  # phases
# of a sum: their number, the distance of neighbours (1 if there are none), the first one
Terms = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class StridedPart:
    """A tensor written into another one, as its elements begin + step * i."""

    tensor: Tensor
    begin: tuple[Dim, ...]
    step: tuple[int, ...]


# tensors without an expression, and what is written into them
WrittenParts = Mapping[Tensor, Sequence[StridedPart]]


@dataclass(frozen=True, slots=True)
class _StrideCondition:
    """Terms count where (o + factor k + base) % step is 0, for an axis o of the result and k of the
    sum."""

    o: Axis
    k: Axis
    factor: int
    base: int
    step: int


def split_phases(t: Tensor) -> list[StridedPart]:
    """Return the phases of a tensor; an empty list if its sum has no such terms."""
    found = reductions(t.body)
    if len(found) != 1 or found[0].fn != "sum" or t.body is None:
        return []
    (total,) = found
    found_conditions = (
        _StrideCondition(env["o"], env["k"], env["f"], env["b"], env["s"])  # type: ignore[arg-type]
        for env in load_te_rules("reductions").occurrences("strided", total.body)
    )
    rules = [r for r in found_conditions if r.o in t.axes and r.k in total.axes]
    if not rules or len({r.o for r in rules}) < len(rules):
        return []
    if prod(r.step for r in rules) > MAX_PHASES:
        return []
    every = product(*(range(min(r.step, r.o.size)) for r in rules))
    return [_build_phase(t, dict(zip(rules, rests, strict=True))) for rests in every]


def _build_phase(t: Tensor, rests: dict[_StrideCondition, int]) -> StridedPart:
    begin, step = [0] * t.rank, [1] * t.rank
    terms: dict[Axis, Terms] = {}
    for r, rest in rests.items():
        d = t.axes.index(r.o)
        begin[d], step[d] = rest, r.step
        counts = [n for n in range(r.k.size) if (rest + r.factor * n + r.base) % r.step == 0]
        apart = r.step // gcd(r.factor, r.step) if len(counts) > 1 else 1
        terms[r.k] = len(counts), apart, counts[0] if counts else 0
    sizes = [
        -(-(a.size - n) // by) if by > 1 else a.size
        for a, n, by in zip(t.axes, begin, step, strict=True)
    ]
    return strided_part("phase", t, begin, step, sizes, terms)


def strided_part(
    name: str,
    t: Tensor,
    begin: Sequence[int],
    step: Sequence[int],
    sizes: Sequence[int],
    terms: Mapping[Axis, Terms],
) -> StridedPart:
    """Return the part that consists of the elements begin + step * i. terms: those of its sum that
    count for these elements."""
    cut = {k: some for k, some in terms.items() if some != (k.size, 1, 0)}
    context = Context(
        conditions={
            "vanishes": lambda _: any(count == 0 for count, _, _ in terms.values()),
            "terms_that_count": lambda k: [cut[k]] if k in cut else [],
        }
    )
    body = load_te_rules("reductions", "drop-sum", "restrict-sum").rewrite_fully(t, context).body
    assert body is not None
    axes = tuple(Axis(a.name, n) for a, n in zip(t.axes, sizes, strict=True))
    places = zip(t.axes, axes, begin, step, strict=True)
    env: dict[Axis, Expr] = {a: index.as_index(new * by + n) for a, new, n, by in places}
    part = Tensor(name, t.dtype, tuple(sizes), axes, substitute_axes(body, env))
    return StridedPart(part, tuple(begin), tuple(step))


def replace_reduction(e: Expr, old: Reduce, new: Expr) -> Expr:
    if e == old:
        return new
    if isinstance(e, Apply):
        return Apply(e.fn, tuple(replace_reduction(a, old, new) for a in e.args), e.dtype)
    return e
