"""Find products that attention to a cache limits to its valid keys.

s[i, t] = sum(q[i, c] * k[t, c] for c)
w[i, t] = softmax(s[i, t] if t < valid and ... else -inf)
y[i, d] = sum(w[i, t] * v[t, d] for t)

From `valid` on, w is 0 and s is not read: y needs no more terms, and s no more elements. So the
work follows the number of valid keys, and what the cache holds behind them has no effect.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from superopt.kernels.algorithms.contraction import match_contraction
from superopt.kernels.loops.loop_transforms import reduction
from superopt.plan.lowering.kernel_stages import kernel_inputs, kernel_stages
from superopt.te.analysis.inline import substitute_axes
from superopt.te.analysis.walk import index_axes, loads, subexpressions
from superopt.te.expr.dtype import BOOL, I64
from superopt.te.expr.node import Apply, Axis, Const, Expr, Load, Reduce
from superopt.te.expr.tensor import Tensor

Definitions = Mapping[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class KeyLimit:
    """Elements along an axis of a definition, or of its reduction, that need not be computed: those
    from `end` on, an i64 expression of the definition's axes. is_summed: the axis is that of the
    reduction. keys: None; or the axis is that of a stage of the definition, the only one that reads
    this tensor. rows: None; or the tensors in memory, with the axis last, of which stages of the
    definition compute the weights that are summed."""

    axis: Axis
    end: Expr
    is_summed: bool = False
    keys: Tensor | None = None
    rows: tuple[Tensor, ...] | None = None


def find_key_limits(
    definitions: Definitions, constants: Collection[Tensor], kept: Collection[Tensor]
) -> dict[Tensor, list[KeyLimit]]:
    """Return the limits of definitions. kept: tensors of which all elements are needed."""
    readers: dict[Tensor, list[Tensor]] = {}
    for t, now in definitions.items():
        for x in kernel_inputs(now, definitions):
            readers.setdefault(x, []).append(t)
    order = {t: n for n, t in enumerate(definitions)}
    out: dict[Tensor, list[KeyLimit]] = {}

    def add(t: Tensor, x: KeyLimit) -> None:
        """Add a limit that is known when the kernel runs."""
        known = all(order.get(load.tensor, -1) < order[t] for load in loads(x.end))
        if known and x.axis not in index_axes(x.end):
            out.setdefault(t, []).append(x)

    for t, now in definitions.items():
        load = _weight_load(now, constants)
        row = None if load is None else definitions.get(load.tensor, load.tensor)
        end = None if row is None or row.body is None else zero_from(row, definitions)
        if load is None or row is None or end is None:
            continue
        over = load.index[-1]
        assert isinstance(over, Axis)
        own = substitute_axes(end, dict(zip(row.axes, load.index, strict=True)))
        fused = load.tensor not in definitions
        stages = kernel_stages(row, definitions)[:-1] if fused else []
        found = [
            s
            for s in (*stages, *kernel_inputs(row, definitions))
            if s.rank == row.rank
            and match_contraction(definitions.get(s, s), constants) is not None
            and _reads_below(row, s, end, definitions)
        ]
        others = {t.shape[-1], *(a.extent for s in found if s in stages for a in _summed_axes(s))}
        rows = tuple(s for s in found if s in definitions)
        is_unique = fused and over.extent not in others
        add(t, KeyLimit(over, own, is_summed=True, rows=rows if is_unique else None))
        reader = t if fused else load.tensor
        for s in found:
            scores, in_memory = definitions.get(s, s), s in definitions
            c = match_contraction(scores, constants)
            assert c is not None
            if in_memory and (s in kept or readers[s] != [reader]):
                continue
            if in_memory:
                at = dict(zip(row.axes, scores.axes, strict=True))
                add(s, KeyLimit(scores.axes[-1], substitute_axes(end, at)))
            else:
                add(t, KeyLimit(scores.axes[-1], own, keys=c.b.tensor))
            copy = _limit_of_copy(c.b, scores, row, end, definitions)
            own_reader = s if in_memory else t
            if copy and c.b.tensor not in kept and readers[c.b.tensor] == [own_reader]:
                add(c.b.tensor, copy)
    return out


def _summed_axes(t: Tensor) -> Sequence[Axis]:
    c = reduction(t)
    return () if c is None else c.axes


def _limit_of_copy(
    keys: Load, scores: Tensor, row: Tensor, end: Expr, definitions: Definitions
) -> KeyLimit | None:
    """Return the limit of a copy of the keys of which all readers are limited."""
    copy = definitions.get(keys.tensor)
    if copy is None:
        return None
    pairs = zip(keys.index, copy.axes, strict=True)
    axes: dict[Axis, Axis] = {a: b for a, b in pairs if isinstance(a, Axis)}
    own = substitute_axes(end, dict(zip(row.axes, scores.axes, strict=True)))
    if scores.axes[-1] not in axes or not index_axes(own) <= axes.keys():
        return None
    return KeyLimit(axes[scores.axes[-1]], substitute_axes(own, axes))


def _weight_load(t: Tensor, constants: Collection[Tensor]) -> Load | None:
    """Return the operand of a product that is read along the axis that is summed over, and no other
    axis of that operand is summed."""
    over, c = reduction(t), match_contraction(t, constants)
    if over is None or c is None or len(over.axes) != 1:
        return None
    return c.a if c.a.tensor.rank and c.a.index[-1] == over.axes[0] else None


def zero_from(row: Tensor, definitions: Definitions) -> Expr | None:
    """Return the index along the last axis from which on all elements are 0; None if unknown."""
    assert row.body is not None
    found = _masked_value(row.body, row.axes[-1], definitions)
    return found[1] if found is not None and found[0] == 0 else None


def _masked_value(e: Expr, t: Axis, definitions: Definitions) -> tuple[float, Expr] | None:
    """Return the value, 0 or -inf, that `e` has from some index `t` on, and that index.

    A row of which all elements are masked is NaN with and without the limit: it has one key.
    """

    def value(e: Expr) -> tuple[float, Expr] | None:
        match e:
            case Apply("select", (guard, yes, no)):
                ends = guard_ends(guard, t, definitions)
                if ends and isinstance(no, Const) and no.value in (0, -math.inf):
                    return float(no.value), ends[0]
                inner = value(yes)
                same = isinstance(no, Const) and inner is not None and no.value == inner[0]
                return inner if same else None
            case Apply("exp" | "exp_below", (x,)):
                found = value(x)
                return (0.0, found[1]) if found and found[0] == -math.inf else None
            case Apply("sub", (x, y)) if not _depends_on(y, t):
                found = value(x)
                return found if found and found[0] == -math.inf else None
            case Apply("mul", (x, y)):
                for a, b in ((x, y), (y, x)):
                    found = value(a)
                    if found and found[0] == 0 and not _depends_on(b, t):
                        return found
                return None
            case Apply("div", (x, y)) if not _depends_on(y, t):
                found = value(x)
                return found if found and found[0] == 0 else None
            case Load(x, index) if x.body is not None and x not in definitions:
                return value(_stage_element(x, index))
        return None

    return value(e)


def _depends_on(e: Expr, t: Axis) -> bool:
    return any(x == t for x in subexpressions(e))


def _stage_element(x: Tensor, index: Sequence[Expr]) -> Expr:
    assert x.body is not None
    return substitute_axes(x.body, dict(zip(x.axes, index, strict=True)))


def guard_ends(guard: Expr, t: Expr, definitions: Definitions) -> list[Expr]:
    """Return indices, as i64, such that the guard fails where `t` is not below one of them."""
    match guard:
        case Apply("and", args):
            return [end for g in args for end in guard_ends(g, t, definitions)]
        case Apply("lt", (x, end)) if _is_position(x, t, definitions):
            return [] if isinstance(t, Axis) and t in index_axes(end) else [end]
        case Load(x, index) if x.dtype == BOOL:
            found = definitions.get(x, x)
            if found.body is not None and found.rank == len(index):
                return guard_ends(_stage_element(found, index), t, definitions)
    return []


def _is_position(e: Expr, t: Expr, definitions: Definitions) -> bool:
    """True if `e` is the index `t` as i64, perhaps from a tensor of positions."""
    match e:
        case Apply("cast", (x,), dtype):
            return dtype == I64 and x == t
        case Load(x, index):
            found = definitions.get(x, x)
            if found.body is not None and found.rank == len(index):
                return _is_position(_stage_element(found, index), t, definitions)
    return False


def _reads_below(row: Tensor, s: Tensor, end: Expr, definitions: Definitions) -> bool:
    """True if a row reads elements of `s` only below `end` along the last axis."""

    def visit(e: Expr, guards: tuple[Expr, ...]) -> Iterator[bool]:
        match e:
            case Apply("select", (guard, yes, no)):
                yield from visit(guard, guards)
                yield from visit(yes, (*guards, guard))
                yield from visit(no, guards)
            case Apply(_, args):
                for a in args:
                    yield from visit(a, guards)
            case Reduce(_, _, body):
                yield from visit(body, guards)
            case Load(x, index) if x is s:
                yield any(end in guard_ends(g, index[-1], definitions) for g in guards)
            case Load(x, index) if x.body is not None and x not in definitions:
                yield from visit(_stage_element(x, index), guards)

    assert row.body is not None
    return all(visit(row.body, ()))
