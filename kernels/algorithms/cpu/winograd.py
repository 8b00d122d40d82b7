"""Winograd convolution: Winograd, Arithmetic complexity of computations, 1980; Lavin and Gray,
arXiv:1509.09308, section 4.

For m outputs of r taps, a = m + r - 1 products instead of m r; in two dimensions the product of
both. Tiles of the image are transformed (v), multiplied with the transformed filter and summed over
channels (s), and the sums are transformed back (y), by matrices A and B for rows, D and E for
columns:

    d[.., x, j]  = sum(B[x, i] * image[.., i, j] for i)
    v[x, z, ..]  = sum(E[z, j] * d[.., x, j] for j)
    s[x, z, .., k] = sum(v[x, z, .., c] * u[x, z, k, c] for c)
    o[.., i, z]  = sum(A[i, x] * s[x, z, ..] for x)
    y[.., i, j]  = sum(D[j, z] * o[.., i, z] for z)

At stride s, a = s m + r - s products: each phase of the input is a convolution of its own
(`cook_toom.transform_matrices`), and equal matrices u[x, z] are stored once.

Along a side with one tap nothing is transformed: the tile is 1 there, too.

If m does not divide a side, the last tile overlaps and recomputes some outputs. A dilated
convolution has tiles of every d-th output.
"""

from __future__ import annotations

from superopt.kernels.algorithms.contraction import Contraction, input_factor
from superopt.kernels.algorithms.cpu.cook_toom import (
    distinct_rows,
    to_array,
    transform_matrices,
)
from superopt.kernels.algorithms.cpu.tiled_convolution import (
    TiledConvolution,
    extended_tile_counts,
    tile_begin,
    tile_counts,
    tile_store_index,
)
from superopt.kernels.algorithms.cpu.winograd_plans import Plan, plan_traffic
from superopt.kernels.loops.layout import Layout, ScatteredLayout
from superopt.kernels.loops.loop_nest import replace_reduction
from superopt.kernels.loops.loop_transforms import reduction
from superopt.kernels.loops.schedule import Schedule, parse_schedule
from superopt.kernels.loops.substitution import (
    AlgorithmForm,
    replace_loads,
    scatter_layout,
    substitute_and_fold,
)
from superopt.te.expr import index
from superopt.te.expr.dtype import INDEX
from superopt.te.expr.node import Expr
from superopt.te.expr.tensor import Tensor, compute, reduce_sum


def winograd_form(
    t: Tensor,
    c: Contraction,
    p: TiledConvolution,
    plan: Plan,
    layout: Layout | ScatteredLayout,
    lanes: int,
    threads: int = 1,
) -> AlgorithmForm:
    """Return the tensor by F(m x m, r x s), for a window of r x s. threads: that share it."""
    found = reduction(t)
    assert found is not None
    kind = found.dtype
    (given, n), k, (h, w) = p.stack_counts, p.k.size, p.output_sides
    rows_of_image, _ = tile_counts(p, plan.m)
    (down, right), least = p.dilations, plan.rows if plan.separate else plan.block
    high, wide = extended_tile_counts(p, plan.m, least, plan.columns)
    (a, b), (mh, mw) = p.input_tile_sides(plan.m), p.tile_sides(plan.m)
    table_b, table_a = Tensor("B", kind, (a, a)), Tensor("A", kind, (mh, a))
    table_e, table_d = Tensor("E", kind, (b, b)), Tensor("D", kind, (mw, b))
    high_u, wide_u = (distinct_rows(*form) for form in p.forms(plan.m))
    u = Tensor("u", kind, (high_u, wide_u, k, *p.reduction_sizes))
    factor = input_factor(found, c.a)

    def at(q: Expr, ch: Expr, i: Expr, j: Expr) -> Expr:
        env: dict[Expr, Expr] = dict(zip(factor.axes, p.input_index(q, ch, i, j), strict=True))
        return substitute_and_fold(factor.body, env)

    def image_row(q: Expr, y: Expr) -> tuple[Expr, Expr]:
        """Return the image and the row of tiles in it, of a row of tiles of a stack."""
        if not p.is_stacked:
            return q, y
        return index.as_index(y // rows_of_image), index.as_index(y % rows_of_image)

    def columns(q: Expr, y: Expr, x: Expr, xi: Expr, j: Expr, ch: Expr) -> Expr:
        q, y = image_row(q, y)
        top = tile_begin(y, h, mh, down) * p.strides[0] + p.begin[0]
        left = tile_begin(x, w, mw, right) * p.strides[1] + p.begin[1]
        column = left + j * right
        return reduce_sum(a, lambda i: table_b[xi, i] * at(q, ch, top + i * down, column))

    d = compute((given, high, wide, a, b, p.channels), columns, name="d")
    v = compute(
        (a, b, given, high, wide, p.channels),
        lambda xi, nu, q, y, x, ch: reduce_sum(b, lambda j: table_e[nu, j] * d[q, y, x, xi, j, ch]),
        name="v",
    )
    read = Tensor("v", kind, v.shape) if plan.separate else v

    def sums(xi: Expr, nu: Expr, q: Expr, y: Expr, x: Expr, o: Expr) -> Expr:
        i, j = (
            index.apply("min", (index.as_index(x), index.as_index(n - 1)), INDEX)
            for x, n in ((xi, high_u), (nu, wide_u))
        )
        if p.depth is None:
            return reduce_sum(
                p.reduction_sizes, lambda ch: read[xi, nu, q, y, x, ch] * u[i, j, o, ch]
            )
        return reduce_sum(
            p.reduction_sizes,
            lambda z, ch: read[xi, nu, p.summed_image(q, z), y, x, ch] * u[i, j, o, z, ch],
        )

    s = compute((a, b, n, high, wide, k), sums, name="s")
    rows = compute(
        (n, high, wide, mh, b, k),
        lambda q, y, x, i, nu, o: reduce_sum(a, lambda xi: table_a[i, xi] * s[xi, nu, q, y, x, o]),
        name="o",
    )

    def back(q: Expr, y: Expr, x: Expr, i: Expr, j: Expr, o: Expr) -> Expr:
        total = reduce_sum(b, lambda nu: table_d[j, nu] * rows[q, y, x, i, nu, o])
        q, y = image_row(q, y)
        row, column = tile_begin(y, h, mh, down) + i * down, tile_begin(x, w, mw, right) + j * right
        env = p.output_axes(q, o, index.as_index(row), index.as_index(column))
        held = Tensor("sum", kind, ())
        assert t.body is not None
        after = substitute_and_fold(replace_reduction(t.body, found, held, ()), env)
        return replace_loads(after, held, total)

    y = compute((n, high, wide, mh, mw, k), back, name="y")
    q, ty, tx, i, j, o = y.axes
    # a row of tiles is a chunk, in which columns are stored in order
    image, within = image_row(q, ty)
    row = tile_store_index(within, i, h, mh, down)
    place = tuple(
        p.output_axes(
            image, o, row, index.as_index(tile_begin(tx, w, mw, right) + j * right)
        ).values()
    )
    lies = scatter_layout(t, layout, y.axes, place)
    stages = d, v, s, rows, y
    if plan.separate:
        # The blocks of a symbolic number of rows are one.
        is_divided = isinstance(high, int) and plan.block < high
        panels_first = not is_divided or plan_traffic(p, plan, lanes, threads)[1]
        how = _channel_schedules(stages, plan, lanes, is_divided, panels_first)
    else:
        how = _row_schedules(stages, plan, lanes)
    by_rows, by_columns = (transform_matrices(*form) for form in p.forms(plan.m))
    tables = {
        table_b: to_array(by_rows[2]), table_a: to_array(by_rows[0]),
        table_e: to_array(by_columns[2]), table_d: to_array(by_columns[0]),
    }  # fmt: skip
    return AlgorithmForm(y, ((v, read),) if plan.separate else (), lies, how, tables, u)


WinogradStages = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
_TRANSFORM = "reorder(i0, i1, i2, i4, k0, i3, i5); unroll(k0); unroll(i3); vectorize(i5)"
_BACK = "i1, i2, i5.o.i, i3, k0, i4, i5.i); unroll(k0); unroll(i4); vectorize(i5.i)"


def _reduction_loops(sums: Tensor) -> str:
    found = reduction(sums)
    assert found is not None
    return ", ".join(a.name for a in found.axes)


def _row_schedules(stages: WinogradStages, plan: Plan, lanes: int) -> dict[Tensor, Schedule]:
    """Return schedules with rows of tiles at a time, and of these some output channels at a
    time."""
    d, v, s, rows, y = stages
    tile = f"split(i5, {lanes}); "
    how = {
        y: f"split(i1, {plan.block}); {tile}split(i5.o, {plan.vectors}); "
        f"reorder(i0, i1.o, i5.o.o, i1.i, i2, i5.o.i, i3, k0, i4, i5.i); "
        "unroll(k0); unroll(i4); vectorize(i5.i); parallel(i0); parallel(i1.o)",
        rows: f"compute_at(y, i5.o.i); {_TRANSFORM}",
        s: f"compute_at(y, i5.o.o); {tile}split(i3, {plan.rows}); split(i4, {plan.columns}); "
        f"reorder(i0, i1, i2, i3.o, i4.o, {_reduction_loops(s)}, i3.i, i4.i, i5.o, i5.i); "
        "unroll(i3.i); unroll(i4.i); unroll(i5.o); vectorize(i5.i)",
        v: f"compute_at(y, i1.o); {tile}reorder(i2, i3, i4, i5.o, i0, k0, i1, i5.i); "
        "unroll(k0); unroll(i1); vectorize(i5.i)",
        d: f"compute_at(v, i5.o); {_TRANSFORM}",
    }
    return {t: parse_schedule(text) for t, text in how.items()}


def _channel_schedules(
    stages: WinogradStages, plan: Plan, lanes: int, is_divided: bool, panels_first: bool
) -> dict[Tensor, Schedule]:
    """Return schedules with all tiles at a time, or blocks of their rows, for the output channels
    of a register tile."""
    d, v, s, rows, y = stages
    tile, panel = f"split(i5, {lanes}); ", "i5.o.o"
    loops, back, split = [panel], _BACK, ""
    if is_divided:
        split, back = f"split(i1, {plan.block}); ", _BACK.replace("i1", "i1.i", 1)
        loops = [panel, "i1.o"] if panels_first else ["i1.o", panel]
    how = {
        y: f"{split}{tile}split(i5.o, {plan.vectors}); reorder(i0, {', '.join(loops)}, {back}; "
        f"parallel(i0); {'; '.join(f'parallel({x})' for x in loops)}",
        rows: f"compute_at(y, i5.o.i); {_TRANSFORM}",
        s: f"compute_at(y, {loops[-1]}); {tile}split(i3, {plan.rows}); split(i4, {plan.columns}); "
        f"reorder(i0, i1, i2, i3.o, i4.o, {_reduction_loops(s)}, i3.i, i4.i, i5.o, i5.i); "
        "unroll(i3.i); unroll(i4.i); unroll(i5.o); vectorize(i5.i)",
        v: f"{tile}reorder(i2, i3, i4, i5.o, i0, k0, i1, i5.i); "
        "unroll(k0); unroll(i1); vectorize(i5.i); parallel(i2); parallel(i3); parallel(i4)",
        d: f"compute_at(v, i5.o); {_TRANSFORM}",
    }
    return {t: parse_schedule(text) for t, text in how.items()}
