"""Writes into key-value caches of fixed capacity."""

from __future__ import annotations

from superopt.ir.op import Attr, InferError, Types, op
from superopt.ops.movement.layout import known_type
from superopt.ops.shared.broadcasting import normalize_axis
from superopt.te.expr import index
from superopt.te.expr.dtype import I64
from superopt.te.expr.node import Expr
from superopt.te.expr.tensor import (
    Tensor,
    apply,
    cast,
    compare,
    compute,
    conjunction,
    const,
    gather,
    in_range,
    select,
)

MODES = ("linear", "circular")


def _tensor_scatter_attrs(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    """Canonical attributes: `axis` counts from the first axis."""
    t, shape = known_type(types)
    axis = normalize_axis(attrs["axis"], len(shape), "axis")
    if axis == 0:
        raise InferError(f"TensorScatter of {t}: axis 0 is the batch")
    if attrs["mode"] not in MODES:
        raise InferError(f"TensorScatter: mode {attrs['mode']!r} is not one of {', '.join(MODES)}")
    return attrs | {"axis": axis}


@op(
    "TensorScatter",
    example=(
        "f32[2,3,5,4] f32[2,3,2,4] i64[2]",
        'f32[2,5,4] f32[2,3,4] i64[2] axis=1 mode="circular"',
    ),
    since=24,
    canonical=_tensor_scatter_attrs,
)
def tensor_scatter(
    past_cache: Tensor,
    update: Tensor,
    write_indices: Tensor | None = None,
    *,
    axis: int = -2,
    mode: str = "linear",
) -> Tensor:
    """`past_cache` with `update` along `axis` from `write_indices[b]` on, for each b of the first
    axis; "circular" continues at the start of the axis."""
    what = f"TensorScatter of {update.type} into {past_cache.type}"
    same = [a for a in range(past_cache.rank) if a != axis]
    if update.rank != past_cache.rank or update.dtype != past_cache.dtype:
        raise InferError(f"{what}: ranks or dtypes differ")
    if any(update.shape[a] != past_cache.shape[a] for a in same):
        raise InferError(f"{what}: sizes differ on other axes than {axis}")
    if write_indices is not None and (
        write_indices.shape != past_cache.shape[:1] or write_indices.dtype != I64
    ):
        raise InferError(f"{what} at {write_indices.type}")
    length, capacity = update.shape[axis], past_cache.shape[axis]
    if isinstance(length, int) and isinstance(capacity, int) and length > capacity:
        raise InferError(f"{what}: {length} elements do not fit into {capacity}")

    def element(*i: Expr) -> Expr:
        place = i[axis]
        if write_indices is None:
            source, hit = place, in_range(place, length)
        else:
            offset = cast(place, I64) - write_indices[i[0]]
            if mode == "circular":
                offset = apply("mod", offset, cast(index.as_index(capacity), I64))
            count = cast(index.as_index(length), I64)
            hit = conjunction(compare("le", const(0, I64), offset), compare("lt", offset, count))
            source = gather(offset, length)
        return select(hit, update[(*i[:axis], source, *i[axis + 1 :])], past_cache[i])

    return compute(past_cache.shape, element)
