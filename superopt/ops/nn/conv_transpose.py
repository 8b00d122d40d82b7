"""ConvTranspose and Col2Im."""

from __future__ import annotations

from collections.abc import Sequence

from superopt.ir.op import Attr, InferError, Types, op
from superopt.ops.movement.layout import format_shape, known_type
from superopt.ops.nn.conv import check_bias, check_conv_operands
from superopt.ops.shared.precision import narrow_tensor, widen_tensor
from superopt.ops.shared.sizes import (
    ceil_div,
    floor_div,
    integer_tuple,
    max_size,
    size_tuple,
    subtract_sizes,
)
from superopt.ops.shared.windows import AUTO_PADS, check_kernel_shape, window_span, windows
from superopt.te.expr import index
from superopt.te.expr.dtype import INDEX
from superopt.te.expr.node import Expr
from superopt.te.expr.tensor import (
    Dim,
    Tensor,
    compare,
    compute,
    conjunction,
    const,
    in_range,
    product,
    ravel,
    reduce_sum,
    select,
)


def _conv_transpose_attrs(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    """Explicit pads, NOTSET, no `output_shape`; those stay where the pads would be symbolic."""
    x, xs = known_type(types)
    w, ws = known_type(types, 1)
    check_conv_operands("ConvTranspose", x, w, attrs["group"], transposed=True)
    what = f"ConvTranspose of x {x} with w {w}"
    rank, mode = len(xs) - 2, attrs["auto_pad"]
    if mode not in AUTO_PADS:
        raise InferError(f"{what}: auto_pad {mode} is not one of {', '.join(AUTO_PADS)}")
    full = check_kernel_shape(what, attrs, ws[2:])
    for key, fill in (("strides", 1), ("dilations", 1), ("output_padding", 0)):
        values = (fill,) * rank if full[key] is None else integer_tuple(full[key], key)
        if len(values) != rank or min(values) < fill:
            raise InferError(f"{what}: {key} {values} on {rank} spatial axes")
        full[key] = values
    pads = (0,) * (2 * rank) if full["pads"] is None else integer_tuple(full["pads"], "pads")
    if len(pads) != 2 * rank:
        raise InferError(f"{what}: {len(pads)} pads on {rank} spatial axes")
    if full["output_shape"] is not None:
        wanted = size_tuple(full["output_shape"], "output_shape")
        wanted = wanted[2:] if len(wanted) == rank + 2 else wanted  # some exporters write all axes
    elif mode in ("SAME_UPPER", "SAME_LOWER"):
        strides = integer_tuple(full["strides"], "strides")
        wanted = tuple(
            index.dim(index.as_index(n) * s) for n, s in zip(xs[2:], strides, strict=True)
        )
    else:
        pads = (0,) * (2 * rank) if mode == "VALID" else pads
        return full | {"pads": pads, "auto_pad": "NOTSET"}
    if len(wanted) != rank:
        raise InferError(f"{what}: output_shape {format_shape(wanted)} on {rank} spatial axes")
    reached = _full_sizes(xs[2:], ws[2:], full)
    total = [subtract_sizes(n, s) for n, s in zip(reached, wanted, strict=True)]
    if not all(isinstance(t, int) for t in total):
        raise InferError(
            f"{what}: output_shape {format_shape(wanted)} needs pads {format_shape(tuple(total))}"
        )
    short = [max(-t, 0) for t in total if isinstance(t, int)]  # what lacks is added at the end
    more_out = integer_tuple(full["output_padding"], "output_padding")
    padding = tuple(p + m for p, m in zip(more_out, short, strict=True))
    steps = integer_tuple(full["strides"], "strides"), integer_tuple(full["dilations"], "dilations")
    if any(m and p >= max(s, d) for m, p, s, d in zip(short, padding, *steps, strict=True)):
        raise InferError(f"{what}: output_shape {format_shape(wanted)} is not reachable")
    if any(short) and full["output_shape"] is None:
        raise InferError(
            f"{what}: a stride longer than the kernel, where runtimes differ on {mode}"
        )
    full["output_padding"] = padding
    total = [max_size(t, 0) for t in total]
    less, more = [floor_div(t, 2) for t in total], [ceil_div(t, 2) for t in total]
    pads_found = (*less, *more) if mode == "SAME_UPPER" else (*more, *less)
    return full | {"pads": pads_found, "auto_pad": "NOTSET", "output_shape": None}


def _full_sizes(extents: Sequence[Dim], kernel: Sequence[Dim], attrs: dict[str, Attr]) -> list[Dim]:
    """Return the size of each result axis before pads are cut off."""
    keys = ("strides", "dilations", "output_padding")
    steps = zip(extents, kernel, *(integer_tuple(attrs[k], k) for k in keys), strict=True)
    return [
        index.dim((index.as_index(n) - 1) * s + more + window_span(k, d))
        for n, k, s, d, more in steps
    ]


def covering_windows(
    counts: Sequence[Dim],
    strides: Sequence[int],
    dilations: Sequence[int],
    begins: Sequence[Dim],
    o: Sequence[Expr],
    k: Sequence[Expr],
) -> tuple[Expr | bool, list[Expr]]:
    """Return the windows whose `k`-th element is at `o`: (guard, positions)."""
    guards: list[Expr | bool] = []
    where: list[Expr] = []
    for n, s, d, begin, e, j in zip(counts, strides, dilations, begins, o, k, strict=True):
        distance = index.as_index(e - j * d + begin)
        position = index.floordiv(distance, index.as_index(s))
        if s > 1:
            guards.append(compare("eq", index.mod(distance, index.as_index(s)), const(0, INDEX)))
        guards.append(in_range(position, n))
        where.append(position)
    return conjunction(*guards), where


@op(
    "ConvTranspose",
    example=(
        "f32[1,2,3,4] f32[2,3,3,2] f32[3] strides=(2,1) pads=(1,0,0,1) output_padding=(1,0)",
        "f32[1,4,5] f32[4,3,3] group=2 dilations=(2,)",
    ),
    laws="linear",
    canonical=_conv_transpose_attrs,
)
def conv_transpose(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: tuple[int, ...] | None = None,
    group: int = 1,
    kernel_shape: tuple[int, ...] | None = None,
    output_padding: tuple[int, ...] | None = None,
    output_shape: tuple[Dim, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Tensor:
    """The adjoint of Conv: each x[n, c, ...] adds a kernel w[c, m / group, ...] to the result."""
    what = f"ConvTranspose of x {x.type} with w {w.type}"
    _, inner, outer = check_conv_operands("ConvTranspose", x.type, w.type, group, transposed=True)
    if x.dtype != w.dtype or (b is not None and b.dtype != x.dtype):
        raise InferError(f"{what}: dtypes differ")
    channels = index.dim(index.as_index(outer) * group)
    check_bias(what, channels, b)
    assert strides is not None
    assert dilations is not None
    assert output_padding is not None
    assert pads is not None
    attrs: dict[str, Attr] = {
        "strides": strides,
        "dilations": dilations,
        "output_padding": output_padding,
    }
    rank = x.rank - 2
    begins = pads[:rank]
    shape: list[Dim] = []
    for n, begin, end in zip(
        _full_sizes(x.shape[2:], w.shape[2:], attrs), begins, pads[rank:], strict=True
    ):
        size = index.dim(index.as_index(n) - begin - end)
        if isinstance(size, int) and size < 0:
            raise InferError(f"{what}: {n} elements less pads {begin} and {end} is {size}")
        shape.append(size)

    image, kernel, bias = widen_tensor(x), widen_tensor(w), None if b is None else widen_tensor(b)

    def element(n: Expr, m: Expr, *o: Expr) -> Expr:
        first = index.as_index(m // outer * inner) if group > 1 else const(0, INDEX)
        column = m % outer if group > 1 else m

        def term(c: Expr, *k: Expr) -> Expr:
            guard, where = covering_windows(x.shape[2:], strides, dilations, begins, o, k)
            value = select(guard, image[(n, first + c, *where)], const(0, image.dtype))
            return value * kernel[(first + c, column, *k)]

        total = reduce_sum((inner, *w.shape[2:]), term)
        return total if bias is None else total + bias[m]

    out = compute((x.shape[0], channels, *shape), element, name="deconv")
    return narrow_tensor(out, x.dtype)


def _col2im_attrs(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    t, _ = known_type(types)
    image, block = (
        size_tuple(attrs["image_shape"], "image_shape"),
        integer_tuple(attrs["block_shape"], "block_shape"),
    )
    rank = len(image)
    full = dict(attrs) | {"image_shape": image, "block_shape": block}
    for key, count, fill in (("strides", rank, 1), ("dilations", rank, 1), ("pads", 2 * rank, 0)):
        values = (fill,) * count if full[key] is None else integer_tuple(full[key], key)
        if len(values) != count or len(block) != rank or min(values) < fill:
            raise InferError(
                f"Col2Im of {t} to {format_shape(image)}: {key} {values}, block {block}"
            )
        full[key] = values
    return full


@op(
    "Col2Im",
    example="f32[1,12,4] image_shape=(4,3) block_shape=(3,2)",
    since=18,
    canonical=_col2im_attrs,
)
def col2im(
    x: Tensor,
    *,
    image_shape: tuple[Dim, ...],
    block_shape: tuple[int, ...],
    dilations: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Tensor:
    """The image in which each column x[n, (c, block), l] adds its elements to block number l."""
    assert strides is not None
    assert dilations is not None
    assert pads is not None
    what = f"Col2Im of {x.type} to {format_shape(image_shape)}"
    ws = windows(
        what,
        image_shape,
        block_shape,
        strides=strides,
        dilations=dilations,
        pads=pads,
        auto_pad="NOTSET",
    )
    counts = [w.count for w in ws]
    size = product(block_shape)
    if x.rank != 3 or product(counts) != x.shape[2]:
        raise InferError(f"{what}: {product(counts)} blocks")
    channels = floor_div(x.shape[1], size)
    if index.dim(index.as_index(channels) * size) != x.shape[1]:
        raise InferError(f"{what}: {x.shape[1]} is not a multiple of {size}")
    begins = [w.begin for w in ws]
    columns = widen_tensor(x)

    def element(n: Expr, c: Expr, *o: Expr) -> Expr:
        def term(*k: Expr) -> Expr:
            guard, where = covering_windows(counts, strides, dilations, begins, o, k)
            column = index.as_index(c * size + ravel(k, block_shape))
            return select(guard, columns[n, column, ravel(where, counts)], const(0, columns.dtype))

        return reduce_sum(block_shape, term)

    return narrow_tensor(compute((x.shape[0], channels, *image_shape), element), x.dtype)
