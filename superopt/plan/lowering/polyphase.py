"""Split sums of which only every s-th term counts into several dense sums (polyphase
decomposition).

A transposed convolution of stride s adds to output o the terms k for which (o - k + pad) % s is 0.
For the outputs o = s i + r these are every s-th k, whatever i is: phase r is a convolution of
stride 1 by a part of the kernel (Vaidyanathan, Multirate systems and filter banks, 1993, section
4.3). Phases are written in place in the result; if the stride exceeds the kernel, some are empty
sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import gcd, prod

from superopt.te.analysis import affine
from superopt.te.analysis.inline import substitute_axes
from superopt.te.analysis.walk import reductions
from superopt.te.expr import index
from superopt.te.expr.node import Apply, Axis, Const, Expr, Reduce
from superopt.te.expr.tensor import Tensor, const

MAX_PHASES = 64  # phases


@dataclass(frozen=True, slots=True)
class StridedPart:
    """A tensor written into another one, as its elements begin + step * i."""

    tensor: Tensor
    begin: tuple[int, ...]
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
    rules = [
        r
        for r in (_match_condition(e, t, total) for e in _equality_guards(total.body))
        if r is not None
    ]
    if not rules or len({r.o for r in rules}) < len(rules):
        return []
    if prod(r.step for r in rules) > MAX_PHASES:
        return []
    every = product(*(range(min(r.step, r.o.size)) for r in rules))
    return [_build_phase(t, total, dict(zip(rules, rests, strict=True))) for rests in every]


def _equality_guards(e: Expr) -> Iterator[Expr]:
    """Yield each equality test in an expression once."""
    stack, seen = [e], set[Expr]()
    while stack:
        e = stack.pop()
        match e:
            case Apply("eq", _) if e not in seen:
                seen.add(e)
                yield e
            case Apply(_, args):
                stack += args


def _match_condition(e: Expr, t: Tensor, total: Reduce) -> _StrideCondition | None:
    match e:
        case Apply("eq", (Apply("mod", (distance, Const(n))), Const(0))):
            pass
        case _:
            return None
    form = affine.affine(distance)
    if form is None or len(form.terms) != 2:
        return None
    own = [a for a, c in form.terms if a in t.axes and c == 1]
    over = [(a, c) for a, c in form.terms if a in total.axes]
    if len(own) != 1 or len(over) != 1:
        return None
    (o,), ((k, factor),) = own, over
    assert isinstance(o, Axis)
    assert isinstance(k, Axis)
    return _StrideCondition(o, k, factor, form.base, int(n))


def _build_phase(t: Tensor, total: Reduce, rests: dict[_StrideCondition, int]) -> StridedPart:
    assert t.body is not None
    begin, step = [0] * t.rank, [1] * t.rank
    axes, over = list(t.axes), list(total.axes)
    env: dict[Axis, Expr] = {}
    within: dict[Axis, Expr] = {}
    some = True  # whether any term counts
    for r, rest in rests.items():
        d, k = t.axes.index(r.o), total.axes.index(r.k)
        begin[d], step[d] = rest, r.step
        axes[d] = Axis(r.o.name, -(-(r.o.size - rest) // r.step))
        env[r.o] = index.as_index(axes[d] * r.step + rest)
        counts = [n for n in range(r.k.size) if (rest + r.factor * n + r.base) % r.step == 0]
        if not counts:
            some = False
            continue
        apart = r.step // gcd(r.factor, r.step)
        over[k] = Axis(r.k.name, len(counts))
        within[r.k] = index.as_index(over[k] * apart + counts[0])
    new = Reduce(total.fn, tuple(over), substitute_axes(total.body, within), total.dtype)
    body = replace_reduction(t.body, total, new if some else const(0, total.dtype))
    shape = tuple(a.extent for a in axes)
    return StridedPart(
        Tensor("phase", t.dtype, shape, tuple(axes), substitute_axes(body, env)),
        tuple(begin),
        tuple(step),
    )


def replace_reduction(e: Expr, old: Reduce, new: Expr) -> Expr:
    if e == old:
        return new
    if isinstance(e, Apply):
        return Apply(e.fn, tuple(replace_reduction(a, old, new) for a in e.args), e.dtype)
    return e
