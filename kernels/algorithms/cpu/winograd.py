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

Integers (`Integers`) are transformed by matrices of integers: d and v are int16, sums are of pairs
of channels, and y is divided by what the matrices are multiplied with.
"""

from __future__ import annotations

from superopt.kernels.algorithms.contraction import Contraction, input_factor
from superopt.kernels.algorithms.cpu.cook_toom import (
    distinct_rows,
    integer_matrices,
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
from superopt.kernels.algorithms.cpu.winograd_integers import Integers
from superopt.kernels.algorithms.cpu.winograd_plans import Plan, plan_traffic
from superopt.kernels.llvm.dot_products.products import LANES
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
from superopt.te.expr.dtype import I16, INDEX
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
    integers: Integers | None = None,
) -> AlgorithmForm:
    """Return the tensor by F(m x m, r x s), for a window of r x s. threads: that share it."""
    found = reduction(t)
    assert found is not None
    kind = found.dtype
    tile_kind = kind if integers is None else I16
    (given, n), k, (h, w) = p.stack_counts, p.k.size, p.output_sides
    rows_of_image, _ = tile_counts(p, plan.m)
    (down, right), least = p.dilations, plan.rows if plan.separate else plan.block
    high, wide = extended_tile_counts(p, plan.m, least, plan.columns)
    (a, b), (mh, mw) = p.input_tile_sides(plan.m), p.tile_sides(plan.m)
    table_b, table_a = Tensor("B", tile_kind, (a, a)), Tensor("A", kind, (mh, a))
    table_e, table_d = Tensor("E", tile_kind, (b, b)), Tensor("D", kind, (mw, b))
    high_u, wide_u = (distinct_rows(*form, integers is not None) for form in p.forms(plan.m))
    own = (k, *p.reduction_sizes) if integers is None else integers.filter_shape
    u = Tensor("u", tile_kind, (high_u, wide_u, *own))
    factor = input_factor(found, c.a)

    def at(q: Expr, ch: Expr, i: Expr, j: Expr) -> Expr:
        env: dict[Expr, Expr] = dict(zip(factor.axes, p.input_index(q, ch, i, j), strict=True))
        body = factor.body if integers is None else integers.element(factor.body)
        return substitute_and_fold(body, env)

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
    read = Tensor("v", tile_kind, v.shape) if plan.separate else v

    def sums(xi: Expr, nu: Expr, q: Expr, y: Expr, x: Expr, o: Expr) -> Expr:
        i, j = (
            index.apply("min", (index.as_index(x), index.as_index(n - 1)), INDEX)
            for x, n in ((xi, high_u), (nu, wide_u))
        )
        if integers is not None:
            return integers.sum_of_products(read, (xi, nu, q, y, x), u, (i, j), o)
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
        if integers is not None:
            total = integers.divide(total)
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
    if integers is not None:
        lanes = LANES
    if plan.separate:
        # The blocks of a symbolic number of rows are one.
        is_divided = isinstance(high, int) and plan.block < high
        panels_first = not is_divided or plan_traffic(p, plan, lanes, threads)[1]
        how = _channel_schedules(stages, plan, lanes, is_divided, panels_first)
    else:
        how = _row_schedules(stages, plan, lanes)
    matrices = transform_matrices if integers is None else integer_matrices
    by_rows, by_columns = (matrices(*form) for form in p.forms(plan.m))
    tables = {
        table_b: to_array(by_rows[2]), table_a: to_array(by_rows[0]),
        table_e: to_array(by_columns[2]), table_d: to_array(by_columns[0]),
    }  # fmt: skip
    return AlgorithmForm(y, ((v, read),) if plan.separate else (), lies, how, tables, u)


WinogradStages = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
NARROW_CHANNEL_BLOCK = 64  # of images of 8 bits (plan/lowering/image_layouts.py)
_TRANSFORM = "reorder(i0, i1, i2, i4, k0, i3, i5); unroll(k0); unroll(i3); vectorize(i5)"
_BACK = "i1, i2, i5.o.i, i3, k0, i4, i5.i); unroll(k0); unroll(i4); vectorize(i5.i)"


def _vector_loops(v: Tensor) -> list[str]:
    """Return the loops over vectors of the input's channels: within a block of an image of bytes,
    so that its address does not depend on the vector."""
    in_blocks = not v.dtype.is_float and v.sizes[-1] % NARROW_CHANNEL_BLOCK == 0
    return ["i5.o", "i5.i.o"] if in_blocks else ["i5.o"]


def _input_schedule(v: Tensor, lanes: int) -> str:
    """Return the schedule of the input's transform."""
    loops = _vector_loops(v)
    vector = loops[-1].removesuffix("o") + "i"
    split = f"split(i5, {lanes})"
    if len(loops) > 1:
        split = f"split(i5, {NARROW_CHANNEL_BLOCK}); split(i5.i, {lanes})"
    return (
        f"{split}; reorder(i2, i3, i4, {', '.join(loops)}, i0, k0, i1, {vector}); "
        f"unroll(k0); unroll(i1); vectorize({vector})"
    )


def _sums_schedule(sums: Tensor, plan: Plan, lanes: int, at: str) -> str:
    """Return the schedule of the sums over channels, in register tiles; instructions sum pairs of
    integers."""
    found = reduction(sums)
    assert found is not None
    terms = [a.name for a in found.axes]
    tile, inner = ["i3.i", "i4.i", "i5.o", "i5.i"], []
    if not sums.dtype.is_float:
        tile, inner = ["i3.i", "i5.o", "i4.i", "i5.i"], [terms.pop()]
    loops = ", ".join(["i0", "i1", "i2", "i3.o", "i4.o", *terms, *tile, *inner])
    return (
        f"compute_at(y, {at}); split(i5, {lanes}); split(i3, {plan.rows}); "
        f"split(i4, {plan.columns}); reorder({loops}); "
        + "".join(f"unroll({x}); " for x in (*tile[:-1], *inner))
        + "vectorize(i5.i)"
    )


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
        s: _sums_schedule(s, plan, lanes, "i5.o.o"),
        v: f"compute_at(y, i1.o); {_input_schedule(v, lanes)}",
        d: f"compute_at(v, {_vector_loops(v)[-1]}); {_TRANSFORM}",
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
        s: _sums_schedule(s, plan, lanes, loops[-1]),
        v: f"{_input_schedule(v, lanes)}; parallel(i2); parallel(i3); parallel(i4)",
        d: f"compute_at(v, {_vector_loops(v)[-1]}); {_TRANSFORM}",
    }
    return {t: parse_schedule(text) for t, text in how.items()}
