"""Fuse row computations: reductions over a row and elementwise operators on it, as one kernel.

A softmax takes the maximum of each row, subtracts it, sums the exponentials, and divides by the
sum. One kernel does all of it while the row is in cache. The same holds for layer norm, RMS norm
and everything else of this form.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from superopt.plan.lowering.kernel_stages import kernel_inputs
from superopt.plan.rewrites.reductions.row_occupancy import has_few_long_rows
from superopt.plan.rewrites.reductions.shared_values import find_shared_row, read_shared_row
from superopt.rules.te.match import Context
from superopt.rules.te.rewrite import load_te_rules
from superopt.te.analysis.inline import substitute_axes
from superopt.te.analysis.walk import index_axes, loads, reductions, subexpressions
from superopt.te.expr.node import Apply, Axis, Dim, Expr, Load, Reduce
from superopt.te.expr.symbolic_int import hint
from superopt.te.expr.tensor import Tensor, compute

MAX_ROW_BYTES = 1 << 18  # of a row, and of intermediate results for it


@dataclass(slots=True)
class RowGroup:
    """A row kernel. root: the result. batch_rank: the number of its leading axes that select a row.
    stages: the tensors inlined in it, with their definitions."""

    root: Tensor
    batch_rank: int
    stages: dict[Tensor, Tensor] = field(default_factory=dict)


def fuse_rows(
    current: Mapping[Tensor, Tensor],
    materialized: Collection[Tensor],
    image_tensors: Collection[Tensor],
    parallel_rows: bool = False,
) -> tuple[dict[Tensor, Tensor], dict[Tensor, int]]:
    """Return the definitions with rows fused, and the number of leading axes that select a row of
    each fused tensor.

    materialized: the tensors that must be in memory. image_tensors: those not stored row by row.
    parallel_rows: each row is one of many programs, so that few long rows are not fused.
    """
    readers: dict[Tensor, set[Tensor]] = {}
    for t, now in current.items():
        for x in kernel_inputs(now, current):
            readers.setdefault(x, set()).add(t)
    out = dict(current)
    leads: dict[Tensor, int] = {}
    for t in reversed(list(current)):
        if t not in out or t.rank < 2 or t in image_tensors:
            continue
        group = grow_row_group(
            t, out, {*materialized, *image_tensors}, readers, parallel_rows=parallel_rows
        )
        if group is not None and not (
            parallel_rows and has_few_long_rows(group.root.shape, group.batch_rank)
        ):
            out[t] = fuse_group(group, current[t])
            leads[t] = group.batch_rank
            for x in group.stages:
                del out[x]
    return out, leads


def tensors_read(t: Tensor) -> set[Tensor]:
    return set() if t.body is None else {x.tensor for x in loads(t.body)}


def grow_row_group(
    t: Tensor,
    current: Mapping[Tensor, Tensor],
    materialized: Collection[Tensor],
    readers: Mapping[Tensor, set[Tensor]],
    allow_unit_axes: bool = False,
    parallel_rows: bool = False,
) -> RowGroup | None:
    """Return the row group of a result; None if it has no reduction over its rows. allow_unit_axes:
    row scalars may have other unit axes than the result's. parallel_rows: see `fuse_rows`;
    intermediate results need not fit into a cache then."""
    now = current[t]
    if reductions(now.body):
        return None
    found = (_row_batch_rank(x, current, t, allow_unit_axes) for x in tensors_read(now))
    lead = next((n for n in found if n is not None), None)
    if not lead:
        return None
    group = RowGroup(t, lead)
    more = True
    while more:
        more = False
        inside = {t, *group.stages}
        for x in {u for v in inside for u in tensors_read(current[v])} - inside:
            if x in materialized or x not in current or not readers[x] <= inside:
                continue
            if _is_row_tensor(x, current[x], t, lead, allow_unit_axes) and all(
                _reads_own_row(current[v], x, lead) for v in readers[x]
            ):
                group.stages[x] = current[x]
                more = True
    group.stages = {x: now for x, now in current.items() if x in group.stages}
    kept = sum(prod(_example_sizes(x)[lead:]) * max(x.dtype.bits // 8, 1) for x in group.stages)
    summed = any(reductions(x.body) for x in group.stages.values())
    return group if summed and (parallel_rows or kept <= MAX_ROW_BYTES) else None


def _example_sizes(t: Tensor) -> list[int]:
    return [hint(n) for n in t.sizes]


def _row_batch_rank(
    x: Tensor, current: Mapping[Tensor, Tensor], root: Tensor, allow_unit_axes: bool
) -> int | None:
    """Return how many leading axes of the result a reduction over its rows depends on."""
    if x not in current or len(reductions(current[x].body)) != 1:
        return None
    sizes = _example_sizes(root)
    leads = range(root.rank - 1, 0, -1)
    some = (
        n
        for n in leads
        if _is_row_scalar_shape(x.shape, root.shape, n, allow_unit_axes) and prod(sizes[n:]) > 1
    )
    return next(some, None)


def _is_row_scalar_shape(
    shape: Sequence[Dim], sizes: Sequence[Dim], batch_rank: int, allow_unit_axes: bool
) -> bool:
    """True if it has one number for each row."""
    rest = shape[batch_rank:]
    plain = shape[:batch_rank] == sizes[:batch_rank] and all(n == 1 for n in rest)
    return plain and (allow_unit_axes or len(rest) in (0, len(sizes) - batch_rank))


def _is_row_tensor(
    x: Tensor, definition: Tensor, root: Tensor, batch_rank: int, allow_unit_axes: bool
) -> bool:
    """True for one number for each row, or one element for each element of the result."""
    found = reductions(definition.body)
    if not found and x.shape == root.shape:
        return True
    if not _is_row_scalar_shape(x.shape, root.shape, batch_rank, allow_unit_axes):
        return False
    if not found:
        return True
    # A matrix product has a kernel of its own.
    return len(found) == 1 and (
        all(_reads_row_element(e, definition, batch_rank) for e in loads(found[0].body))
        or all(
            _covers_row_axes(e, definition, batch_rank)
            for e in loads(found[0].body)
            if set(found[0].axes) & _load_axes(e)
        )
        or not _is_matmul(found[0])
    )


def _is_matmul(found: Reduce) -> bool:
    """True if both factors of a product vary along the reduced axes, as in a matrix product."""
    return any(
        e.fn == "mul" and all(set(found.axes) & {*index_axes(a), *_nested_axes(a)} for a in e.args)
        for e in subexpressions(found.body)
        if isinstance(e, Apply)
    )


def _nested_axes(e: Expr) -> set[Expr]:
    return {a for x in loads(e) for a in _load_axes(x)}


def _reads_row_element(e: Load, definition: Tensor, batch_rank: int) -> bool:
    """True if it reads the row's own element, or the same one for all rows."""
    own = zip(e.index, definition.axes, e.tensor.shape, range(batch_rank), strict=False)
    return all(i == a or n == 1 for i, a, n, _ in own) or not set(
        definition.axes[:batch_rank]
    ) & _load_axes(e)


def _covers_row_axes(e: Load, definition: Tensor, batch_rank: int) -> bool:
    """True if it reads the row's own element in any layout, such as the channels of a pixel."""
    return {a for a in definition.axes[:batch_rank] if a.extent != 1} <= _load_axes(e)


def _reads_own_row(definition: Tensor, x: Tensor, batch_rank: int) -> bool:
    """True if it reads only its own row of `x`."""
    assert definition.body is not None
    return all(
        all(
            i == a or n == 1
            for i, a, n in zip(
                e.index[:batch_rank],
                definition.axes[:batch_rank],
                x.shape[:batch_rank],
                strict=True,
            )
        )
        for e in loads(definition.body)
        if e.tensor is x
    )


def _load_axes(e: Load) -> set[Expr]:
    return {a for i in e.index for a in _axes_in_index(i)}


def _axes_in_index(e: Expr) -> Sequence[Expr]:
    match e:
        case Axis():
            return [e]
        case Apply(_, args):
            return [a for x in args for a in _axes_in_index(x)]
    return []


def fuse_group(group: RowGroup, definition: Tensor) -> Tensor:
    """Return the result with its stages inlined, each reading the others."""
    done: dict[Tensor, Tensor] = {}
    shared = find_shared_row(group.stages, group.batch_rank, definition)

    def made(t: Tensor) -> Tensor:
        assert t.body is not None
        body = t.body
        if shared is not None:
            body = read_shared_row(body, t, group.batch_rank, shared, done)
        return Tensor(t.name, t.dtype, t.shape, t.axes, replace_tensors(body, done))

    for n, x in enumerate(group.stages):
        if shared is not None and shared.first is x:
            held = shared.tensor
            assert held.body is not None
            done[held] = Tensor(
                "shared", held.dtype, held.shape, held.axes, replace_tensors(held.body, done)
            )
        stage = made(group.stages[x])
        done[x] = Tensor(f"{x.name}{n}", x.dtype, x.shape, stage.axes, stage.body)
    out = made(definition)
    assert out.body is not None
    body = _hoist_row_scalars(out.body, definition, group.batch_rank)
    return Tensor("row", out.dtype, out.shape, out.axes, body)


def _hoist_row_scalars(e: Expr, definition: Tensor, batch_rank: int) -> Expr:
    """Return `e` with values that are equal for a whole row computed once. Division by such a value
    becomes multiplication by its finite reciprocal (the rule divide-by-row)."""
    axes = definition.axes[:batch_rank]
    hoisted: dict[Expr, Tensor] = {}

    def number(x: Expr) -> Expr:
        if x not in hoisted:
            new = compute(
                definition.shape[:batch_rank],
                lambda *i: substitute_axes(x, dict(zip(axes, i, strict=True))),
                name=f"number{len(hoisted)}",
            )
            hoisted[x] = new
        return Load(hoisted[x], axes, x.dtype)

    def once(x: Expr) -> bool:
        some = any(load.tensor.body is not None for load in loads(x))
        return some and x.dtype.is_float and index_axes(x) <= set(axes)

    def hoist(e: Expr) -> Expr:
        match rules.rewrite_root(e, context) or e:
            case Apply("mul", (x, inverse), dtype) as product if product is not e:
                return Apply("mul", (hoist(x), number(inverse)), dtype)
            case Apply(fn, args, dtype):
                return number(e) if once(e) else Apply(fn, tuple(map(hoist, args)), dtype)
        return e

    rules = load_te_rules("rows", "divide-by-row")
    context = Context(conditions={"per_row": once}, sees_stages=True)
    return hoist(e)


def replace_tensors(e: Expr, replacements: Mapping[Tensor, Tensor]) -> Expr:
    """Return `e` with loads of tensors redirected to their replacements."""
    match e:
        case Load(t, index, dtype):
            return Load(replacements.get(t, t), index, dtype)
        case Apply(fn, args, dtype):
            return Apply(fn, tuple(replace_tensors(a, replacements) for a in args), dtype)
        case Reduce(fn, axes, body, dtype):
            return Reduce(fn, axes, replace_tensors(body, replacements), dtype)
    return e
