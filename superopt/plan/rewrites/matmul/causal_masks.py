"""Replace causal masks by comparisons of indices, so that attention kernels know which keys they
can skip: constant ones by the rules of rules/library/te/masks.rules, computed ones by inlining
them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from fractions import Fraction
from functools import cache, partial
from math import isfinite

import numpy as np

from superopt.kernels.loops.loop_transforms import reduction
from superopt.plan.lowering.kernel_stages import kernel_inputs
from superopt.plan.rewrites.reductions.row_fusion import replace_tensors
from superopt.rules.te.match import Context
from superopt.rules.te.rewrite import load_te_rules
from superopt.te.analysis.inline import Inliner, substitute_axes
from superopt.te.analysis.walk import computed_tensors, loads, reductions
from superopt.te.expr import index as te_index
from superopt.te.expr.dtype import BOOL, I64, INDEX
from superopt.te.expr.node import Apply, Expr, Load, Number, Reduce
from superopt.te.expr.tensor import Tensor, cast, compute

MAX_MASK_ELEMENTS = 1 << 26  # of a constant that is inspected
MAX_MASK_OPERATIONS = 24  # of a mask that each attention computes anew
Constants = Mapping[Tensor, Callable[[], np.ndarray]]
Diagonal = tuple[int, Number, Number]  # offset, the value below, the value above


def replace_causal_masks(
    current: Mapping[Tensor, Tensor], row_tensors: Collection[Tensor], constants: Constants
) -> dict[Tensor, Tensor]:
    """Return the definitions with causal masks replaced. row_tensors: those computed by rows, whose
    masks are inspected."""

    @cache
    def diagonal(t: Tensor) -> list[Diagonal]:
        found = _match_diagonal(t, constants[t])
        return [] if found is None else [found]

    def visible(t: Tensor, above: bool) -> list[int]:
        return [d for d, _, high in diagonal(t) if t.dtype == BOOL and bool(high) == above]

    context = Context(
        conditions={
            "visible_below": partial(visible, above=False),
            "visible_above": partial(visible, above=True),
            "diagonal": diagonal,
        },
        constants=constants,
    )
    rules = load_te_rules("masks")
    made: dict[Tensor, Tensor] = {}

    def stage(t: Tensor) -> Tensor:
        """Return the tensor, and the stages inlined in it, with masks replaced."""
        if t.body is None or t in current:
            return t
        if t not in made:
            made[t] = one(t)
        return made[t]

    def one(t: Tensor) -> Tensor:
        now = rules.rewrite_fully(t, context)
        assert now.body is not None
        stages = {x.tensor: stage(x.tensor) for x in loads(now.body)}
        return Tensor(t.name, t.dtype, t.shape, t.axes, replace_tensors(now.body, stages))

    return {t: one(now) if t in row_tensors else now for t, now in current.items()}


def inline_masks(
    current: Mapping[Tensor, Tensor], row_tensors: Collection[Tensor], kept: Collection[Tensor],
    constants: Constants,
) -> dict[Tensor, Tensor]:  # fmt: skip
    """Return the definitions with masks of positions, and of vectors such as which keys are
    padding, computed where attention reads them. Those that nothing else reads are left out.

    row_tensors: those computed by rows. kept: tensors that must be in memory.
    """
    attention = [t for t in row_tensors if t in current and reduction(current[t]) is not None]
    factors = {x for t in attention for x in _factors(current[t])}
    masks = {t: x for t, x in current.items() if t not in factors and _is_mask(x, current)}
    read = (x.tensor for now in masks.values() if now.body is not None for x in loads(now.body))
    ranges = ((t, _match_range(t, constants[t])) for t in dict.fromkeys(read) if t in constants)
    definitions = masks | {t: found for t, found in ranges if found is not None}
    inliner, out = Inliner(definitions), dict(current)
    made: dict[Tensor, Tensor] = {}

    def stage(t: Tensor) -> Tensor:
        if t.body is None or t in current:
            return t
        if t not in made:
            made[t] = one(t)
        return made[t]

    def one(t: Tensor) -> Tensor:
        assert t.body is not None
        body = inliner.expr(t.body)
        stages = {x.tensor: stage(x.tensor) for x in loads(body)}
        return Tensor(t.name, t.dtype, t.shape, t.axes, replace_tensors(body, stages))

    for t in attention:
        out[t] = one(current[t])
    for t in reversed(list(masks)):
        if t not in kept and not any(t in kernel_inputs(now, out) for now in out.values()):
            del out[t]
    return out


def _factors(t: Tensor) -> Iterator[Tensor]:
    """Yield the operands of an attention's products, which are copied so that they can be read by
    vectors."""
    for stage in computed_tensors([t]):
        for e in reductions(stage.body):
            if e.fn == "sum" and isinstance(e.body, Apply) and e.body.fn == "mul":
                yield from (x.tensor for x in loads(e.body))


def _is_mask(t: Tensor, current: Mapping[Tensor, Tensor]) -> bool:
    """True for a few operations on positions and on elements of tensors of lower rank."""
    if t.body is None or reduction(t) is not None:
        return False
    rank = sum(n != 1 for n in t.shape)
    operations = 0
    todo: list[Expr] = [t.body]
    while todo:
        e = todo.pop()
        operations += isinstance(e, Apply) and e.dtype != INDEX
        match e:
            case Apply(_, args):
                todo += args
            case Reduce():
                return False
            case Load(x, index) if x.body is not None or x in current:
                inner = current.get(x, x)
                assert inner.body is not None
                todo.append(substitute_axes(inner.body, dict(zip(inner.axes, index, strict=True))))
            case Load(x) if sum(n != 1 for n in x.shape) >= max(rank, 1):
                return False
        if operations > MAX_MASK_OPERATIONS:
            return False
    return True


def _match_range(t: Tensor, load: Callable[[], np.ndarray]) -> Tensor | None:
    """Return the definition of a constant that counts from some number on; None for another one."""
    long = [d for d, n in enumerate(t.shape) if n != 1]
    if t.dtype != I64 or len(long) != 1:
        return None
    values = load().ravel()
    first = int(values[0])
    if not (values == np.arange(first, first + values.size)).all():
        return None
    return compute(t.shape, lambda *i: cast(te_index.as_index(i[long[0]] + first), I64))


def _match_diagonal(t: Tensor, load: Callable[[], np.ndarray]) -> Diagonal | None:
    """Return (offset, below, above): the value is `below` where j <= i + offset, else `above`; None
    if the matrix is not of this form."""
    sides = [n for n in t.shape if isinstance(n, int) and n != 1]
    if len(sides) != 2 or sides[0] * sides[1] > MAX_MASK_ELEMENTS:
        return None
    a = load().reshape(sides)
    below, above = a[-1, 0], a[0, -1]
    counts = (a == below).sum(1)
    cut = np.flatnonzero((counts > 0) & (counts < sides[1]))
    if not cut.size:
        return None
    offset = int(counts[cut[0]] - 1 - cut[0])
    where = np.arange(sides[1])[None, :] <= np.arange(sides[0])[:, None] + offset
    if not (a == np.where(where, below, above)).all():
        return None
    return offset, _exact_number(below), _exact_number(above)


def _exact_number(x: np.generic) -> Number:
    if isinstance(x, np.bool_ | np.integer):
        return int(x)
    wide = float(x)
    return Fraction(wide) if isfinite(wide) else wide
